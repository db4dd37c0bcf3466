"""Views of the list of clones, and of one clone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.clone.sources import Commit
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.report.clone.fields import clone_fields, commit_fields, state
from zsnapdb.report.units import size, table
from zsnapdb.report.view import Fields, View


@dataclass(frozen=True)
class ClonesView(View):
    """All clones."""

    clones: Sequence[CloneInfo]
    kind: ClassVar[str] = "clones"

    def text(self) -> str:
        rows = []
        for c in self.clones:
            protected = "yes" if c.lease.protected_until else "no"
            rows.append(
                (
                    c.name,
                    c.instance,
                    c.backup_id,
                    c.owner,
                    c.created,
                    stamp(c.lease.expires),
                    protected,
                    str(c.port),
                    state(c),
                    size(c.own_bytes),
                )
            )
        return table(
            ("CLONE", "INSTANCE", "DATA OF", "OWNER", "CREATED", "EXPIRES", "PROTECTED", "PORT", "SERVER", "OWN BYTES"),
            rows,
        )

    def fields(self) -> Fields:
        return {
            "clones": [clone_fields(c) for c in self.clones],
        }


@dataclass(frozen=True)
class CloneDetailView(View):
    """One clone and its commits."""

    info: CloneInfo
    commits: Sequence[Commit]
    kind: ClassVar[str] = "clone-detail"

    def text(self) -> str:
        info = self.info
        protected = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
        lines = [
            f"clone     {info.name} of {info.instance}, made {info.created} by {info.owner}, profile {info.profile}",
            (
                f"server    {info.origin.flavour} {info.origin.version}, {state(info)}, {info.bind_address}:"
                f"{info.port}, server_id {info.server_id}"
            ),
            f"data      as of {info.backup_id} ({info.source}): {info.position}",
            f"lease     until {stamp(info.lease.expires)}{protected}",
            f"dataset   {info.top}, mounted at {info.mount}, {size(info.own_bytes)} of its own"
            + (", independent" if info.is_independent else ""),
        ]
        for made in self.commits:
            cloned = f", cloned as {', '.join(made.clones)}" if made.clones else ""
            lines.append(f"commit    {made.set.backup_id} {made.created} {made.message}{cloned}")
        return "\n".join(lines)

    def fields(self) -> Fields:
        return {
            "clone": clone_fields(self.info),
            "commits": [commit_fields(made) for made in self.commits],
        }

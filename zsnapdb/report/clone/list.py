"""Views of the list of clones, and of one clone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from zsnapdb.base.quantities import size
from zsnapdb.documents.clone import CloneDetailDocument, ClonesDocument
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.copies.catalogue import UnreadableCopy
from zsnapdb.planning.clone.branches import current_of
from zsnapdb.planning.clone.lease import remaining, stamp
from zsnapdb.report.clone.fields import masking, port, state
from zsnapdb.report.copies import unreadable_lines
from zsnapdb.report.view import Part, Table, TabularView, View

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.sources import Commit

_REQUEST_WIDTH = 40


def _shortened(request: str) -> str:
    return request if len(request) <= _REQUEST_WIDTH else f"{request[: _REQUEST_WIDTH - 1]}…"


class ClonesView(TabularView, kind="clones", document=ClonesDocument):
    """All clones."""

    clones: Sequence[CloneInfo]
    now: datetime
    unreadable: Sequence[UnreadableCopy] = ()

    def parts(self) -> Sequence[Part]:
        rows = []
        for c in self.clones:
            protected = "yes" if c.lease.protected_until else "no"
            rows.append(
                (
                    c.label,
                    c.instance,
                    c.backup_id,
                    _shortened(c.requested),
                    "yes" if c.masked is not None else "no",
                    c.owner,
                    c.created,
                    remaining(c.lease, self.now),
                    protected,
                    str(c.client_port),
                    state(c),
                    f"{size(c.own_bytes)} of {size(c.quota)}" if c.quota else size(c.own_bytes),
                )
            )
        headings = (
            "CLONE",
            "INSTANCE",
            "DATA OF",
            "REQUESTED",
            "MASKED",
            "OWNER",
            "CREATED",
            "EXPIRES",
            "PROTECTED",
            "PORT",
            "SERVER",
            "OWN BYTES",
        )
        table = Table(headings, rows, "no clones: `zsnapdb clone create` makes one")
        return [table, *unreadable_lines(self.unreadable)]


def _heartbeat(info: CloneInfo) -> str:
    beats = info.lease.heartbeat
    return f"; a heartbeat is due each {beats.every} s, the last was at {stamp(beats.last)}" if beats else ""


class CloneDetailView(View, kind="clone-detail", document=CloneDetailDocument):
    """One clone and its commits."""

    info: CloneInfo
    commits: Sequence[Commit]
    now: datetime

    @property
    def branch(self) -> str | None:
        """The branch that it is on; None if that cannot be read."""
        return current_of(self.info.branches)

    def text(self) -> str:
        info = self.info
        protected = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
        lines = [
            f"clone     {info.label} of {info.instance}, made {info.created} by {info.owner}, profile {info.profile}",
            (
                f"server    {info.origin.flavour} {info.origin.version}, {state(info)}, {info.bind_address}:"
                f"{info.port}, server_id {info.server_id}"
            ),
            *([f"address   {port(info)}"] if info.kept_port is not None else []),
            f"data      as of {info.backup_id} ({info.source}), requested as {info.requested}: {info.position}",
            f"original  {info.original}, requested as {info.original_request}",
            f"masking   {masking(info)}",
            f"lease     until {stamp(info.lease.expires)}, {remaining(info.lease, self.now)}{protected}"
            + _heartbeat(info),
            f"dataset   {info.top}, mounted at {info.mount}, {size(info.own_bytes)} of its own"
            + (f", at most {size(info.quota)}" if info.quota else "")
            + (", independent" if info.is_independent else ""),
        ]
        if info.branches:
            lines.append(f"branch    {self.branch or 'cannot be read'}")
        if info.set_name:
            lines.append(f"set       {info.part} of {info.set_name}")
        for made in self.commits:
            cloned = f", cloned as {', '.join(made.clones)}" if made.clones else ""
            lines.append(f"commit    {made.set.backup_id} {made.created} {made.message}{cloned}")
        return "\n".join(lines)

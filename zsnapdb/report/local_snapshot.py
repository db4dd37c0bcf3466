"""Local snapshot sets: a new one, the plan for one, and those on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.backup.local_snapshot import LocalSnapshotPlan, LocalSnapshotResult
from zsnapdb.planning.repository.local_retention import LocalSet
from zsnapdb.report.findings import FindingFields, finding_fields, finding_lines
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class LocalSnapshotDocument(TypedDict):
    """A new local snapshot set."""

    instance: str
    backup_id: str
    volumes: dict[str, str]
    position: str | None
    seconds: float
    expired: list[str]
    warnings: list[str]


class KeptSetFields(TypedDict):
    """Whether a local snapshot set stays, and why."""

    backup_id: str
    keep: bool
    reasons: list[str]


class LocalSnapshotPlanDocument(TypedDict):
    """What `zsnapdb snapshot` would do."""

    volumes: dict[str, str]
    findings: list[FindingFields]
    local: list[KeptSetFields]


class LocalSetFields(TypedDict):
    """A snapshot set on this host."""

    backup_id: str
    state: str
    used: int
    position: str | None
    users: list[str]
    snapshots: dict[str, str]


class LocalSetsDocument(TypedDict):
    """The snapshot sets on this host."""

    sets: list[LocalSetFields]


@dataclass(frozen=True)
class LocalSnapshotView(View):
    """A new local snapshot set."""

    result: LocalSnapshotResult
    kind: ClassVar[str] = "snapshot"

    def text(self) -> str:
        result = self.result
        return "\n".join(
            [
                f"snapshot set {result.backup_id} of {result.instance} is on this host, in no repository",
                f"  position  {result.position or 'none'}",
                f"  taken     in {result.seconds:.2f} s",
                *(f"  expired   {backup_id} was destroyed" for backup_id in result.expired),
                *(f"  warning   {text}" for text in result.warnings),
            ]
        )

    def fields(self) -> LocalSnapshotDocument:
        result = self.result
        return {
            "instance": result.instance,
            "backup_id": result.backup_id,
            "volumes": dict(result.volumes),
            "position": result.position or None,
            "seconds": result.seconds,
            "expired": list(result.expired),
            "warnings": list(result.warnings),
        }


@dataclass(frozen=True)
class LocalSnapshotPlanView(View):
    """What `zsnapdb snapshot` would do."""

    plan: LocalSnapshotPlan
    kind: ClassVar[str] = "snapshot-plan"

    def text(self) -> str:
        rows = [("keep" if d.keep else "destroy", d.backup_id, "; ".join(d.reasons)) for d in self.plan.decisions]
        volumes = ", ".join(sorted(self.plan.observed.volumes.values()))
        lines = [*finding_lines(self.plan.observed.findings), "", f"snapshot {volumes} in one request"]
        return "\n".join([*lines, *([table(("", "SET", "WHY"), rows)] if rows else [])])

    def fields(self) -> LocalSnapshotPlanDocument:
        return {
            "volumes": dict(self.plan.observed.volumes),
            "findings": finding_fields(self.plan.observed.findings),
            "local": [
                {"backup_id": d.backup_id, "keep": d.keep, "reasons": list(d.reasons)} for d in self.plan.decisions
            ],
        }


@dataclass(frozen=True)
class LocalSetsView(TabularView):
    """The snapshot sets on this host."""

    sets: Sequence[LocalSet]
    kind: ClassVar[str] = "local-sets"

    def parts(self) -> Sequence[Part]:
        if not self.sets:
            return ["no snapshot set is on this host"]
        rows = [
            (one.backup_id, one.state, size(one.used), one.position or "-", "; ".join(one.users) or "-")
            for one in self.sets
        ]
        return [Table(("SET", "STATE", "HELD", "POSITION", "NEEDED BY"), rows, "")]

    def fields(self) -> LocalSetsDocument:
        return {
            "sets": [
                {
                    "backup_id": one.backup_id,
                    "state": one.state,
                    "used": one.used,
                    "position": one.position or None,
                    "users": list(one.users),
                    "snapshots": dict(one.names),
                }
                for one in self.sets
            ]
        }

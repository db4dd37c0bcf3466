"""Local snapshot sets: a new one, the plan for one, and those on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import size
from zsnapdb.documents.backup import LocalSetsDocument, LocalSnapshotDocument, LocalSnapshotPlanDocument
from zsnapdb.jobs.backup.local_snapshot import LocalSnapshotPlan, LocalSnapshotResult
from zsnapdb.planning.repository.local_sets import LocalSet
from zsnapdb.report.units import table
from zsnapdb.report.view import Part, Table, TabularView, View, finding_lines


@dataclass(frozen=True)
class LocalSnapshotView(View):
    """A new local snapshot set."""

    result: LocalSnapshotResult
    kind: ClassVar[str] = "snapshot"
    document_class = LocalSnapshotDocument
    read_from = "result"

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


@dataclass(frozen=True)
class LocalSnapshotPlanView(View):
    """What `zsnapdb snapshot` would do."""

    plan: LocalSnapshotPlan
    kind: ClassVar[str] = "snapshot-plan"
    document_class = LocalSnapshotPlanDocument
    read_from = "plan"

    def text(self) -> str:
        rows = [("keep" if d.keep else "destroy", d.backup_id, "; ".join(d.reasons)) for d in self.plan.decisions]
        volumes = ", ".join(sorted(self.plan.observed.volumes.values()))
        lines = [*finding_lines(self.plan.observed.findings), "", f"snapshot {volumes} in one request"]
        return "\n".join([*lines, *([table(("", "SET", "WHY"), rows)] if rows else [])])


@dataclass(frozen=True)
class LocalSetsView(TabularView):
    """The snapshot sets on this host."""

    sets: Sequence[LocalSet]
    kind: ClassVar[str] = "local-sets"
    document_class = LocalSetsDocument

    def parts(self) -> Sequence[Part]:
        if not self.sets:
            return ["no snapshot set is on this host"]
        rows = [
            (one.backup_id, one.state, size(one.used), one.position or "-", "; ".join(one.users) or "-")
            for one in self.sets
        ]
        return [Table(("SET", "STATE", "HELD", "POSITION", "NEEDED BY"), rows, "")]

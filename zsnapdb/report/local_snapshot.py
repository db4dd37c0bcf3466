"""Local snapshot sets: a new one, the plan for one, and those on the host."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.quantities import size
from zsnapdb.documents.backup import LocalSetsDocument, LocalSnapshotDocument, LocalSnapshotPlanDocument
from zsnapdb.jobs.backup.local_snapshot import LocalSnapshotPlan, LocalSnapshotResult
from zsnapdb.planning.repository.local_sets import LocalSet
from zsnapdb.report.units import table
from zsnapdb.report.view import Part, Table, TabularView, View, finding_lines


class LocalSnapshotView(View, kind="snapshot", document=LocalSnapshotDocument, read_from="result"):
    """A new local snapshot set."""

    result: LocalSnapshotResult

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


class LocalSnapshotPlanView(View, kind="snapshot-plan", document=LocalSnapshotPlanDocument, read_from="plan"):
    """What `zsnapdb snapshot` would do."""

    plan: LocalSnapshotPlan

    def text(self) -> str:
        rows = [("keep" if d.keep else "destroy", d.backup_id, "; ".join(d.reasons)) for d in self.plan.decisions]
        volumes = ", ".join(sorted(self.plan.observed.volumes.values()))
        lines = [*finding_lines(self.plan.observed.findings), "", f"snapshot {volumes} in one request"]
        return "\n".join([*lines, *([table(("", "SET", "WHY"), rows)] if rows else [])])


class LocalSetsView(TabularView, kind="local-sets", document=LocalSetsDocument):
    """The snapshot sets on this host."""

    sets: Sequence[LocalSet]

    def parts(self) -> Sequence[Part]:
        if not self.sets:
            return ["no snapshot set is on this host"]
        rows = [
            (one.backup_id, one.state, size(one.used), one.position or "-", "; ".join(one.users) or "-")
            for one in self.sets
        ]
        return [Table(("SET", "STATE", "HELD", "POSITION", "NEEDED BY"), rows, "")]

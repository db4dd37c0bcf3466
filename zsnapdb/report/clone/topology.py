"""Views of a set of clones and of its plan."""

from __future__ import annotations

from zsnapdb.documents.clone import CloneSetDocument, CloneSetPlanDocument
from zsnapdb.jobs.clone.topology import CloneSet, SetPlan
from zsnapdb.report.clone.create import ClonePlanView
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class CloneSetPlanView(View, kind="clone-set-plan", document=CloneSetPlanDocument, read_from="plan"):
    """What making a set of clones would do."""

    plan: SetPlan

    def text(self) -> str:
        plan = self.plan
        parts = (
            "the first is the source of the others" if plan.topology == "replication" else "independent of one another"
        )
        return (
            f"a set of {len(plan.names)} clones, {parts}: {', '.join(plan.names)}; each is made like"
            f" the first:\n{ClonePlanView(plan.first).text()}"
        )


class CloneSetView(View, kind="clone-set", document=CloneSetDocument, read_from="made"):
    """A new set of clones."""

    made: CloneSet

    def text(self) -> str:
        made = self.made
        first = made.members[0].clone.info
        lines = [
            (
                f"set {made.name}: {len(made.members)} clones of {first.instance}, as of {first.backup_id},"
                f" {made.topology}"
            )
        ]
        if made.arrival_seconds is not None:
            lines.append(f"  a row of the source arrived at every replica after {made.arrival_seconds:.2f} s")
        rows = [
            (m.clone.info.label, m.part, str(m.clone.info.port), f"--defaults-file={m.clone.process.folder}/client.cnf")
            for m in made.members
        ]
        return "\n".join([*lines, table(("CLONE", "PART", "PORT", "CLIENT"), rows)])

"""Views of destroyed clones, of sweeps of the reaper, and of their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.jobs.clone.destroy import DestroyPlan
from zsnapdb.jobs.clone.reaper import ReapOutcome
from zsnapdb.planning.clone.lease import LeaseVerdict
from zsnapdb.report.clone.fields import clone_fields, commit_fields
from zsnapdb.report.units import table
from zsnapdb.report.view import Fields, View


@dataclass(frozen=True)
class DestroyPlanView(View):
    """What destroying a clone would do."""

    plan: DestroyPlan | None
    name: str
    kind: ClassVar[str] = "clone-destroy-plan"

    def text(self) -> str:
        plan = self.plan
        if plan is None:
            return f"there is no clone {self.name}; nothing to do"
        lines = [f"end the server of the clone, process {plan.info.pid}"] if plan.info.pid else []
        lines += [f"zfs destroy {snapshot.name}, which was made by {snapshot.maker}" for snapshot in plan.foreign]
        lines += [
            f"zfs destroy {snapshot.full_name}" for commit in plan.commits for snapshot in commit.set.snapshots.values()
        ]
        return "\n".join([*lines, *(f"zfs destroy {dataset}" for dataset in reversed(plan.info.datasets))])

    def fields(self) -> Fields:
        plan = self.plan
        commits = [commit_fields(made) for made in plan.commits] if plan else []
        return {
            "name": self.name,
            "clone": clone_fields(plan.info) if plan else None,
            "commits": commits,
            "foreign_snapshots": [snapshot.name for snapshot in plan.foreign] if plan else [],
        }


@dataclass(frozen=True)
class DestroyedView(View):
    """A clone that was destroyed."""

    plan: DestroyPlan | None
    name: str
    kind: ClassVar[str] = "clone-destroyed"

    def text(self) -> str:
        return (
            f"there is no clone {self.name}"
            if self.plan is None
            else f"clone {self.name} was destroyed: {', '.join(self.plan.info.datasets)}"
        )

    def fields(self) -> Fields:
        return {
            "name": self.name,
            "clone": clone_fields(self.plan.info) if self.plan else None,
        }


@dataclass(frozen=True)
class ReapView(View):
    """What a sweep did."""

    outcomes: Sequence[ReapOutcome]
    kind: ClassVar[str] = "reap"

    def text(self) -> str:
        rows = [
            (item.what, item.name, item.verdict.value, item.reason + (f"; {item.error.message}" if item.error else ""))
            for item in self.outcomes
        ]
        return table(("WHAT", "NAME", "VERDICT", "WHY"), rows)

    def fields(self) -> Fields:
        rows = [
            {
                "what": item.what,
                "name": item.name,
                "verdict": item.verdict.value,
                "reason": item.reason,
                "error": item.error.message if item.error else None,
            }
            for item in self.outcomes
        ]
        return {
            "swept": rows,
            "reaped": sum(1 for item in self.outcomes if item.verdict is LeaseVerdict.REAP),
        }


@dataclass(frozen=True)
class ReapPlanView(ReapView):
    """What a sweep would do."""

    kind: ClassVar[str] = "reap-plan"

"""Views of destroyed clones, of sweeps of the reaper, and of their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base import audience
from zsnapdb.documents.clone import DestroyDocument, ReapDocument
from zsnapdb.jobs.clone.destroy import DestroyPlan
from zsnapdb.jobs.copies.sweeping import ReapOutcome
from zsnapdb.planning.clone.lease import LeaseVerdict
from zsnapdb.report.units import table
from zsnapdb.report.view import View


@dataclass(frozen=True)
class DestroyPlanView(View):
    """What destroying a clone, or the clones of a set, would do."""

    plans: Sequence[DestroyPlan]
    name: str
    kind: ClassVar[str] = "clone-destroy-plan"
    document_class = DestroyDocument

    def text(self) -> str:
        lines = [line for plan in self.plans for line in _steps(plan)]
        return "\n".join(lines) or f"there is no clone {self.name}; nothing to do"


@dataclass(frozen=True)
class DestroyedView(View):
    """The clones that were destroyed."""

    plans: Sequence[DestroyPlan]
    name: str
    kind: ClassVar[str] = "clone-destroyed"
    document_class = DestroyDocument

    def text(self) -> str:
        if not self.plans:
            return f"there is no clone {self.name}"
        lines, shows_all = [], audience.current_audience().sees_all
        for plan in self.plans:
            lines.append(f"clone {plan.info.label} was destroyed: {', '.join(plan.info.datasets)}")
            lines += [f"  {mount.describe()}: unmounted there, too" for mount in plan.elsewhere if shows_all]
            lines += [f"  commit {commit} was destroyed" for commit in plan.removal.steps.removed]
            lines += [f"  commit {commit} is now of {heir}" for commit, heir in _heirs(plan).items()]
        return "\n".join(lines)


def _steps(plan: DestroyPlan) -> list[str]:
    steps = plan.removal.steps
    lines = [f"end the server of clone {plan.info.label}, process {plan.info.pid}"] if plan.info.pid else []
    if not audience.current_audience().sees_all:
        return [
            *lines,
            f"destroy clone {plan.info.label}",
            *(f"commit {commit} goes with it" for commit in steps.removed),
        ]
    lines += [f"unmount {mount.path} in the mount namespace of process {mount.pid}" for mount in plan.elsewhere]
    lines += [f"zfs destroy {snapshot.name}, which was made by {snapshot.maker}" for snapshot in plan.foreign]
    lines += [f"remove the prepared form of commit {item.set_id}" for item in plan.removal.prepared]
    lines += [f"commit {commit} becomes a commit of {heir}" for commit, heir in _heirs(plan).items()]
    lines += [f"zfs promote {step.dataset}" for step in steps.promotions]
    messages = {commit.set.backup_id: commit.message for commit in plan.commits}
    for commit in steps.removed:
        lines.append(f"commit {commit} goes with the clone: {messages.get(commit) or '(no message)'}")
    for dataset in steps.datasets:
        lines += [f"zfs destroy {snapshot.name}" for snapshot in steps.snapshots if snapshot.dataset == dataset]
        lines.append(f"zfs destroy {dataset}")
    rest = [snapshot.name for snapshot in steps.snapshots if snapshot.dataset not in steps.datasets]
    return lines + [f"zfs destroy {name}" for name in rest]


def _heirs(plan: DestroyPlan) -> dict[str, str]:
    """Return which clone takes over each commit, in words. It can be anybody's: only administrators read its name."""
    shows_all = audience.current_audience().sees_all
    return {
        commit: f"clone {heir}" if shows_all else "another clone" for commit, heir in plan.removal.steps.kept.items()
    }


@dataclass(frozen=True)
class ReapView(View):
    """What a sweep did."""

    outcomes: Sequence[ReapOutcome]
    kind: ClassVar[str] = "reap"
    document_class = ReapDocument

    @property
    def reaped(self) -> int:
        """How many go."""
        return sum(1 for item in self.outcomes if item.verdict is LeaseVerdict.REAP)

    def text(self) -> str:
        rows = [
            (item.what, item.name, item.verdict.value, item.reason + (f"; {item.error.message}" if item.error else ""))
            for item in self.outcomes
        ]
        return table(("WHAT", "NAME", "VERDICT", "WHY"), rows)


@dataclass(frozen=True)
class ReapPlanView(ReapView):
    """What a sweep would do."""

    kind: ClassVar[str] = "reap-plan"

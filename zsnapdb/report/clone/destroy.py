"""Views of destroyed clones, of sweeps of the reaper, and of their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base import audience
from zsnapdb.jobs.clone.destroy import DestroyPlan
from zsnapdb.jobs.copies.sweeping import ReapOutcome
from zsnapdb.planning.clone.lease import LeaseVerdict
from zsnapdb.report.clone.fields import CloneFields, CommitFields, clone_fields, commit_fields
from zsnapdb.report.units import table
from zsnapdb.report.view import View


class RemovalFields(TypedDict):
    """A clone that goes. Commits that are needed are handed over to another clone (commit to clone).

    What can be of anybody (`handed_over`, `promotes`, `foreign_snapshots`) is for administrators: others get it empty.
    """

    clone: CloneFields
    commits: list[CommitFields]
    handed_over: dict[str, str]
    promotes: list[str]
    foreign_snapshots: list[str]


class DestroyDocument(TypedDict):
    """The clones that are destroyed, or would be."""

    name: str
    clones: list[RemovalFields]


class SweptFields(TypedDict):
    """What the reaper does with a clone or machine, and why."""

    what: str
    name: str
    verdict: str
    reason: str
    error: str | None


class ReapDocument(TypedDict):
    """A sweep of the reaper."""

    swept: list[SweptFields]
    reaped: int


@dataclass(frozen=True)
class DestroyPlanView(View):
    """What destroying a clone, or the clones of a set, would do."""

    plans: Sequence[DestroyPlan]
    name: str
    kind: ClassVar[str] = "clone-destroy-plan"

    def text(self) -> str:
        lines = [line for plan in self.plans for line in _steps(plan)]
        return "\n".join(lines) or f"there is no clone {self.name}; nothing to do"

    def fields(self) -> DestroyDocument:
        return {"name": self.name, "clones": [_fields(plan) for plan in self.plans]}


@dataclass(frozen=True)
class DestroyedView(View):
    """The clones that were destroyed."""

    plans: Sequence[DestroyPlan]
    name: str
    kind: ClassVar[str] = "clone-destroyed"

    def text(self) -> str:
        if not self.plans:
            return f"there is no clone {self.name}"
        lines, shows_all = [], audience.current().sees_all
        for plan in self.plans:
            lines.append(f"clone {plan.info.label} was destroyed: {', '.join(plan.info.datasets)}")
            lines += [f"  {mount.describe()}: unmounted there, too" for mount in plan.elsewhere if shows_all]
            lines += [f"  commit {commit} was destroyed" for commit in plan.removal.steps.removed]
            lines += [f"  commit {commit} is now of {heir}" for commit, heir in _heirs(plan).items()]
        return "\n".join(lines)

    def fields(self) -> DestroyDocument:
        return {"name": self.name, "clones": [_fields(plan) for plan in self.plans]}


def _steps(plan: DestroyPlan) -> list[str]:
    steps = plan.removal.steps
    lines = [f"end the server of clone {plan.info.label}, process {plan.info.pid}"] if plan.info.pid else []
    if not audience.current().sees_all:
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


def _fields(plan: DestroyPlan) -> RemovalFields:
    steps, shows_all = plan.removal.steps, audience.current().sees_all
    return {
        "clone": clone_fields(plan.info),
        "commits": [commit_fields(made) for made in plan.commits if made.set.backup_id in steps.removed],
        "handed_over": dict(steps.kept) if shows_all else {},
        "promotes": [step.dataset for step in steps.promotions if shows_all],
        "foreign_snapshots": [snapshot.name for snapshot in plan.foreign if shows_all],
    }


def _heirs(plan: DestroyPlan) -> dict[str, str]:
    """Return which clone takes over each commit, in words. It can be anybody's: only administrators read its name."""
    shows_all = audience.current().sees_all
    return {
        commit: f"clone {heir}" if shows_all else "another clone" for commit, heir in plan.removal.steps.kept.items()
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

    def fields(self) -> ReapDocument:
        rows: list[SweptFields] = [
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

"""Views of a changed clone, and of plans for changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.base import run_context
from zsnapdb.base.quantities import size
from zsnapdb.documents import clone as documents
from zsnapdb.jobs.clone.destroy import DestroyPlan
from zsnapdb.jobs.dataset_copies.sweep import ReapOutcome
from zsnapdb.planning.clone.lease import LeaseVerdict, stamp
from zsnapdb.report.clone.list import port, state
from zsnapdb.report.view import View, table

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.catalogue import Intention
    from zsnapdb.jobs.clone.clone_info import CloneInfo
    from zsnapdb.jobs.clone.commits import Committed
    from zsnapdb.jobs.clone.detach import DetachPlan
    from zsnapdb.jobs.clone.reset import ResetClone, ResetIntention


class ChangedView(View, kind="clone-changed", document=documents.ChangedDocument):
    """A clone after a change."""

    info: CloneInfo
    done: str
    """The change, as a participle such as `started`."""

    def text(self) -> str:
        info = self.info
        protected = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
        done = "not protected" if self.done == "protected" and not protected else self.done
        return (
            f"clone {info.label} is {done}: {state(info)}, {port(info)}, data of {info.backup_id}, lease until"
            f" {stamp(info.lease.expires)}{protected}"
        )


class ResetView(View, kind="clone-reset", document=documents.ResetDocument):
    """A clone that was reset, and how it was reset."""

    result: ResetClone

    @property
    def info(self) -> CloneInfo:
        return self.result.info

    @property
    def done(self) -> str:
        return "reset to the data it was created from" if self.info.has_original else "reset"

    def text(self) -> str:
        undone, reason = self.result.undone, self.result.reason
        lines = [ChangedView(self.info, self.done).text()]
        if undone is not None and not undone.rows:
            lines.append("  no row was changed since")
        elif undone is not None:
            lines.append(f"  {undone.rows} changes of rows were undone in {undone.seconds:.2f} s")
        elif self.result.swap_seconds is not None:
            lines.append(f"  a waiting clone took its place in {self.result.swap_seconds:.2f} s: {reason}")
            lines.append(f"  its files are in {self.result.info.mount} now")
        elif reason:
            lines.append(f"  its data was replaced: {reason}")
        return "\n".join(lines)


class IntentionView(View, kind="clone-change-plan", document=documents.IntentionDocument):
    """The plan of a change."""

    intention: Intention
    what: str

    def text(self) -> str:
        return "\n".join(self.intention.steps) or "nothing to do"


class ResetPlanView(View, kind="clone-reset-plan", document=documents.ResetPlanDocument):
    """The plan of a reset."""

    intention: ResetIntention

    @property
    def backup_id(self) -> str | None:
        """The snapshot set from which the data comes after the reset; None if the reset creates this set."""
        intention, plan = self.intention, self.intention.replaces
        return (plan.set_id or None) if plan is not None else (intention.slot or intention.info).backup_id

    def text(self) -> str:
        intention, plan = self.intention, self.intention.replaces
        label, reason = intention.info.label, intention.reason
        if intention.undoes is not None:
            return f"end the sessions of clone {label}, and undo {intention.undoes} changes of rows; its data stays"
        if intention.slot is not None:
            slot = intention.slot
            return (
                f"a waiting clone takes its place: {reason}\nend the server of clone {label}, and lead port"
                f" {intention.info.kept_port} to {slot.label} of the pool, data as of {slot.backup_id}"
            )
        assert plan is not None
        lines = [f"its data is replaced: {reason}"] if reason else []
        lines += [f"zfs clone {name} ({role})" for role, name in sorted(plan.snapshots.items())]
        if not plan.snapshots:
            made = f"receive the snapshot set {plan.set_id}" if plan.set_id else "take a snapshot set now"
            lines.append(f"{made}, then clone it")
        if plan.is_original:
            lines.append(f"{plan.set_id} is the snapshot set that the clone was created from")
        if plan.drops:
            lines.append(f"destroy the live set {plan.drops}, of the data before, if no other clone uses it")
        ends = f"end the server of clone {plan.info.label}, replace its data"
        return "\n".join([*lines, f"{ends}, start the server on port {plan.info.port} again"])


class DetachPlanView(View, kind="clone-detach-plan", document=documents.DetachDocument):
    """The plan to detach a clone."""

    plan: DetachPlan

    def text(self) -> str:
        plan = self.plan
        return (
            f"detaching clone {plan.info.label} copies {size(plan.cost)}; the pool has {size(plan.available)} free. The"
            " clone's server is stopped during the copy"
        )


class DetachedView(View, kind="clone-detached", document=documents.DetachDocument):
    """A clone that was detached and no longer depends on a snapshot."""

    plan: DetachPlan

    def text(self) -> str:
        plan = self.plan
        return f"clone {plan.info.label} is independent: {size(plan.cost)} were copied; {state(plan.info)}"


class CommittedView(View, kind="clone-commit", document=documents.CommittedDocument, read_from="result"):
    """A new commit."""

    result: Committed

    def text(self) -> str:
        result = self.result
        return (
            f"commit {result.set.backup_id} of clone {result.info.label}: clone it with --from {result.set.backup_id}\n"
            "  the commit goes with the clone, unless another clone was made from it"
        )


class DestroyPlanView(View, kind="clone-destroy-plan", document=documents.DestroyDocument):
    """The plan to destroy a clone, or the clones of a set."""

    plans: Sequence[DestroyPlan]
    name: str

    def text(self) -> str:
        lines = [line for plan in self.plans for line in _steps(plan)]
        return "\n".join(lines) or f"there is no clone {self.name}; nothing to do"


class DestroyedView(View, kind="clone-destroyed", document=documents.DestroyDocument):
    """Destroyed clones."""

    plans: Sequence[DestroyPlan]
    name: str

    def text(self) -> str:
        if not self.plans:
            return f"there is no clone {self.name}"
        lines, shows_all = [], run_context.current_audience().sees_all
        for plan in self.plans:
            lines.append(f"clone {plan.info.label} was destroyed: {', '.join(plan.info.datasets)}")
            lines += [f"  {mount.describe()}: unmounted there, too" for mount in plan.elsewhere if shows_all]
            lines += [f"  commit {commit} was destroyed" for commit in plan.removal.steps.removed]
            lines += [f"  commit {commit} is now of {heir}" for commit, heir in _heirs(plan).items()]
        return "\n".join(lines)


def _steps(plan: DestroyPlan) -> list[str]:
    steps = plan.removal.steps
    lines = [f"end the server of clone {plan.info.label}, process {plan.info.pid}"] if plan.info.pid else []
    if not run_context.current_audience().sees_all:
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
    """Return a text about the clone that takes over each commit. Only administrators may see the name of this clone."""
    shows_all = run_context.current_audience().sees_all
    return {
        commit: f"clone {heir}" if shows_all else "another clone" for commit, heir in plan.removal.steps.kept.items()
    }


class ReapView(View, kind="reap", document=documents.ReapDocument):
    """The outcomes of a sweep."""

    outcomes: Sequence[ReapOutcome]

    @property
    def reaped(self) -> int:
        return sum(1 for item in self.outcomes if item.verdict is LeaseVerdict.REAP)

    def text(self) -> str:
        rows = [
            (item.what, item.name, item.verdict.value, item.reason + (f"; {item.error.message}" if item.error else ""))
            for item in self.outcomes
        ]
        return table(("WHAT", "NAME", "VERDICT", "WHY"), rows)


class ReapPlanView(ReapView, kind="reap-plan"):
    """The plan of a sweep."""

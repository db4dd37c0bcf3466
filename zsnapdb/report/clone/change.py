"""Views of a changed clone, and of the plan of a change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.report.clone.fields import CloneFields, clone_fields, port, state
from zsnapdb.report.view import View

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo
    from zsnapdb.jobs.clone.commits import Committed
    from zsnapdb.jobs.clone.detach import DetachPlan
    from zsnapdb.jobs.clone.plans import Intention
    from zsnapdb.jobs.clone.reset import ResetClone, ResetIntention


class ChangedDocument(TypedDict):
    """A clone after a change; `done` says which, as a participle."""

    done: str
    clone: CloneFields


class ResetDocument(ChangedDocument):
    """A clone that was reset. `way`: by `undo` of rows, `swap` for a waiting clone, or `replace` of its data.

    `undone`: the changes of rows that were undone (null: it was another way). `reason`: why it was no cheaper way.
    """

    way: str
    swap_seconds: float | None
    undone: int | None
    undone_seconds: float | None
    reason: str | None


class IntentionDocument(TypedDict):
    """What a change of a clone would do. `clone` is null if there is none yet."""

    what: str
    clone: CloneFields | None
    steps: list[str]


class ResetPlanDocument(TypedDict):
    """What a reset would do. `backup_id` is null if the snapshot set is taken at the reset.

    `way` and `reason` are those of a reset. `slot` is the id of the waiting clone that would take the place.
    """

    clone: CloneFields
    way: str
    slot: str | None
    backup_id: str | None
    snapshots: dict[str, str]
    original: bool
    drops: str | None
    undoes: int | None
    reason: str | None


class DetachDocument(TypedDict):
    """What detaching costs, or cost."""

    clone: CloneFields
    cost_bytes: int
    available_bytes: int


class CommittedDocument(TypedDict):
    """A new commit of a clone."""

    id: str
    clone: str
    message: str
    snapshots: dict[str, str]


@dataclass(frozen=True)
class ChangedView(View):
    """A clone after a change."""

    info: CloneInfo
    done: str
    """What was done, as a participle such as `started`."""
    kind: ClassVar[str] = "clone-changed"

    def text(self) -> str:
        info = self.info
        protected = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
        done = "not protected" if self.done == "protected" and not protected else self.done
        return (
            f"clone {info.label} is {done}: {state(info)}, {port(info)}, data of {info.backup_id}, lease until"
            f" {stamp(info.lease.expires)}{protected}"
        )

    def fields(self) -> ChangedDocument:
        return {
            "done": self.done,
            "clone": clone_fields(self.info),
        }


@dataclass(frozen=True)
class ResetView(View):
    """A clone that was reset, and in which way."""

    result: ResetClone
    kind: ClassVar[str] = "clone-reset"

    @property
    def _changed(self) -> ChangedView:
        info = self.result.info
        return ChangedView(info, "reset to the data it was created from" if info.has_original else "reset")

    def text(self) -> str:
        undone, reason = self.result.undone, self.result.reason
        lines = [self._changed.text()]
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

    def fields(self) -> ResetDocument:
        undone = self.result.undone
        return {
            **self._changed.fields(),
            "way": self.result.way.value,
            "swap_seconds": round(self.result.swap_seconds, 3) if self.result.swap_seconds is not None else None,
            "undone": undone.rows if undone is not None else None,
            "undone_seconds": round(undone.seconds, 3) if undone is not None else None,
            "reason": self.result.reason or None,
        }


@dataclass(frozen=True)
class IntentionView(View):
    """What a change would do."""

    intention: Intention
    what: str
    kind: ClassVar[str] = "clone-change-plan"

    def text(self) -> str:
        return "\n".join(self.intention.steps) or "nothing to do"

    def fields(self) -> IntentionDocument:
        intention = self.intention
        return {
            "what": self.what,
            "clone": clone_fields(intention.clone) if intention.clone is not None else None,
            "steps": list(intention.steps),
        }


@dataclass(frozen=True)
class ResetPlanView(View):
    """What a reset would do."""

    intention: ResetIntention
    kind: ClassVar[str] = "clone-reset-plan"

    def text(self) -> str:
        intention, plan = self.intention, self.intention.replaces
        label, reason = intention.info.label, intention.reason
        if intention.undoes is not None:
            return f"end the sessions of clone {label}, and undo {intention.undoes} changes of rows; its data stays"
        if intention.slot is not None:
            slot = intention.slot
            return (
                f"a waiting clone takes its place: {reason}\nend the server of clone {label}, and lead port"
                f" {intention.info.address} to {slot.label} of the pool, data as of {slot.backup_id}"
            )
        assert plan is not None
        lines = [f"its data is replaced: {reason}"] if reason else []
        lines += [f"zfs clone {name} ({role})" for role, name in sorted(plan.snapshots.items())]
        lines += (
            []
            if plan.snapshots
            else [
                f"receive the snapshot set {plan.set_id}, then clone it"
                if plan.set_id
                else "take a snapshot set now, then clone it"
            ]
        )
        if plan.is_original:
            lines.append(f"{plan.set_id} is the snapshot set that the clone was created from")
        if plan.drops:
            lines.append(f"destroy the live set {plan.drops}, of the data before, if no other clone uses it")
        return "\n".join(
            [
                *lines,
                (
                    f"end the server of clone {plan.info.label}, replace its data, start the server on port"
                    f" {plan.info.port} again"
                ),
            ]
        )

    def fields(self) -> ResetPlanDocument:
        intention, plan = self.intention, self.intention.replaces
        stays = intention.slot or intention.info
        return {
            "clone": clone_fields(intention.info),
            "way": intention.way.value,
            "slot": intention.slot.id if intention.slot is not None else None,
            "backup_id": (plan.set_id or None) if plan is not None else stays.backup_id,
            "snapshots": dict(plan.snapshots) if plan is not None else {},
            "original": plan is None or plan.is_original,
            "drops": (plan.drops or None) if plan is not None else None,
            "undoes": intention.undoes,
            "reason": intention.reason or None,
        }


@dataclass(frozen=True)
class DetachPlanView(View):
    """What detaching would cost."""

    plan: DetachPlan
    kind: ClassVar[str] = "clone-detach-plan"

    def text(self) -> str:
        plan = self.plan
        return (
            f"detaching clone {plan.info.label} copies {size(plan.cost)}; the pool has {size(plan.available)} free. The"
            " clone's server is stopped during the copy"
        )

    def fields(self) -> DetachDocument:
        return _cost_fields(self.plan)


@dataclass(frozen=True)
class DetachedView(View):
    """A clone that was detached: it depends on no snapshot."""

    plan: DetachPlan
    kind: ClassVar[str] = "clone-detached"

    def text(self) -> str:
        plan = self.plan
        return f"clone {plan.info.label} is independent: {size(plan.cost)} were copied; {state(plan.info)}"

    def fields(self) -> DetachDocument:
        return _cost_fields(self.plan)


@dataclass(frozen=True)
class CommittedView(View):
    """A new commit."""

    result: Committed
    kind: ClassVar[str] = "clone-commit"

    def text(self) -> str:
        result = self.result
        return (
            f"commit {result.set.backup_id} of clone {result.info.label}: clone it with --from {result.set.backup_id}\n"
            "  the commit goes with the clone, unless another clone was made from it"
        )

    def fields(self) -> CommittedDocument:
        result = self.result
        snapshots = {role: snapshot.full_name for role, snapshot in result.set.snapshots.items()}
        return {
            "id": result.set.backup_id,
            "clone": result.info.label,
            "message": result.message,
            "snapshots": snapshots,
        }


def _cost_fields(plan: DetachPlan) -> DetachDocument:
    return {"clone": clone_fields(plan.info), "cost_bytes": plan.cost, "available_bytes": plan.available}

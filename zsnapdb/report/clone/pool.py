"""Views of the pool of an instance: what filling it does, and did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.pool_filling import FilledPool
from zsnapdb.planning.clone.pool import PoolPlan
from zsnapdb.report.view import View


class DroppedSlotFields(TypedDict):
    """A clone that waited and goes."""

    name: str
    reason: str


class PoolDocument(TypedDict):
    """What filling a pool does, or did: the clones that wait on, that go, and that are made (null: only planned)."""

    waiting: list[str]
    dropped: list[DroppedSlotFields]
    makes: int
    made: list[str] | None
    short: str | None


def _fields(plan: PoolPlan, filled: FilledPool | None) -> PoolDocument:
    gone = None if filled is None else set(filled.dropped)
    return {
        "waiting": [slot.name for slot in plan.keeps],
        "dropped": [
            {"name": slot.name, "reason": reason} for slot, reason in plan.drops if gone is None or slot.name in gone
        ],
        "makes": plan.makes,
        "made": None if filled is None else [info.name for info in filled.made],
        "short": plan.short or None,
    }


def _short(plan: PoolPlan) -> list[str]:
    return [f"  no more: {plan.short}"] if plan.short else []


@dataclass(frozen=True)
class PoolPlanView(View):
    """What filling a pool would do."""

    plan: PoolPlan
    kind: ClassVar[str] = "clone-pool-plan"

    def text(self) -> str:
        plan = self.plan
        lines = [f"{len(plan.keeps)} clones wait, {len(plan.drops)} go, {plan.makes} are made"]
        lines += [f"  destroy {slot.name}: {reason}" for slot, reason in plan.drops]
        return "\n".join([*lines, *_short(plan)])

    def fields(self) -> PoolDocument:
        return _fields(self.plan, None)


@dataclass(frozen=True)
class FilledPoolView(View):
    """What filling a pool did."""

    filled: FilledPool
    kind: ClassVar[str] = "clone-pool"

    def text(self) -> str:
        plan, made = self.filled.plan, self.filled.made
        lines = [f"{len(plan.keeps) + len(made)} clones wait, {len(self.filled.dropped)} went, {len(made)} were made"]
        lines += [
            f"  {slot.name} was destroyed: {reason}" for slot, reason in plan.drops if slot.name in self.filled.dropped
        ]
        lines += [f"  {info.name} waits: data as of {info.backup_id}, port {info.port}" for info in made]
        return "\n".join([*lines, *_short(plan)])

    def fields(self) -> PoolDocument:
        return _fields(self.filled.plan, self.filled)

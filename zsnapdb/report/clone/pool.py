"""Views of the filling of an instance's pool: the plan and the result."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.documents.clone import PoolDocument
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.pool_filling import FilledPool
from zsnapdb.planning.clone.pool import PoolPlan, PoolSlot
from zsnapdb.report.view import View


def _short(plan: PoolPlan) -> list[str]:
    return [f"  no more: {plan.short}"] if plan.short else []


class PoolPlanView(View, kind="clone-pool-plan", document=PoolDocument):
    """The plan to fill a pool."""

    plan: PoolPlan
    made: None = None

    @property
    def drops(self) -> Sequence[tuple[PoolSlot, str]]:
        return self.plan.drops

    def text(self) -> str:
        plan = self.plan
        lines = [f"{len(plan.keeps)} clones wait, {len(plan.drops)} go, {plan.makes} are made"]
        lines += [f"  destroy {slot.name}: {reason}" for slot, reason in plan.drops]
        return "\n".join([*lines, *_short(plan)])


class FilledPoolView(View, kind="clone-pool", document=PoolDocument):
    """A filled pool."""

    filled: FilledPool

    @property
    def plan(self) -> PoolPlan:
        return self.filled.plan

    @property
    def made(self) -> Sequence[CloneInfo]:
        return self.filled.made

    @property
    def drops(self) -> Sequence[tuple[PoolSlot, str]]:
        return [(slot, reason) for slot, reason in self.plan.drops if slot.name in self.filled.dropped]

    def text(self) -> str:
        plan, made = self.plan, self.made
        lines = [f"{len(plan.keeps) + len(made)} clones wait, {len(self.filled.dropped)} went, {len(made)} were made"]
        lines += [f"  {slot.name} was destroyed: {reason}" for slot, reason in self.drops]
        lines += [f"  {info.name} waits: data as of {info.backup_id}, port {info.port}" for info in made]
        return "\n".join([*lines, *_short(plan)])

"""What gives an instance up on a host, and what is left to the person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from typing_extensions import TypedDict

from zsnapdb.planning.setup.removal import RemovalPlan, RemovalStep
from zsnapdb.report.document import Dumped
from zsnapdb.report.view import View


class RemovalDocument(TypedDict):
    """The instance and every step that gives it up, or, after a removal, those that are left."""

    instance: str
    configuration: str
    notes: list[str]
    steps: list[Annotated[dict[str, Any], Dumped(RemovalStep)]]


@dataclass(frozen=True)
class RemovalPlanView(View):
    """Every step. Nothing was changed."""

    plan: RemovalPlan
    kind: ClassVar[str] = "setup-removal-plan"

    def text(self) -> str:
        return "\n".join([*self.plan.notes, *_lines(self.plan.steps)])

    def fields(self) -> RemovalDocument:
        return _fields(self.plan, self.plan.steps)


@dataclass(frozen=True)
class RemovalView(View):
    """What was done, and the steps that are left to the person."""

    plan: RemovalPlan
    kind: ClassVar[str] = "setup-removal"

    def text(self) -> str:
        done = [f"done: {step.title}" for step in self.plan.steps if step.action is not None]
        return "\n".join([*done, *self.plan.notes, "what is left to you:", *_lines(_left(self.plan))])

    def fields(self) -> RemovalDocument:
        return _fields(self.plan, _left(self.plan))


def _left(plan: RemovalPlan) -> list[RemovalStep]:
    return [step for step in plan.steps if step.action is None]


def _lines(steps: Sequence[RemovalStep]) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, 1):
        own = " (setup does this)" if step.action is not None else ""
        lines.append(f"{number:>2}. {step.title}{own}")
        lines += [f"      {line}" for line in (*step.lines, *step.files)]
    return lines


def _fields(plan: RemovalPlan, steps: Sequence[RemovalStep]) -> RemovalDocument:
    facts = plan.facts
    return {
        "instance": facts.instance,
        "configuration": facts.configuration,
        "notes": list(plan.notes),
        "steps": [asdict(step) for step in steps],
    }

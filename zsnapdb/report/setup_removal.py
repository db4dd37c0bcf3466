"""What gives an instance up on a host, and what is left to the person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.setup import RemovalDocument
from zsnapdb.planning.setup.removal import RemovalPlan, RemovalStep
from zsnapdb.report.view import View


@dataclass(frozen=True)
class RemovalPlanView(View):
    """Every step. Nothing was changed."""

    plan: RemovalPlan
    kind: ClassVar[str] = "setup-removal-plan"
    document_class = RemovalDocument

    def text(self) -> str:
        return "\n".join([*self.plan.notes, *_lines(self.steps)])

    @property
    def steps(self) -> Sequence[RemovalStep]:
        """All of them."""
        return self.plan.steps


@dataclass(frozen=True)
class RemovalView(View):
    """What was done, and the steps that are left to the person."""

    plan: RemovalPlan
    kind: ClassVar[str] = "setup-removal"
    document_class = RemovalDocument

    def text(self) -> str:
        done = [f"done: {step.title}" for step in self.plan.steps if step.action is not None]
        return "\n".join([*done, *self.plan.notes, "what is left to you:", *_lines(self.steps)])

    @property
    def steps(self) -> Sequence[RemovalStep]:
        """Those that are left."""
        return [step for step in self.plan.steps if step.action is None]


def _lines(steps: Sequence[RemovalStep]) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, 1):
        own = " (setup does this)" if step.action is not None else ""
        lines.append(f"{number:>2}. {step.title}{own}")
        lines += [f"      {line}" for line in (*step.lines, *step.files)]
    return lines

"""The plan of a drill of a virtual machine. Its evidence is shown like that of every drill."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.trial.machine_drill import MachineDrillPlan
from zsnapdb.report.view import View


class MachineDrillPlanDocument(TypedDict):
    """What a drill of a virtual machine would do. `patience` is in seconds.

    `client` asks the server inside (null: none is asked). `has_bounds`: what the server had published is known.
    `sample_bytes` null: all tables are checked.
    """

    instance: str
    backup_id: str
    grade: str
    steps: list[str]
    dataset: str
    domain: str
    xml: str
    seed: int
    patience: float
    client: list[str] | None
    has_bounds: bool
    probes: int
    sample_bytes: int | None
    notes: list[str]


@dataclass(frozen=True)
class MachineDrillPlanView(View):
    """What a drill of a virtual machine would do."""

    plan: MachineDrillPlan
    kind: ClassVar[str] = "machine-drill-plan"

    def text(self) -> str:
        plan, restore = self.plan, self.plan.restore
        steps = [
            *(step.describe() for step in restore.steps),
            f"start {plan.define.domain} without a network, and wait up to {plan.patience:g} s for its guest agent",
            *self._questions(),
            f"write the evidence to the repository, remove {plan.define.domain}, destroy {plan.place.container}",
        ]
        return "\n".join(
            [
                (
                    f"drill {restore.instance} at {plan.requested} (backup {restore.backup_id}) in"
                    f" {plan.place.container}, seed {plan.seed}"
                ),
                f"  grade     {restore.grade}: {restore.grade_reason}",
                *(f"  note      {note}" for note in restore.notes),
                *(f"  {number}. {step}" for number, step in enumerate(steps, 1)),
            ]
        )

    def _questions(self) -> list[str]:
        plan = self.plan
        if plan.client is None:
            return []
        part = "all" if plan.budget is None else f"about {size(plan.budget)}"
        return [
            f"ask its server: {shlex.join(plan.client)}; compare its position",
            f"CHECK TABLE of {part} of its tables",
            f"run {len(plan.probes)} configured probe(s)",
        ]

    def fields(self) -> MachineDrillPlanDocument:
        plan = self.plan
        return {
            "instance": plan.restore.instance,
            "backup_id": plan.restore.backup_id,
            "grade": plan.restore.grade,
            "steps": [step.name for step in plan.restore.steps],
            "dataset": plan.place.container,
            "domain": plan.define.domain,
            "xml": plan.define.xml,
            "seed": plan.seed,
            "patience": plan.patience,
            "client": list(plan.client) if plan.client is not None else None,
            "has_bounds": plan.server is not None,
            "probes": len(plan.probes),
            "sample_bytes": plan.budget,
            "notes": list(plan.restore.notes),
        }

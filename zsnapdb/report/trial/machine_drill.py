"""The plan of a drill of a virtual machine. Its evidence is shown like that of every drill."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import size
from zsnapdb.documents.trial import MachineDrillPlanDocument
from zsnapdb.jobs.trial.machine_drill import MachineDrillPlan
from zsnapdb.report.view import View


@dataclass(frozen=True)
class MachineDrillPlanView(View):
    """What a drill of a virtual machine would do."""

    plan: MachineDrillPlan
    kind: ClassVar[str] = "machine-drill-plan"
    document_class = MachineDrillPlanDocument
    read_from = "plan"

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

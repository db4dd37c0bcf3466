"""Restores of virtual machines and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import size
from zsnapdb.documents.restore import MachineAbandonedDocument, MachineRestoreDocument, MachineRestorePlanDocument
from zsnapdb.jobs.restore.machine_run import MachineRestoreResult
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.machine import MachineRestorePlan, MachineStep
from zsnapdb.planning.restore.steps import Receive
from zsnapdb.report.view import View


def _machine_step(step: MachineStep) -> str:
    text = f"{step.name}: {step.describe()}"
    return f"{text}, {size(step.stored_bytes)} to fetch" if isinstance(step, Receive) else text


@dataclass(frozen=True)
class MachineRestorePlanView(View):
    """What a restore of a machine would do, and the findings of its preflight."""

    plan: MachineRestorePlan
    findings: Sequence[FitnessFinding] = ()
    kind: ClassVar[str] = "machine-restore-plan"
    document_class = MachineRestorePlanDocument

    def text(self) -> str:
        plan = self.plan
        lines = [
            f"restore the machine {plan.original} of {plan.instance} to {plan.top}, from backup {plan.backup_id}",
            f"  grade     {plan.grade}: {plan.grade_reason}",
            *(f"  note      {note}" for note in plan.notes),
            *(f"  {number}. {_machine_step(step)}" for number, step in enumerate(plan.steps, 1)),
        ]
        lines += [
            f"  {finding.severity.value:8s}  {finding.what}: {finding.detail}"
            + (f" ({finding.hint})" if finding.hint else "")
            for finding in self.findings
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class MachineRestoreView(View):
    """A restore of a machine that is finished, or that was stopped before a step."""

    result: MachineRestoreResult
    kind: ClassVar[str] = "machine-restore"
    document_class = MachineRestoreDocument
    read_from = "result"

    def text(self) -> str:
        plan, following = self.result.plan, self.result.next_step
        if following is not None:
            waits = f"the restore to {plan.top} waits before {_machine_step(following)}"
            return f"{waits}\ncontinue with --resume --target {plan.top}"
        define = plan.define
        lines = [
            f"backup {plan.backup_id} of {plan.instance} is restored to {plan.top}",
            f"  grade     {plan.grade}: {plan.grade_reason}",
            f"  took      {sum(done.seconds for done in self.result.done):.1f} s",
        ]
        if define is not None:
            lines.append(f"  domain    {define.domain} ({define.uuid}) is defined and off; its links are down")
            lines.append(
                f"  start it  with `virsh start {define.domain}`; inside it is {plan.original}, with its host keys"
            )
        return "\n".join([*lines, *(f"  note      {note}" for note in plan.notes)])


@dataclass(frozen=True)
class MachineAbandonedView(View):
    """An abandoned restore of a machine."""

    plan: MachineRestorePlan
    kind: ClassVar[str] = "machine-restore-abandoned"
    document_class = MachineAbandonedDocument

    def text(self) -> str:
        return f"the restore of {self.plan.instance} to {self.plan.top} is abandoned; its zvols are destroyed"

"""Restores of virtual machines and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import size
from zsnapdb.jobs.restore.machine_run import MachineRestoreResult
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.machine import MachineRestorePlan, MachineStep
from zsnapdb.planning.restore.steps import Receive
from zsnapdb.report.findings import FindingFields, finding_fields
from zsnapdb.report.view import View


class RestoredDomainFields(TypedDict):
    """The domain that a restore defines."""

    name: str
    uuid: str
    xml: str


class MachineRestoreStepFields(TypedDict):
    """A step of the restore of a machine."""

    name: str
    text: str


class MachineRestoreFields(TypedDict):
    """What the restore of a machine makes of what."""

    restore_id: str
    instance: str
    backup_id: str
    requested: str
    source: str
    grade: str
    top: str
    datasets: dict[str, str]
    domain: RestoredDomainFields | None
    notes: list[str]
    steps: list[MachineRestoreStepFields]


class MachineRestorePlanDocument(MachineRestoreFields):
    """What a restore of a machine would do, and the findings of its preflight."""

    target: str
    findings: list[FindingFields]


class MachineRestoreDocument(MachineRestoreFields):
    """A restore of a machine that is finished, or that waits before `next_step`."""

    finished: bool
    next_step: str | None
    seconds: dict[str, float]


class MachineAbandonedDocument(TypedDict):
    """An abandoned restore of a machine."""

    top: str
    backup_id: str


def _step(step: MachineStep) -> str:
    text = f"{step.name}: {step.describe()}"
    return f"{text}, {size(step.stored_bytes)} to fetch" if isinstance(step, Receive) else text


def _fields(plan: MachineRestorePlan) -> MachineRestoreFields:
    define = plan.define
    return {
        "restore_id": plan.restore_id,
        "instance": plan.instance,
        "backup_id": plan.backup_id,
        "requested": plan.requested,
        "source": "vm",
        "grade": plan.grade,
        "top": plan.top,
        "datasets": dict(plan.datasets),
        "domain": {"name": define.domain, "uuid": define.uuid, "xml": define.xml} if define is not None else None,
        "notes": list(plan.notes),
        "steps": [{"name": step.name, "text": step.describe()} for step in plan.steps],
    }


@dataclass(frozen=True)
class MachineRestorePlanView(View):
    """What a restore of a machine would do, and the findings of its preflight."""

    plan: MachineRestorePlan
    findings: Sequence[FitnessFinding] = ()
    kind: ClassVar[str] = "machine-restore-plan"

    def text(self) -> str:
        plan = self.plan
        lines = [
            f"restore the machine {plan.original} of {plan.instance} to {plan.top}, from backup {plan.backup_id}",
            f"  grade     {plan.grade}: {plan.grade_reason}",
            *(f"  note      {note}" for note in plan.notes),
            *(f"  {number}. {_step(step)}" for number, step in enumerate(plan.steps, 1)),
        ]
        lines += [
            f"  {finding.severity.value:8s}  {finding.what}: {finding.detail}"
            + (f" ({finding.hint})" if finding.hint else "")
            for finding in self.findings
        ]
        return "\n".join(lines)

    def fields(self) -> MachineRestorePlanDocument:
        return {**_fields(self.plan), "target": self.plan.backup_id, "findings": finding_fields(self.findings)}


@dataclass(frozen=True)
class MachineRestoreView(View):
    """A restore of a machine that is finished, or that was stopped before a step."""

    result: MachineRestoreResult
    kind: ClassVar[str] = "machine-restore"

    def text(self) -> str:
        plan, following = self.result.plan, self.result.next_step
        if following is not None:
            return (
                f"the restore to {plan.top} waits before {_step(following)}\ncontinue with --resume --target {plan.top}"
            )
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

    def fields(self) -> MachineRestoreDocument:
        following = self.result.next_step
        return {
            **_fields(self.result.plan),
            "finished": following is None,
            "next_step": following.name if following is not None else None,
            "seconds": {done.step: done.seconds for done in self.result.done},
        }


@dataclass(frozen=True)
class MachineAbandonedView(View):
    """An abandoned restore of a machine."""

    plan: MachineRestorePlan
    kind: ClassVar[str] = "machine-restore-abandoned"

    def text(self) -> str:
        return f"the restore of {self.plan.instance} to {self.plan.top} is abandoned; its zvols are destroyed"

    def fields(self) -> MachineAbandonedDocument:
        return {"top": self.plan.top, "backup_id": self.plan.backup_id}

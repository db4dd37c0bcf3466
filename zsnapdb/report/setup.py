"""The plan of a setup, and what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from typing_extensions import TypedDict

from zsnapdb.documents.trial import DrillDocument
from zsnapdb.jobs.backup.run import BackupResult
from zsnapdb.jobs.setup.proof import ProofResult, SetupCheck
from zsnapdb.jobs.setup.steps import SetupResult
from zsnapdb.planning.setup.facts import FoundServer
from zsnapdb.planning.setup.plan import SetupPlan, SetupStep
from zsnapdb.report.backup import BackupDocument, BackupView
from zsnapdb.report.doctor import DoctorDocument, DoctorView
from zsnapdb.report.document import Dumped
from zsnapdb.report.trial.drill import DrillView
from zsnapdb.report.units import paragraph
from zsnapdb.report.view import View


class SetupPlanDocument(TypedDict):
    """What was found on the host, and every step."""

    way: str
    server: Annotated[dict[str, Any], Dumped(FoundServer)] | None
    notes: list[str]
    refusals: list[str]
    configuration: str
    identity: str | None
    steps: list[Annotated[dict[str, Any], Dumped(SetupStep)]]


class DoctorProofFields(DoctorDocument):
    """What the doctor said at the end of a setup."""

    kind: Literal["doctor"]


class BackupProofFields(BackupDocument):
    """The first backup."""

    kind: Literal["backup"]


class DrillProofFields(DrillDocument):
    """The first drill."""

    kind: Literal["drill"]


class SetupDocument(SetupPlanDocument):
    """What was done, the results that prove it, and the steps that are left."""

    done: list[str]
    recipient: str | None
    signer: str | None
    proof: list[DoctorProofFields | BackupProofFields | DrillProofFields]


@dataclass(frozen=True)
class SetupPlanView(View):
    """What was found and every step. Nothing was changed."""

    plan: SetupPlan
    kind: ClassVar[str] = "setup-plan"

    def text(self) -> str:
        return "\n".join([*_head(self.plan), *_steps(self.plan.steps)])

    def fields(self) -> SetupPlanDocument:
        return _fields(self.plan, self.plan.steps)


@dataclass(frozen=True)
class SetupView(View):
    """What was done, the results of the steps that prove it, and the steps that are left to the person."""

    result: SetupResult
    proof: Sequence[ProofResult] = ()
    kind: ClassVar[str] = "setup"

    def text(self) -> str:
        plan = self.result.plan
        lines = [*_head(plan), *(f"done: {step.title}" for step in plan.steps if step.action is not None)]
        if plan.identity is not None:
            lines += [
                f"Without {plan.identity} nobody can read a backup: keep a copy where this host is not.",
                f"its recipient is {self.result.recipient}",
            ]
        if plan.signing_key is not None:
            lines += [
                f"This host believes only what {plan.signing_key} signs. A host that reads the repository needs:",
                f'signers = ["{self.result.signer}"]',
            ]
        left = _left(plan)
        return "\n".join([*lines, *(["what is left to do:", *_steps(left)] if left else ["nothing is left to do"])])

    def fields(self) -> SetupDocument:
        plan = self.result.plan
        done = [step.action.value for step in plan.steps if step.action is not None]
        proof = [_proof_fields(result) for result in self.proof]
        return {
            **_fields(plan, _left(plan)),
            "done": done,
            "recipient": self.result.recipient,
            "signer": self.result.signer,
            "proof": proof,
        }


def proof_view(result: ProofResult) -> View:
    """Return the view of a step that proves the setup: that of the command which does the same."""
    if isinstance(result, SetupCheck):
        return DoctorView([result.diagnosis])
    return BackupView(result) if isinstance(result, BackupResult) else DrillView(result)


def _proof_fields(result: ProofResult) -> Any:
    if isinstance(result, SetupCheck):
        return {"kind": "doctor", **DoctorView([result.diagnosis]).fields()}
    if isinstance(result, BackupResult):
        return {"kind": "backup", **BackupView(result).fields()}
    return {"kind": "drill", **DrillView(result).fields()}


def _left(plan: SetupPlan) -> list[SetupStep]:
    return [step for step in plan.steps if step.action is None]


def _head(plan: SetupPlan) -> list[str]:
    server_lines = [_server(plan.server)] if plan.server is not None else []
    refused = [
        *(f"refused: {why}" for why in plan.refusals),
        *([f"hint: {plan.refusal_hint}"] if plan.refusals else []),
    ]
    return [*server_lines, *(line for note in plan.notes for line in paragraph(" " * _indent(note), note)), *refused]


def _indent(note: str) -> int:
    return len(note) - len(note.lstrip())


def _server(server: FoundServer) -> str:
    version = f" {server.version}" if server.version else ""
    where = f"on {server.dataset}" if server.is_on_zfs else f"on {server.filesystem}"
    return (
        f"server {server.flavour.value}{version}, process {server.pid}, {server.sockets[0]}, {server.datadir} {where}"
    )


def _steps(steps: Sequence[SetupStep]) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, 1):
        own = " (setup does this)" if step.action is not None else ""
        lines.append(f"{number:>2}. {step.title}{own}{f': {step.path}' if step.path else ''}")
        lines += [f"      {line}" for line in (*step.lines, *step.text.rstrip("\n").split("\n")) if line]
    return lines


def _fields(plan: SetupPlan, steps: Sequence[SetupStep]) -> SetupPlanDocument:
    server = plan.server
    server_fields = {**asdict(server), "flavour": server.flavour.value} if server is not None else None
    return {
        "way": plan.way.value,
        "server": server_fields,
        "notes": list(plan.notes),
        "refusals": list(plan.refusals),
        "configuration": plan.configuration,
        "identity": plan.identity,
        "steps": [asdict(step) for step in steps],
    }

"""The plan of a setup, and what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.setup import SetupDocument, SetupPlanDocument
from zsnapdb.jobs.backup.run import BackupResult
from zsnapdb.jobs.setup.steps import ProofResult, SetupCheck, SetupResult
from zsnapdb.planning.setup.facts import FoundServer
from zsnapdb.planning.setup.plan import SetupPlan, SetupStep
from zsnapdb.report.backup import BackupView
from zsnapdb.report.doctor import DoctorView
from zsnapdb.report.trial.drill import DrillView
from zsnapdb.report.units import paragraph
from zsnapdb.report.view import Fields, View


@dataclass(frozen=True)
class SetupPlanView(View):
    """What was found and every step. Nothing was changed."""

    plan: SetupPlan
    kind: ClassVar[str] = "setup-plan"
    document_class = SetupPlanDocument

    def text(self) -> str:
        return "\n".join([*_head(self.plan), *_steps(self.steps)])

    @property
    def steps(self) -> Sequence[SetupStep]:
        """All of them."""
        return self.plan.steps


@dataclass(frozen=True)
class SetupView(View):
    """What was done, the results of the steps that prove it, and the steps that are left to the person."""

    result: SetupResult
    proof: Sequence[ProofResult] = ()
    kind: ClassVar[str] = "setup"
    document_class = SetupDocument

    def text(self) -> str:
        plan = self.plan
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
        left = self.steps
        return "\n".join([*lines, *(["what is left to do:", *_steps(left)] if left else ["nothing is left to do"])])

    @property
    def plan(self) -> SetupPlan:
        """The plan that was carried out."""
        return self.result.plan

    @property
    def steps(self) -> Sequence[SetupStep]:
        """Those that are left."""
        return [step for step in self.plan.steps if step.action is None]

    @property
    def done(self) -> Sequence[str]:
        """What setup itself did."""
        return [step.action.value for step in self.plan.steps if step.action is not None]

    @property
    def proved(self) -> Sequence[Fields]:
        """The documents of the commands that do the same as the steps that prove it."""
        return [{"kind": view.kind, **view.fields()} for view in map(proof_view, self.proof)]


def proof_view(result: ProofResult) -> View:
    """Return the view of a step that proves the setup: that of the command which does the same."""
    if isinstance(result, SetupCheck):
        return DoctorView([result.diagnosis])
    return BackupView(result) if isinstance(result, BackupResult) else DrillView(result)


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

"""Views of a setup and its removal, a checked configuration, examples, grants, and sizing estimates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.quantities import format_duration, format_setting, size
from zsnapdb.config.effective import EffectiveSetting
from zsnapdb.config.settings import InstanceSettings, Settings
from zsnapdb.documents import host as documents
from zsnapdb.documents.host import SizingDocument
from zsnapdb.jobs.backup.run import BackupResult
from zsnapdb.jobs.setup.examples import Example
from zsnapdb.jobs.setup.steps import ProofResult, SetupCheck, SetupResult
from zsnapdb.planning.repository.sizing import BACKUP, NOTE, RESTORE, STORED, SizingEstimate
from zsnapdb.planning.setup.facts import FoundServer
from zsnapdb.planning.setup.plan import SetupPlan, SetupStep
from zsnapdb.planning.setup.removal import RemovalPlan, RemovalStep
from zsnapdb.report.backup import BackupView
from zsnapdb.report.doctor import DoctorView
from zsnapdb.report.trial import DrillView
from zsnapdb.report.view import Fields, Part, Table, TabularView, View, paragraph


class SetupPlanView(View, kind="setup-plan", document=documents.SetupPlanDocument):
    """The server that was found, and the planned steps. Nothing was changed."""

    plan: SetupPlan

    def text(self) -> str:
        return "\n".join([*_head(self.plan), *_steps(self.steps)])

    @property
    def steps(self) -> Sequence[SetupStep]:
        return self.plan.steps


class SetupView(View, kind="setup", document=documents.SetupDocument):
    """The completed steps, the results of the steps that prove the setup, and the steps that the user must do."""

    result: SetupResult
    proof: Sequence[ProofResult] = ()

    def text(self) -> str:
        plan = self.plan
        lines = [*_head(plan), *(f"done: {step.title}" for step in plan.steps if step.action is not None)]
        if plan.identity is not None:
            lines += [
                f"Without {plan.identity} no backup can be read: keep a copy outside this host.",
                f"its recipient is {self.result.recipient}",
            ]
        if plan.signing_key is not None:
            signers = plan.around.signers or (str(self.result.signer),)
            who = f"{plan.signing_key} signs" if len(signers) == 1 else "the keys of these signers sign"
            lines += [
                f"This host believes only what {who}. A host that reads the repository needs:",
                f"signers = {json.dumps(signers)}",
            ]
        left = self.steps
        return "\n".join([*lines, *(["what is left to do:", *_steps(left)] if left else ["nothing is left to do"])])

    @property
    def plan(self) -> SetupPlan:
        return self.result.plan

    @property
    def steps(self) -> Sequence[SetupStep]:
        return [step for step in self.plan.steps if step.action is None]

    @property
    def done(self) -> Sequence[str]:
        return [step.action.value for step in self.plan.steps if step.action is not None]

    @property
    def proved(self) -> Sequence[Fields]:
        """The documents of the steps that prove the setup. The corresponding commands print the same documents."""
        return [{"kind": view.kind, **view.fields()} for view in map(proof_view, self.proof)]


def proof_view(result: ProofResult) -> View:
    """Return the view of a step that proves the setup. It is the view of the corresponding command."""
    if isinstance(result, SetupCheck):
        return DoctorView([result.diagnosis])
    return BackupView(result) if isinstance(result, BackupResult) else DrillView(result)


def _head(plan: SetupPlan) -> list[str]:
    server_lines = [_server(plan.server)] if plan.server is not None else []
    refused = [
        *(f"refused: {why}" for why in plan.refusals),
        *([f"hint: {plan.refusal_hint}"] if plan.refusals else []),
    ]
    return [
        *server_lines,
        *(line for note in plan.notes for line in paragraph(" " * (len(note) - len(note.lstrip())), note)),
        *refused,
    ]


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


class RemovalPlanView(View, kind="setup-removal-plan", document=documents.RemovalDocument):
    """The planned steps of a removal. Nothing was changed."""

    plan: RemovalPlan

    def text(self) -> str:
        return "\n".join([*self.plan.notes, *_lines(self.steps)])

    @property
    def steps(self) -> Sequence[RemovalStep]:
        return self.plan.steps


class RemovalView(View, kind="setup-removal", document=documents.RemovalDocument):
    """The completed steps of a removal, and the steps that the user must do."""

    plan: RemovalPlan

    def text(self) -> str:
        done = [f"done: {step.title}" for step in self.plan.steps if step.action is not None]
        return "\n".join([*done, *self.plan.notes, "what is left to you:", *_lines(self.steps)])

    @property
    def steps(self) -> Sequence[RemovalStep]:
        return [step for step in self.plan.steps if step.action is None]


def _lines(steps: Sequence[RemovalStep]) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, 1):
        own = " (setup does this)" if step.action is not None else ""
        lines.append(f"{number:>2}. {step.title}{own}")
        lines += [f"      {line}" for line in (*step.lines, *step.files)]
    return lines


def _place(own: InstanceSettings) -> str:
    if own.vm is not None:
        return f"virtual machine {own.vm.domain}"
    where = own.socket or own.host
    return f"{own.user} at {where}" if where is not None else "no server on this host"


class ConfigurationView(View, kind="configuration", document=documents.ConfigurationDocument, read_from="settings"):
    """A valid configuration file: its instances and repositories."""

    settings: Settings

    def text(self) -> str:
        lines = [
            f"instance {name}: {_place(own)}, to repository {own.repository}"
            for name, own in self.settings.instance.items()
        ]
        return "\n".join(["the configuration is well-formed", *lines, *self.notes()])

    def notes(self) -> list[str]:
        """Return a note on each ineffective repository setting, and on each instance that developers cannot clone."""
        notes = [f"note: {limit}" for limit in map(self.settings.limit_of_service, self.settings.instance) if limit]
        for name, own in self.settings.repository.items():
            if own.idle_keys:
                notes.append(
                    f'note: the url of repository "{name}" is another store: {", ".join(own.idle_keys)} has no effect'
                )
            elif own.flat_keys:
                place = f"[repository.{name}.s3]"
                notes.append(f'note: {", ".join(own.flat_keys)} of repository "{name}" belong in the table {place}')
        return notes


class EffectiveConfigurationView(
    TabularView, kind="effective-configuration", document=documents.EffectiveConfigurationDocument
):
    """The settings in effect and the origin of each."""

    file: Path
    chosen_by: str
    settings: Sequence[EffectiveSetting]

    def parts(self) -> Sequence[Part]:
        rows = [(one.key, _setting_text(one), self._origin(one)) for one in self.settings]
        chosen = {"environment": "ZSNAPDB_CONFIG names it", "option": "--config names it"}
        head = f"file {self.file} ({chosen.get(self.chosen_by, 'the default file')})"
        return [head, Table(("SETTING", "VALUE", "FROM"), rows, "no setting")]

    def _origin(self, one: EffectiveSetting) -> str:
        return f"{self.file.name}:{one.line}" if one.line is not None else one.origin.value


def _setting_text(one: EffectiveSetting) -> str:
    if one.value is not None:
        return one.value
    return "(a secret, not shown)" if one.hidden else "(not set)"


class ExamplesView(View, kind="examples", document=documents.ExamplesDocument):
    """The names of all examples."""

    examples: tuple[Example, ...]

    def text(self) -> str:
        return "\n".join(example.name for example in self.examples)


class ExampleView(View, kind="example", document=documents.ExampleDocument, read_from="example"):
    """The text of one example."""

    example: Example

    def text(self) -> str:
        return self.example.text.rstrip("\n")


class GrantsView(View, kind="grants", document=documents.GrantsDocument):
    """The statements that create the account of zsnapdb on a server."""

    flavour: Flavour
    statements: str

    def text(self) -> str:
        return self.statements.rstrip("\n")


class SizingView(View, kind="sizing", document=SizingDocument, read_from="estimate"):
    """The estimated hours, memory, objects, requests and cost for a server."""

    estimate: SizingEstimate

    def text(self) -> str:
        one, load = self.estimate, self.estimate.workload
        kept = one.kept
        every, full_every = format_setting(load.every), format_setting(load.full_every)
        full, increments, binlogs = map(size, (one.stored_full, one.stored_increments, one.stored_binlogs))
        lines = [
            (
                f"data        {size(load.size)}, {size(round(load.change))} changed and {size(round(load.binlog))} of"
                f" binlog a day"
            ),
            (
                f"backups     every {every}, full every {full_every}; the policy"
                f" keeps at most {kept.full} full, {kept.increments} increments, {kept.days:.0f} days"
            ),
            f"full        {format_duration(one.full_seconds)}, {one.full_objects} objects",
            f"increment   {format_duration(one.increment_seconds)}",
            f"restore     {format_duration(one.restore_seconds)}, without the replay of binlogs",
            f"memory      backup {size(one.backup_memory)}, restore {size(one.restore_memory)}",
            (f"stored      {size(one.stored)}: full {full}, increments {increments}, binlogs {binlogs}"),
            f"objects     {one.objects}",
            f"requests    {one.requests.put:.0f} PUT, {one.requests.list:.0f} LIST, {one.requests.get:.0f} GET a month",
        ]
        for cost in one.costs:
            money = cost.price.currency
            lines.append(
                f"cost        {cost.month:.2f} {money} a month: storage {cost.storage:.2f}, requests"
                f" {cost.requests:.2f}; {cost.restore:.2f} {money} for a restore elsewhere ({cost.price.name},"
                f" {cost.price.date}, {cost.price.source})"
            )
        return "\n".join([*lines, *_basis(load.line)])


def _basis(line: float) -> Sequence[str]:
    """Return the measurements on which the figures are based."""
    return [
        *paragraph("basis       ", f"a line of {size(round(line))}/s; the slower one of line and program decides"),
        *paragraph("            ", f"backup {size(round(BACKUP.value))}/s: {BACKUP.source}"),
        *paragraph("            ", f"restore {size(round(RESTORE.value))}/s: {RESTORE.source}"),
        *paragraph("            ", f"stored as {STORED.value}: {STORED.source}"),
        *paragraph("            ", NOTE),
    ]

"""`zsnapdb restore` of an instance that is a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import typer

from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.restore.machine import MachineRestoreRequest


@dataclass(frozen=True)
class MachineOptions:
    """The options of the command that a restore of a machine has."""

    to: str
    target: str | None
    name: str | None
    accepts_older: bool
    stop_after: str | None
    resume: bool
    abandon: bool
    step: bool
    with_foreign_snapshots: bool
    plan: bool
    once: str | None = None


def restore_machine(settings: Settings, instance: Instance, options: MachineOptions, json: bool) -> None:
    """Restore, resume, abandon, or show the plan, as the options say."""
    from zsnapdb.jobs.restore import machine as job
    from zsnapdb.jobs.restore.machine import MachineRestoreRequest
    from zsnapdb.report.restore import result as report

    may_go = options.with_foreign_snapshots
    if options.abandon:
        given_up = job.abandon(settings, instance, options.target, with_foreign_snapshots=may_go)
        show(report.MachineAbandonedView(given_up), json)
        return
    confirm = confirm_on_terminal if options.step else always_continue
    request = MachineRestoreRequest(options.to, options.target, options.name, options.accepts_older)
    if options.plan:
        _show_machine_plan(settings, instance, request, json)
        return

    def make() -> CommandAnswer:
        result = (
            job.resume(settings, instance, options.target, confirm, options.stop_after, with_foreign_snapshots=may_go)
            if options.resume
            else job.restore(settings, instance, request, confirm, options.stop_after)
        )
        return CommandAnswer(report.MachineRestoreView(result))

    def made() -> CommandAnswer | None:
        from zsnapdb.jobs.restore import once as of_run

        known = of_run.restored_machine(settings, instance, confirm, options.stop_after)
        return CommandAnswer(report.MachineRestoreView(known)) if known is not None else None

    about = about_restore(instance.name, options.to, options.target or options.name)
    command = Repeatable("restore", about, made=made, tell=instance.events.tell)
    show_once(instance.host, options.once, command, make, json)


def about_restore(instance: str, to: str, place: str | None, handover: str = "stopped") -> str:
    """Return what a restore is about, in words that are the same if the command is repeated."""
    where = f" as {place}" if place else ""
    return f"{instance} to {to}{where}, {handover}"


def _show_machine_plan(settings: Settings, instance: Instance, request: MachineRestoreRequest, json: bool) -> None:
    """Show the plan and the findings of its preflight. Exit as the restore would if it were refused."""
    from zsnapdb.jobs.restore import machine as job
    from zsnapdb.jobs.restore.preflight import expected_error
    from zsnapdb.report.restore import result as report

    repository = instance.open_repository()
    planned = job.make(settings, instance, repository, request)
    findings = job.examine(job.MachineWork(settings, instance, repository, planned))
    show(report.MachineRestorePlanView(planned, findings), json)
    expected = expected_error(findings)
    if expected is not None:
        raise typer.Exit(expected.exit_code)


class _Step(Protocol):
    @property
    def name(self) -> str: ...
    def describe(self) -> str: ...


def always_continue(_step: _Step) -> bool:
    """Return True."""
    return True


def confirm_on_terminal(step: _Step) -> bool:
    """Ask whether the step is to be done."""
    return typer.confirm(f"{step.name}: {step.describe()}?", default=True, err=True)

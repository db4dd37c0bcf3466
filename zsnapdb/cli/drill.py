"""`zsnapdb drill` and `zsnapdb drills`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli import options
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.options import argument, flag, option
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.trial.drill import DrillRequest, DrillResult


def repeatable_drill(instance: Instance) -> Repeatable:
    """Return the declaration of a drill as a repeatable command.

    The drill's evidence in the repository contains the run id, even if another host made the drill.
    """
    from zsnapdb.jobs.trial.drill import drill_of_run

    def known() -> CommandAnswer | None:
        done = drill_of_run(instance)
        return answer_of(done) if done is not None else None

    about = f"{instance.name} in {instance.settings.repository}"
    return Repeatable("drill", about, made=known, patience=instance.wait, is_scheduled=True, tell=instance.events.tell)


def answer_of(done: DrillResult) -> CommandAnswer:
    """Return the output of a drill and its exit code, even if the drill failed."""
    from zsnapdb.jobs.trial.drill import exit_code
    from zsnapdb.report.trial import DrillView

    return CommandAnswer(DrillView(done), exit_code(done.evidence))


def drill_machine(
    settings: Settings, instance: Instance, request: DrillRequest, *, plan: bool, once: str | None, json: bool
) -> None:
    """Drill a virtual machine, or show the drill's plan.

    Raises: typer.Exit with the drill's exit code.
    """
    from zsnapdb.jobs.restore.machine_restore import MachineWork
    from zsnapdb.jobs.trial import machine_drill
    from zsnapdb.report.trial import MachineDrillPlanView

    if plan:
        repository = instance.open_repository()
        planned = machine_drill.plan(settings, instance, repository, request)
        show(MachineDrillPlanView(planned), json)
        machine_drill.refuse_unfit(MachineWork(settings, instance, repository, planned.restore))
        return

    def make() -> CommandAnswer:
        return answer_of(machine_drill.drill(settings, instance, request))

    show_once(instance.host, once, repeatable_drill(instance), make, json)


def drill(
    instance: options.InstanceName = None,
    to: Annotated[str, option("--to", "POINT", f"Point: {options.POINT}, or random.")] = "latest",
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Seed of the random backup and the sample. Equal seeds give equal choices.",
            show_default="a new one each time",
        ),
    ] = None,
    whole: Annotated[bool, flag("--all", "Check every page and every table instead of a sample.")] = False,
    repository: options.RepositoryName = None,
    accepts_older: options.AcceptOlder = False,
    history: options.History = None,
    once: options.Once = None,
    wait: options.WaitTime = "0s",
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Prove that a backup can be restored.

    Restore the backup to scratch datasets, start a server on them in isolation, check the data, store the evidence, and
    remove the datasets. A virtual machine is booted without a network instead, and its guest agent is queried.

    With --once the command can be repeated: if the drill of this run is complete, it is shown with its exit code.

    Exit codes: 0 passed, 11 a check failed, 7 data is damaged.
    """
    from zsnapdb.jobs.trial import drill as job

    settings, chosen = instance_context(config, instance, repository, binary=binary, wait=wait)
    if chosen.settings.vm is not None:
        hint = "backups of a machine have no points in time, and the machine runs its own server"
        options.refuse_for_machines(hint, history=history is not None, binary=binary is not None)
    request = job.DrillRequest(to, seed, whole, accepts_older, history)
    if chosen.settings.vm is not None:
        drill_machine(settings, chosen, request, plan=plan, once=once, json=json)
        return
    if plan:
        _show_plan(settings, chosen, request, json)
        return

    def make() -> CommandAnswer:
        return answer_of(job.drill(settings, chosen, request))

    show_once(chosen.host, once, repeatable_drill(chosen), make, json)


def _show_plan(settings: Settings, instance: Instance, request: DrillRequest, json: bool) -> None:
    """Show the plan.

    Raises: the error with which the drill would be refused.
    """
    from zsnapdb.jobs.trial import drill as job
    from zsnapdb.report import trial as report

    repository = instance.open_repository()
    planned = job.plan(settings, instance, repository, request)
    show(report.DrillPlanView(planned), json)
    job.refuse_unfit(settings, instance, repository, planned)


def drills(
    instance: options.InstanceName = None,
    drill_id: Annotated[str | None, argument("DRILL", "Id of a drill, or latest: show all its details.")] = None,
    most: Annotated[int, option("--most", "N", "Highest number of listed drills, the newest.", min=1, max=1000)] = 1000,
    repository: options.RepositoryName = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """List the drills of an instance, oldest first, or show one drill."""
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.trial import drill as job
    from zsnapdb.report import trial as report

    chosen = Instance.at(configuration(config), instance, repository)
    if drill_id is not None:
        show(report.EvidenceView(job.find(chosen, drill_id)), json)
        return
    show(report.DrillsView(job.history(chosen, most)), json)

"""`zsnapdb drill` and `zsnapdb drills`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli.drill_machine import (
    MachineDrillOptions,
    answer_of,
    drill_machine,
    refuse_server_options,
    repeatable_drill,
)
from zsnapdb.cli.once import CommandAnswer, show_once
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import (
    POINT,
    AcceptOlder,
    AsJson,
    ConfigFile,
    History,
    InstanceName,
    Once,
    PlanOnly,
    RepositoryName,
    ServerBinary,
    WaitTime,
)
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.trial.drill import DrillRequest


def drill(
    instance: InstanceName = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POINT",
            help=f"The point to restore: {POINT}; or random: a random backup.",
        ),
    ] = "latest",
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Number that decides the random backup and the sample. The same seed gives the same choice.",
            show_default="a new one each time",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Check every page and every table instead of a sample.")] = False,
    repository: RepositoryName = None,
    accepts_older: AcceptOlder = False,
    history: History = None,
    once: Once = None,
    wait: WaitTime = "0s",
    binary: ServerBinary = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Prove that a backup can be restored.

    Restore the backup to scratch datasets, start a server on them in isolation, check the data, store the evidence, and
    remove the datasets. A virtual machine is booted without a network instead, and asked through its guest agent.

    With --once the command can be repeated: if the drill of this run is done, it is shown, with its exit code.

    Exit codes: 0 passed, 11 a check failed, 7 data is damaged.
    """
    from zsnapdb.jobs.trial import drill as job

    settings, chosen = of_instance(config, instance, repository, binary=binary, wait=wait)
    if chosen.settings.vm is not None:
        refuse_server_options(history=history, binary=binary)
        drill_machine(settings, chosen, MachineDrillOptions(to, seed, accepts_older, plan, whole, once), json)
        return
    request = job.DrillRequest(to, seed, whole, accepts_older, history)
    if plan:
        _show_plan(settings, chosen, request, json)
        return

    def make() -> CommandAnswer:
        return answer_of(job.drill(settings, chosen, request))

    show_once(chosen.host, once, repeatable_drill(chosen), make, json)


def _show_plan(settings: Settings, instance: Instance, request: DrillRequest, json: bool) -> None:
    """Show the plan. Raise the error with which the drill would be refused."""
    from zsnapdb.jobs.trial import drill as job
    from zsnapdb.report.trial import drill as report

    repository = instance.open_repository()
    planned = job.plan(settings, instance, repository, request)
    show(report.DrillPlanView(planned), json)
    job.refuse_unfit(settings, instance, repository, planned)


def drills(
    instance: InstanceName = None,
    drill_id: Annotated[
        str | None,
        typer.Argument(metavar="DRILL", help="The id of a drill, or latest: show all its details.", show_default=False),
    ] = None,
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=1, max=1000, help="List at most so many, the newest.")
    ] = 1000,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """List the drills of an instance, oldest first, or show one drill."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.trial import drill as job
    from zsnapdb.report.trial import drill as report

    chosen = Instance.at(load(config), instance, repository)
    if drill_id is not None:
        show(report.EvidenceView(job.find(chosen, drill_id)), json)
        return
    show(report.DrillsView(job.history(chosen, most)), json)

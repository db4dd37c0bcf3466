"""`zsnapdb drill` of an instance that is a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zsnapdb.base.errors import UsageError
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.trial.drill_log import DrillResult


@dataclass(frozen=True)
class MachineDrillOptions:
    """The options of the command that a drill of a machine has."""

    to: str
    seed: int | None
    accepts_older: bool
    plan: bool
    whole: bool
    once: str | None


def repeatable_drill(instance: Instance) -> Repeatable:
    """Return what a drill declares: whichever host made it, its evidence in the repository has the id of its run."""
    from zsnapdb.jobs.trial.once import made

    def known() -> CommandAnswer | None:
        done = made(instance)
        return answer_of(done) if done is not None else None

    about = f"{instance.name} in {instance.settings.repository}"
    return Repeatable("drill", about, made=known, patience=instance.wait, tell=instance.events.tell)


def answer_of(done: DrillResult) -> CommandAnswer:
    """Return what a drill shows, and its exit code, also of one that failed."""
    from zsnapdb.jobs.trial.drill import exit_code
    from zsnapdb.report.trial.drill import DrillView

    return CommandAnswer(DrillView(done), exit_code(done.evidence))


def drill_machine(settings: Settings, instance: Instance, options: MachineDrillOptions, json: bool) -> None:
    """Drill the machine, or show the plan. typer.Exit with the exit code of the drill."""
    from zsnapdb.jobs.restore.machine_run import MachineWork
    from zsnapdb.jobs.trial import machine_drill
    from zsnapdb.report.trial.machine_drill import MachineDrillPlanView

    request = machine_drill.MachineDrillRequest(options.to, options.seed, options.accepts_older, options.whole)
    if options.plan:
        repository = instance.open_repository()
        planned = machine_drill.plan(settings, instance, repository, request)
        show(MachineDrillPlanView(planned), json)
        machine_drill.refuse_unfit(MachineWork(settings, instance, repository, planned.restore))
        return

    def make() -> CommandAnswer:
        return answer_of(machine_drill.drill(settings, instance, request))

    show_once(instance.host, options.once, repeatable_drill(instance), make, json)


def refuse_server_options(*, history: str | None, binary: Path | None) -> None:
    """Raise UsageError if an option is given that the drill of a virtual machine does not have."""
    given = {"--history": history is not None, "--binary": binary is not None}
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} cannot be used with a virtual machine",
            hint="a backup of a machine has no history of points, and the machine runs its own server",
        )

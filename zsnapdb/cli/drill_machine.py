"""`zsnapdb drill` of an instance that is a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zsnapdb.base.errors import UsageError
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance


@dataclass(frozen=True)
class MachineDrillOptions:
    """The options of the command that a drill of a machine has."""

    to: str
    seed: int | None
    accepts_older: bool
    plan: bool
    whole: bool
    once: bool


def drill_machine(settings: Settings, instance: Instance, options: MachineDrillOptions, json: bool) -> int:
    """Drill the machine, or show the plan, and return the exit code."""
    from zsnapdb.jobs.restore.machine_run import MachineWork
    from zsnapdb.jobs.trial import drill, machine_drill
    from zsnapdb.jobs.trial.once import once
    from zsnapdb.report.trial.drill import DrillView
    from zsnapdb.report.trial.machine_drill import MachineDrillPlanView

    request = machine_drill.MachineDrillRequest(options.to, options.seed, options.accepts_older, options.whole)
    if options.plan:
        repository = instance.open_repository()
        planned = machine_drill.plan(settings, instance, repository, request)
        show(MachineDrillPlanView(planned), json)
        machine_drill.refuse_unfit(MachineWork(settings, instance, repository, planned.restore))
        return 0
    done = (
        once(instance, lambda: machine_drill.drill(settings, instance, request))
        if options.once
        else machine_drill.drill(settings, instance, request)
    )
    show(DrillView(done), json)
    return drill.exit_code(done.evidence)


def refuse_server_options(*, history: str | None, binary: Path | None) -> None:
    """Raise UsageError if an option is given that the drill of a virtual machine does not have."""
    given = {"--history": history is not None, "--binary": binary is not None}
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} cannot be used with a virtual machine",
            hint="a backup of a machine has no history of points, and the machine runs its own server",
        )

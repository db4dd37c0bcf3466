"""A drill whose run has an id that its caller chose is made once, however often the caller repeats the command.

The evidence of the drill has the id of its run. So the repository knows what was done, on every host.
"""

from __future__ import annotations

from collections.abc import Callable

from zsnapdb.base.errors import BusyError, DamagedError, NotThere
from zsnapdb.jobs.base.exclusion import for_instance
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.trial.drill_log import DrillResult
from zsnapdb.repository import drills, layout

LOOKED_AT = 100
"""In how many of the newest drills the run is looked for: each is an object of its own."""


def once(instance: Instance, make: Callable[[], DrillResult]) -> DrillResult:
    """Return the drill that the run of this id made, else make it. BusyError if that run is at work on this host."""
    known = _made(instance)
    if known is not None:
        return known
    run = instance.host.run_id()
    try:
        with for_instance(instance, f"drill-{run}", f"doing run {run}, a drill of"):
            # Whoever was waited for may have been this run.
            return _made(instance) or make()
    except BusyError as error:
        hint = f"repeat the command with `--once {run}`: it makes a drill only if run {run} made none"
        raise BusyError(error.message, hint=hint) from error


def _made(instance: Instance) -> DrillResult | None:
    """Return the drill of this run. One whose evidence cannot be believed is none."""
    try:
        repository = instance.open_repository()
    except NotThere:
        return None
    for drill_id in reversed(drills.ids(repository, instance.name)[-LOOKED_AT:]):
        try:
            evidence = drills.read(repository, instance.name, drill_id)
        except (DamagedError, NotThere):
            continue
        if evidence.run_id == instance.host.run_id():
            return DrillResult(evidence, str(layout.drill(instance.name, drill_id)))
    return None

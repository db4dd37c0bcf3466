"""Which drill a run made: the evidence has the id of its run. So the repository knows what was done, on every host."""

from __future__ import annotations

from zsnapdb.base.errors import NotThere
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.trial.drill_log import DrillResult
from zsnapdb.repository import drills, layout

LOOKED_AT = 100
"""In how many of the newest believed drills the run is looked for: each is an object of its own."""


def made(instance: Instance) -> DrillResult | None:
    """Return the drill of this run. One whose evidence cannot be believed is none."""
    try:
        repository = instance.open_repository()
    except NotThere:
        return None
    for evidence in reversed(drills.newest(repository, instance.name, LOOKED_AT)):
        if evidence.run_id == instance.host.run_id():
            return DrillResult(evidence, layout.drill(instance.name, evidence.drill_id, evidence.sequence))
    return None

"""A restore into a place that is thrown away, and what it told: the one way drill and rescue come to a copy out of the repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.config import Settings
from zsnapdb.jobs import restore as restoring
from zsnapdb.jobs.common import Instance, Report
from zsnapdb.jobs.copies import Copy
from zsnapdb.jobs.scratch import Scratch
from zsnapdb.repository.drills import StepPart
from zsnapdb.repository.manifest import Manifest

RECEIVE, RECOVER = "receive", "recover"


@dataclass(frozen=True)
class Trial:
    """A restored copy whose server has recovered once and is stopped: where it stands, and the steps that led there."""

    copy: Copy
    position: str
    steps: tuple[StepPart, ...]


def restore(settings: Settings, instance: Instance, chain: Sequence[Manifest], place: Scratch, report: Report) -> Trial:
    """Restore the last backup of the chain into the place. It recovered to exactly its recorded position, or an error says what is wrong."""
    done = restoring.restore(settings, instance, chain[-1].backup_id, place.top, report)
    size = sum(manifest.plain_size for manifest in chain)
    what = f"{len(chain)} backup(s) up to {chain[-1].backup_id}"
    steps = (
        StepPart(kind=RECEIVE, what=what, seconds=round(done.receive_seconds, 3), size=size),
        StepPart(kind=RECOVER, what="first start, comparison, shutdown", seconds=round(done.recovery_seconds, 3)),
    )
    return Trial(restoring.copy_of(instance, done.plan), done.position.describe(), steps)

"""A restore into an ephemeral place. Drill and rescue get a copy from the repository only in this way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from zsnapdb.base.errors import CommandError, ConsistencyError, DamagedError, NotThere
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_record
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore import run as restoring
from zsnapdb.jobs.restore.machine_run import MachineRestoreResult
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.jobs.trial.scratch import Scratch
from zsnapdb.planning.restore.origin import RestoreOrigin
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.runbook import size_of
from zsnapdb.repository.drills import StepPart
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class Trial:
    """A restored copy whose server has recovered and is stopped: its position, and the steps of the restore."""

    copy: Copy
    position: str
    steps: tuple[StepPart, ...]


def plan(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    to: str,
    place: Scratch,
    *,
    accepts_older: bool = False,
    history: str | None = None,
    origin: RestoreOrigin = RestoreOrigin.REPOSITORY,
) -> RestorePlan:
    """Return the plan of a restore to the point; nothing is changed. The errors are those of a restore's plan."""
    request = RestoreRequest(
        to, place.top, makes_parent=True, accepts_older=accepts_older, history=history, origin=origin
    )
    return restore_plan.make(settings, instance, repository, request)


def choosable_ids(instance: Instance, repository: Repository) -> list[str]:
    """Return the ids of the backups among which a drill may choose, oldest first."""
    _, checked = host_record.stored(instance, repository)
    return [name for name in repository.backup_ids(instance.name) if name not in checked.unchosen]


def datasets_of_newest(instance: Instance, repository: Repository) -> tuple[str, ...]:
    """Return the datasets of the newest backup whose manifest can be read, else those of the newest set on this host.

    Empty if there is neither.
    """
    known = host_record.choosable(instance, repository)
    newest = known[-1:] or local_snapshot.load(instance)[-1:]
    return tuple(volume.dataset for part in newest for volume in part.volumes)


def execute(settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan) -> Trial:
    """Carry out exactly this plan. Afterwards the copy is at the plan's point, or an error says what is wrong.

    NotThere if the planned backup was removed from the repository since: what is missing then is no damage.
    """
    with naming_removed(instance, repository, None if planned.clones else planned.backup_id):
        done = restoring.execute_without_journal(settings, instance, repository, planned)
    return Trial(restore_plan.copy_of(instance, planned), done.position.describe(), evidence_of(done))


@contextlib.contextmanager
def naming_removed(instance: Instance, repository: Repository, backup_id: str | None) -> Iterator[None]:
    """Raise NotThere instead of an error if the backup was removed from the repository since it was planned.

    What is missing then is no damage. None: no backup of the repository is restored.
    """
    try:
        yield
    except (DamagedError, ConsistencyError, CommandError, NotThere) as error:
        if backup_id is not None and backup_id not in repository.backup_ids(instance.name):
            raise NotThere(
                f"backup {backup_id} was removed from the repository meanwhile", hint="run again; see `zsnapdb list`"
            ) from error
        raise


def evidence_of(restored: restoring.RestoreResult | MachineRestoreResult) -> tuple[StepPart, ...]:
    """Return the finished steps of a restore as the evidence of a drill has them."""
    steps = ((restored.plan.step(part.step), part.seconds) for part in restored.done)
    return tuple(
        StepPart(kind=step.kind, what=step.describe(), seconds=seconds, size=size_of(step))
        for step, seconds in steps
        if step is not None
    )

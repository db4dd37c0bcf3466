"""Creates and marks scratch datasets below a dataset that belongs to zsnapdb.

The module also removes scratch datasets after their use, and the leftovers of a crash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.domain_types import PROPERTY, pool_of
from zsnapdb.base.errors import CommandError, ConsistencyError, DamagedError, NotFound, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.base.snapshot_set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.host.startup_requirements import pool_for_copy
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.restore import server_restore as restoring
from zsnapdb.jobs.restore.machine_restore import MachineRestoreResult
from zsnapdb.mysql.process.server import PRIVATE_FOLDER, ServerProcess
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.runbook import size_of
from zsnapdb.repository.drills import StepPart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, destruction
from zsnapdb.zfs.destruction import Mark

SCRATCH_PROPERTY = f"{PROPERTY}:scratch"
EndUsers = Callable[[str], None]
"""Function that ends the processes and domains that use the scratch datasets, except servers on mounted folders."""


def end_no_process(_container: str) -> None:
    """Do nothing. The only users of the copy are servers on mounted folders, and `remove` ends such servers itself."""


@dataclass(frozen=True)
class Scratch:
    """The place for a scratch copy, which is a container dataset with the copy's dataset `top` as its only child."""

    scratch_id: str
    container: str
    what: str

    @property
    def top(self) -> str:
        """The dataset of the copy. The last part of its name is also the last part of its mount point."""
        return f"{self.container}/{self.what}-{self.scratch_id}"


def home(instance: Instance, volumes: tuple[str, ...]) -> str:
    """Return the parent dataset of the instance's scratch copies.

    The parent is below the configured dataset. If no dataset is configured, the parent is in the pool of the volumes,
    or else in the only pool of this host.

    Raises:
        PreflightError: the host has several pools, and the volumes of the instance are in none of them.
        NotFound: no volumes are known.
    """
    configured = instance.settings.drill.dataset
    if configured is not None:
        pool = pool_of(configured)
        if not datasets.exists(pool):
            raise PreflightError(f"drill.dataset {configured}: the pool {pool} does not exist", hint="see `zpool list`")
        return f"{configured}/{instance.name}"
    if not volumes:
        raise NotFound(f"there is no backup of instance {instance.name} to copy", hint=OTHER_ADDRESS_HINT)
    pool = pool_for_copy(volumes[0], f"name a dataset under [instance.{instance.name}.drill]")
    return f"{pool}/zsnapdb/scratch/{instance.name}"


def place(home_dataset: str, scratch_id: str, what: str) -> Scratch:
    """Return the place for a scratch copy; create nothing.

    Each purpose `what`, such as a drill, has its own dataset, so that a long drill does not block a rescue.
    """
    return Scratch(scratch_id, f"{home_dataset}/{what}/{scratch_id}", what)


@contextlib.contextmanager
def ephemeral(
    instance: Instance, place: Scratch, mount_root: Path, end_users: EndUsers = end_no_process
) -> Iterator[None]:
    """Create the place for a `with` block. Remove it and its content after the block, even after an error.

    Copies of killed runs are removed first. A lock on this host allows one such block at a time for each instance and
    purpose. Therefore all other marked datasets next to the place are leftovers.
    """
    home_dataset = place.container.rpartition("/")[0]
    with lock_instance(instance, place.what, f"at a {place.what} of"):
        for left in sweep(home_dataset, mount_root, end_users):
            instance.events.tell(f"removed {left}, which an interrupted run left")
        datasets.ensure(home_dataset)
        datasets.create(place.container, {**NO_SNAPSHOTS, SCRATCH_PROPERTY: place.scratch_id})
        try:
            yield
        finally:
            remove(place.container, mount_root, end_users)


def containers_in(home_dataset: str) -> list[str]:
    """Return all containers of scratch copies below the home dataset, including containers in use."""
    if not datasets.exists(home_dataset):
        return []
    below = datasets.children(home_dataset, [SCRATCH_PROPERTY], depth=1)
    return [
        name
        for name, properties in below.items()
        if name.rpartition("/")[0] == home_dataset and properties[SCRATCH_PROPERTY].is_local
    ]


def sweep(home_dataset: str, mount_root: Path, end_users: EndUsers = end_no_process) -> list[str]:
    """Remove every scratch copy below the home dataset, and return the names of the removed copies.

    The caller holds the lock of these copies, so none of them is in use.
    """
    containers = containers_in(home_dataset)
    for container in containers:
        remove(container, mount_root, end_users)
    return containers


def remove(container: str, mount_root: Path, end_users: EndUsers = end_no_process) -> None:
    """End the servers on a scratch copy and destroy its datasets. If the copy does not exist, do nothing.

    Raises:
        NotOursError: a dataset lacks zsnapdb's mark; nothing was destroyed.
    """
    # The datasets of the copy have the mark of its restore. All other datasets below the container have the container's
    # mark.
    marks = (Mark(SCRATCH_PROPERTY, container.rpartition("/")[2]), Mark(RESTORED_PROPERTY))
    members = destruction.members_with(container, ["mountpoint"], *marks)
    end_users(container)
    points = [values["mountpoint"].value for values in members.values()]
    folders = [Path(point) for point in points if point.startswith("/")]
    for folder in folders:
        ServerProcess(folder / PRIVATE_FOLDER).kill_all()
    destruction.destroy_datasets(members, *marks, with_snapshots=True)
    for folder in sorted(folders, key=lambda folder: len(str(folder)), reverse=True):
        _remove_empty(folder, mount_root)


def _remove_empty(folder: Path, mount_root: Path) -> None:
    """Remove the mount point of a dataset, and its parent folders up to `mount_root`, if they are empty."""
    while folder != mount_root and folder.is_relative_to(mount_root) and not os.path.ismount(folder):
        try:
            folder.rmdir()
        except OSError:
            # Stop at a folder that has content or that no longer exists.
            return
        folder = folder.parent


def choosable_ids(instance: Instance, repository: Repository) -> list[str]:
    """Return the ids of the backups from which a drill may choose, oldest first."""
    _, checked = host_backup_record.checked_backups(instance, repository)
    return [name for name in repository.backup_ids(instance.name) if name not in checked.unchosen]


def datasets_of_newest(instance: Instance, repository: Repository) -> tuple[str, ...]:
    """Return the datasets of the newest backup with a readable manifest, else of the newest set on this host.

    The result is empty if there is no backup and no set.
    """
    known = host_backup_record.choosable(instance, repository)
    newest = known[-1:] or local_snapshot.load(instance)[-1:]
    return tuple(volume.dataset for part in newest for volume in part.volumes)


def execute(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan
) -> restoring.RestoreResult:
    """Execute exactly this plan. Afterwards the copy is at the plan's point, or an error says what failed.

    Raises:
        NotFound: the backup was removed from the repository after the plan was made; this is not damage.
    """
    with naming_removed(instance, repository, None if planned.clones else planned.backup_id):
        return restoring.execute_without_journal(settings, instance, repository, planned)


@contextlib.contextmanager
def naming_removed(instance: Instance, repository: Repository, backup_id: str | None) -> Iterator[None]:
    """Raise NotFound if a `with` block fails because the backup was removed after the plan was made.

    The objects of a removed backup are missing from the repository, but this is not damage. If `backup_id` is None, the
    block restores no backup of the repository.
    """
    try:
        yield
    except (DamagedError, ConsistencyError, CommandError, NotFound) as error:
        if backup_id is not None and backup_id not in repository.backup_ids(instance.name):
            raise NotFound(
                f"backup {backup_id} was removed from the repository meanwhile", hint="run again; see `zsnapdb list`"
            ) from error
        raise


def evidence_of(restored: restoring.RestoreResult | MachineRestoreResult) -> tuple[StepPart, ...]:
    """Return the finished steps of a restore as evidence for a drill."""
    steps = ((restored.plan.step(part.step), part.seconds) for part in restored.done)
    return tuple(
        StepPart(kind=step.kind, what=step.describe(), seconds=seconds, size=size_of(step))
        for step, seconds in steps
        if step is not None
    )

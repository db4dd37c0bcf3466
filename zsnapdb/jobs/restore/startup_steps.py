"""Executes the steps of a restore that precede the handover: mount, first start and checks of the server.

Also makes the snapshots between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base.domain_types import Position
from zsnapdb.base.errors import ConsistencyError, DamagedError
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.snapshot_set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY
from zsnapdb.jobs.host.dataset_tuning import tune
from zsnapdb.jobs.host.server_copy import Copy, check_inside, check_recovered, give_files
from zsnapdb.jobs.restore.plan import copy_of
from zsnapdb.jobs.restore.volume_receive import RestoreWork, remove_datasets, restored_property
from zsnapdb.jobs.steps.exchange_state import look
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import CheckServer, MountPart, MountVolumes, Recover, ResumedRun
from zsnapdb.planning.server_copy.copy_options import LoginAccess
from zsnapdb.repository.manifest import Manifest
from zsnapdb.zfs import datasets, destruction, mounting, snapshots

HANDOVER = "handover"
"""The name of the last step of every plan."""
STEP_SNAPSHOT = "zsnapdb-restore-"
"""The name prefix of the snapshots between the steps. They are removed at the end of the restore."""


@dataclass(frozen=True)
class ServerWork(RestoreWork[RestorePlan]):
    """A restore of a server that is being executed.

    `in_place` is called when the restored datasets have replaced the server's own datasets and a server can be started.
    """

    in_place: Callable[[], None] = lambda: None

    @property
    def copy(self) -> Copy:
        """The restored files as a copy on which a server can be started."""
        return copy_of(self.instance, self.plan)

    @property
    def is_continued(self) -> bool:
        """Whether the plan continues a finished restore."""
        return self.plan.is_continued

    def is_irreversible(self) -> bool:
        """Return whether the exchange has begun, so that the restored datasets may be the server's only datasets."""
        step = self.plan.promotion
        return step is not None and look(self.plan, step).has_begun

    def remove(self) -> None:
        """Remove the datasets that this restore created."""
        remove_all(self.plan, self.copy)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The volumes' datasets, parents first."""
        return tuple(sorted(self.plan.layout.datasets.values(), key=len))

    def manifest(self, backup_id: str) -> Manifest:
        """Return the manifest of a backup, or of the local set that the plan clones."""
        local = local_snapshot.read(self.instance, backup_id) if self.plan.clones else None
        return local or self.repository.manifest(self.instance.name, backup_id)


def _proved_guids(parts: Sequence[MountPart], *, may_be_clones: bool) -> dict[str, int]:
    """Return the GUID of the received or cloned snapshot of each volume, by dataset."""
    chosen = [part.dataset for part in parts]
    origins = datasets.properties_of(chosen, ["origin"]) if may_be_clones else {}
    names = {name: origins[name]["origin"].value if name in origins else datasets.UNSET for name in chosen}
    names |= {
        part.dataset: f"{part.dataset}@{part.snapshot}" for part in parts if names[part.dataset] in ("", datasets.UNSET)
    }
    return dict(zip(names, (made.guid for made in snapshots.describe(list(names.values()))), strict=True))


def mount(work: ServerWork, step: MountVolumes) -> None:
    """Compare the snapshot GUIDs, set the recorded properties, and mount the datasets, parents first."""
    # Free memory for the server that starts next.
    work.memory.clear()
    proved = _proved_guids(step.parts, may_be_clones=bool(work.plan.clones))
    for part in step.parts:
        if proved[part.dataset] != part.guid:
            raise DamagedError(
                f"{part.dataset}@{part.snapshot} was received with a GUID other than {part.guid}",
                hint="the repository's chain is inconsistent; restore another backup",
            )
    for part in step.parts:
        marks = {INSTANCE_PROPERTY: work.instance.name, BACKUP_PROPERTY: work.plan.backup_id}
        tune(part.dataset, part.properties, marks, work.events.warn)
    be_mounted(work)


def be_mounted(work: ServerWork) -> None:
    """Mount the datasets that are not mounted, parents first.

    Before the handover the datasets are not mounted automatically after a reboot.

    Raises:
        NotOursError: a dataset with one of the planned names does not belong to this restore. A continued restore knows
            only the names of its datasets.
    """
    destruction.prove(work.datasets, work.mark)
    mounting.mount_all(work.datasets)


def take_back(work: ServerWork, snapshot: str) -> None:
    """Roll all volumes back to their snapshots with the name `snapshot`, and mount the volumes.

    If an interrupted run left a server running on these volumes, stop the server first.
    """
    be_mounted(work)
    work.copy.process().kill_all()
    for dataset in work.datasets:
        destruction.roll_back(dataset, snapshot, STEP_SNAPSHOT, work.mark)


def snapshot_step(work: ServerWork, step: str) -> None:
    """Snapshot all volumes under the name of the finished step, while the server of the volumes is stopped.

    The snapshots of earlier steps are destroyed.
    """
    before = step_snapshots(work.datasets)
    made = snapshots.PendingSnapshots.of(
        [f"{dataset}@{STEP_SNAPSHOT}{step}" for dataset in work.datasets], restored_property(work.plan)
    )
    made.start()
    made.finish()
    for name in before:
        destruction.destroy_snapshot(name, work.mark)


def was_kept(work: ServerWork, step: str) -> bool:
    """Return whether an interrupted run made this step's snapshots, even if the journal does not record the step.

    A single request creates either all snapshots of a step or none. If the snapshots exist, the step must not be
    repeated, because the snapshots of the previous step may already be destroyed. The remaining snapshots of the
    previous step are then destroyed.
    """
    own = {f"{dataset}@{STEP_SNAPSHOT}{step}" for dataset in work.datasets}
    known = step_snapshots(work.datasets)
    if not own <= set(known):
        return False
    for name in known:
        if name not in own:
            destruction.destroy_snapshot(name, work.mark)
    return True


def step_snapshots(places: Sequence[str]) -> list[str]:
    """Return the snapshots that restore steps created on the datasets `places`."""
    return [name for name in snapshots.names_of(places) if name.partition("@")[2].startswith(STEP_SNAPSHOT)]


def recover(work: ServerWork, step: Recover) -> None:
    """Start the server once on the received files and binlogs, without clients. Check the server and shut it down.

    The server must recover to exactly the recorded GTIDs. It has the identity of the old server.
    """
    if not work.is_first_run:
        be_mounted(work)
        work.copy.process().kill_all()
        for part in next(other for other in work.plan.steps if isinstance(other, MountVolumes)).parts:
            destruction.roll_back(part.dataset, part.snapshot, STEP_SNAPSHOT, work.mark)
    copy = work.copy
    give_files(copy, work.plan.owner)
    copy.make_private()
    recorded = work.plan.position(step.gtids, step.binlog_file, step.binlog_offset)
    _check_binlog(copy, recorded)
    read_position(work, recorded)
    if work.plan.replays:
        snapshot_step(work, step.name)


def _check_binlog(copy: Copy, recorded: Position) -> None:
    """Raise ConsistencyError if the received binlogs do not end at the position in the manifest.

    This is the only proof of the position for servers without GTIDs.
    """
    if recorded.coordinates is None:
        return
    received = copy.recorded_position(has_gtids=False)
    if received.coordinates != recorded.coordinates:
        raise ConsistencyError(
            f"the received binlogs end at {received.coordinates}, the manifest says {recorded.coordinates}",
            hint="the server was not started; restore another backup",
        )


def read_position(work: ServerWork, expected: Position) -> Position:
    """Start the server without clients, compare its GTIDs, shut it down, and return its position."""
    copy = work.copy
    process = copy.process()
    alone = copy.identity(server_id=work.plan.server_id, port=None, access=LoginAccess.PRIVATE_SOCKET)
    with undone_on_error(process.kill):
        with copy.start(alone, "root", SecretStr(""), copy.for_one_task) as session:
            facts, position = check_recovered(session, expected)
            check_inside(facts, Path(work.plan.layout.mount))
        process.stop(timeout=work.instance.settings.server.start_timeout)
    return position


def take_up(work: ServerWork, step: ResumedRun) -> None:
    """Check that the server of the finished restore is still at its point, and snapshot its volumes.

    If the server was handed over with `look`, roll the volumes back to the snapshots of the point.

    Raises:
        ConsistencyError: the server is no longer at its point, because a client wrote to it.
    """
    be_mounted(work)
    work.copy.process().kill_all()
    if was_kept(work, step.name):
        return
    if step.after_look:
        take_back(work, f"{STEP_SNAPSHOT}{HANDOVER}")
        snapshot_step(work, step.name)
        return
    for dataset in work.datasets:
        datasets.set_properties(dataset, {"canmount": "noauto", **NO_SNAPSHOTS})
    read_position(work, work.plan.position(step.gtids))
    snapshot_step(work, step.name)


def check(work: ServerWork, step: CheckServer) -> Position:
    """Start the server once more, without clients, and check that it contains exactly the transactions of the step."""
    be_mounted(work)
    work.copy.process().kill_all()
    return read_position(work, work.plan.position(step.gtids))


def remove_all(plan: RestorePlan, copy: Copy) -> None:
    """Remove the datasets that this restore created, with their snapshots. All other datasets stay."""
    copy.process().kill_all()
    remove_datasets(plan)

"""The steps of a restore up to a server that has recovered: receive, mount, first recovery."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from zsnapdb.base.errors import CommandError, ConsistencyError, DamagedError
from zsnapdb.base.model import Position, Progress
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup import local_manifests
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY, RESTORED_PROPERTY
from zsnapdb.jobs.base.undo import undone_on_error
from zsnapdb.jobs.restore import exchange, stored_chain
from zsnapdb.jobs.restore.plan import copy_of
from zsnapdb.jobs.server_copy.prepare import Copy, check_inside, check_recovered
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.steps import (
    CheckServer,
    MakeTop,
    MountPart,
    MountVolumes,
    Receive,
    Recover,
    RestorePlan,
    TakeUp,
)
from zsnapdb.planning.server_copy.identity import Access
from zsnapdb.repository.manifest import FilesystemType, Manifest, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.server_source import PositionPart
from zsnapdb.stream.download import download
from zsnapdb.stream.memory import TransferMemory
from zsnapdb.zfs import datasets, mounting, owned, snapshots
from zsnapdb.zfs.owned import Mark
from zsnapdb.zfs.streams import ReceiveStream

HANDOVER = "handover"
"""The name of every last step."""
STEP_SNAPSHOT = "zsnapdb-restore-"
"""Prefix of the names of the snapshots between the steps of a restore. They are removed at its end."""

_PATIENCE = 30.0


def _nothing() -> None:
    """Do nothing: whoever asked for the restore starts the server later."""


class RestoreIdentity(Protocol):
    """The part of a plan that says which restore it is."""

    @property
    def restore_id(self) -> str: ...


class ReceivingWork(Protocol):
    """The part of a restore under way that receives volumes, whatever kind of source they are of."""

    @property
    def instance(self) -> Instance: ...
    @property
    def repository(self) -> Repository: ...
    @property
    def plan(self) -> RestoreIdentity: ...
    @property
    def events(self) -> Events: ...
    @property
    def memory(self) -> TransferMemory: ...
    @property
    def is_first_run(self) -> bool:
        """Whether the target did not exist when this run began: no earlier run left anything in it."""

    def manifest(self, backup_id: str) -> Manifest:
        """Return a backup's manifest."""


def restored_mark(plan: RestoreIdentity) -> Mark:
    """Return the mark of every dataset and step snapshot that this restore makes, and no other restore."""
    return Mark(RESTORED_PROPERTY, plan.restore_id)


def restored_property(plan: RestoreIdentity) -> dict[str, str]:
    """Return the property that sets the mark."""
    return {RESTORED_PROPERTY: plan.restore_id}


@dataclass(frozen=True)
class ServerWork:
    """A restore that is being executed.

    `in_place` is called when restored datasets took the place of the server's own, and a server can be started there.
    `is_first_run`: the target did not exist when this run began, so no earlier run left anything in it.
    """

    settings: Settings
    instance: Instance
    repository: Repository
    plan: RestorePlan
    in_place: Callable[[], None] = _nothing
    memory: TransferMemory = field(default_factory=TransferMemory)
    is_first_run: bool = False

    @property
    def events(self) -> Events:
        """What takes the events of this restore."""
        return self.instance.events

    @property
    def copy(self) -> Copy:
        """The restored files as a copy on which a server can be started."""
        return copy_of(self.instance, self.plan)

    @property
    def is_continued(self) -> bool:
        """Whether the plan goes on from a restore that was finished before."""
        return self.plan.is_continued

    def is_irreversible(self) -> bool:
        """Whether datasets of the server were exchanged: one of them is the server's only one."""
        step = self.plan.promotion
        return step is not None and exchange.look(self.plan, step).has_begun

    def remove(self) -> None:
        """Remove the datasets that this restore made."""
        remove_all(self.plan, self.copy)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The volumes' datasets, outermost first."""
        return tuple(sorted(self.plan.layout.datasets.values(), key=len))

    def manifest(self, backup_id: str) -> Manifest:
        """Return the manifest of a backup, or of the local set that the plan clones."""
        local = local_manifests.read(self.instance, backup_id) if self.plan.clones else None
        return local or self.repository.manifest(self.instance.name, backup_id)


def make_top(work: ReceivingWork, step: MakeTop, more: Mapping[str, str] | None = None) -> None:
    """Make the dataset above volumes that lie side by side, unless this restore made it before.

    It gets the properties `more` too.

    NotOursError if somebody else made it.
    """
    if datasets.exists(step.dataset):
        owned.prove([step.dataset], restored_mark(work.plan))
        return
    datasets.create(
        step.dataset,
        {"mountpoint": "none", "canmount": "off", **NO_SNAPSHOTS, **restored_property(work.plan), **(more or {})},
    )


def receive(work: ReceivingWork, step: Receive) -> None:
    """Receive one volume's stream, unless this restore received it before.

    Every chunk is verified, and the records in it are checked, before a byte of it is received. NotOursError if
    somebody else made the dataset.
    """
    if not work.is_first_run and _is_received(work.plan, step):
        return
    manifest = work.manifest(step.backup_id)
    volume = manifest.volume(step.role)
    if volume is None or volume.guid != step.guid:
        raise DamagedError(
            f"backup {step.backup_id} was changed after the restore was planned",
            hint="give the restore up with --abandon, and start again",
        )
    datasets.ensure(step.dataset.rpartition("/")[0], {"mountpoint": "none", "canmount": "off"})
    properties: dict[str, str] = {}
    if step.from_guid is None:
        properties = {**NO_SNAPSHOTS, **restored_property(work.plan)}
        if step.key_location is not None:
            properties["keylocation"] = step.key_location
        if isinstance(volume.type, FilesystemType):
            properties |= {**datasets.SAFE_MOUNT, "canmount": "noauto", "mountpoint": step.mountpoint}
    with ReceiveStream(step.dataset, properties) as stream:
        # A broken pipe means that `zfs receive` failed; finish() says why.
        with (
            stored_chain.naming_restorable(work.instance, work.repository, manifest.backup_id),
            contextlib.suppress(BrokenPipeError),
        ):
            stored = work.repository.chunks_of(manifest, step.role)
            download(
                stored,
                volume.chunks,
                volume.codec,
                stream.pipe,
                concurrency=work.instance.repository.stream.concurrency,
                name=lambda index: f"chunk {stored.key(index)}",
                ciphers=work.repository.ciphers(manifest),
                expected=expected_stream(volume, volume.features),
                memory=work.memory,
                on_bytes=lambda done: work.events.progress(
                    Progress(f"receive {step.role} of {step.backup_id}", done, step.plain_bytes)
                ),
            )
        stream.finish()


def _is_received(plan: RestoreIdentity, step: Receive) -> bool:
    """Whether the snapshot exists. This waits until an earlier `zfs receive` of a full stream removed its dataset.

    NotOursError if the dataset has snapshots and is not of this restore.
    """
    deadline = time.monotonic() + _PATIENCE
    while datasets.exists(step.dataset):
        received = snapshots.by_guid(step.dataset)
        if received:
            owned.prove([step.dataset], restored_mark(plan))
        if step.guid in received:
            return True
        if step.from_guid is not None:
            return False
        if time.monotonic() > deadline:
            raise CommandError(
                f"{step.dataset} exists without its snapshot",
                hint="end any other `zfs receive` into the dataset; if there is none, destroy the dataset by hand",
            )
        time.sleep(0.2)
    return False


def _proved_guids(parts: Sequence[MountPart]) -> dict[str, int]:
    """Return the GUID of the snapshot that each volume was received with, or cloned from, by dataset."""
    origins = datasets.properties_of([part.dataset for part in parts], ["origin"])
    names = {part.dataset: origins[part.dataset]["origin"].value for part in parts}
    names |= {
        part.dataset: f"{part.dataset}@{part.snapshot}" for part in parts if names[part.dataset] in ("", datasets.UNSET)
    }
    return dict(zip(names, (made.guid for made in snapshots.describe(list(names.values()))), strict=True))


def mount(work: ServerWork, step: MountVolumes) -> None:
    """Compare GUIDs, restore properties, mount, outermost first."""
    # The server that starts next needs the memory more.
    work.memory.clear()
    proved = _proved_guids(step.parts)
    for part in step.parts:
        if proved[part.dataset] != part.guid:
            raise DamagedError(
                f"{part.dataset}@{part.snapshot} was received with a GUID other than {part.guid}",
                hint="the repository's chain is inconsistent; restore another backup",
            )
    for part in step.parts:
        datasets.set_properties(
            part.dataset,
            {**part.properties, INSTANCE_PROPERTY: work.instance.name, BACKUP_PROPERTY: work.plan.backup_id},
        )
    be_mounted(work)


def be_mounted(work: ServerWork) -> None:
    """Mount the datasets that are not mounted, outermost first.

    Before the handover the datasets are not mounted automatically after a reboot.
    """
    mounting.mount_all(work.datasets)


def take_back(work: ServerWork, snapshot: str) -> None:
    """Roll all volumes back to their snapshot of that name. Afterwards they are mounted.

    A server of the copy that an interrupted run left is ended first.
    """
    be_mounted(work)
    work.copy.process().kill_all()
    for dataset in work.datasets:
        owned.roll_back(dataset, snapshot, STEP_SNAPSHOT, restored_mark(work.plan))


def keep(work: ServerWork, step: str) -> None:
    """Snapshot all volumes, whose server is stopped, under the name of the finished step.

    The snapshots of the steps before are destroyed.
    """
    before = step_snapshots(work.datasets)
    made = snapshots.PendingSnapshots.of(
        [f"{dataset}@{STEP_SNAPSHOT}{step}" for dataset in work.datasets], restored_property(work.plan)
    )
    made.start()
    made.finish()
    for name in before:
        owned.destroy_snapshot(name, restored_mark(work.plan))


def was_kept(work: ServerWork, step: str) -> bool:
    """Whether an interrupted run came so far as to snapshot the finished step; the journal may not say so.

    The snapshots of a step are made in one request, all or none. Then nothing of the step is repeated: those of the
    step before, from which it would begin, may be gone. What is left of them goes now.
    """
    own = {f"{dataset}@{STEP_SNAPSHOT}{step}" for dataset in work.datasets}
    known = step_snapshots(work.datasets)
    if not own <= set(known):
        return False
    for name in known:
        if name not in own:
            owned.destroy_snapshot(name, restored_mark(work.plan))
    return True


def step_snapshots(places: Sequence[str]) -> list[str]:
    """Return the snapshots on the datasets `places` that steps of a restore made."""
    return [name for name in snapshots.names_of(places) if name.partition("@")[2].startswith(STEP_SNAPSHOT)]


def recover(work: ServerWork, step: Recover) -> None:
    """Start the server once on the received files, with its own binlogs, unreachable for others; check; shut down.

    It must recover to exactly the recorded GTIDs. It keeps its identity: the restored server is the old server.
    """
    if not work.is_first_run:
        be_mounted(work)
        work.copy.process().kill_all()
        for part in next(other for other in work.plan.steps if isinstance(other, MountVolumes)).parts:
            owned.roll_back(part.dataset, part.snapshot, STEP_SNAPSHOT, restored_mark(work.plan))
    copy = work.copy
    copy.make_private()
    recorded = PositionPart(
        binlog_file=step.binlog_file, binlog_offset=step.binlog_offset, gtids=step.gtids, source="manifest"
    ).position(work.plan.flavour)
    _check_binlog(copy, recorded)
    look(work, recorded)
    if work.plan.replays:
        keep(work, step.name)


def _check_binlog(copy: Copy, recorded: Position) -> None:
    """Raise ConsistencyError unless the received binlogs end where the manifest says.

    For servers without GTIDs this is the only proof.
    """
    if recorded.coordinates is None:
        return
    received = copy.recorded_position(has_gtids=False)
    if received.coordinates != recorded.coordinates:
        raise ConsistencyError(
            f"the received binlogs end at {received.coordinates}, the manifest says {recorded.coordinates}",
            hint="the server was not started; restore another backup",
        )


def look(work: ServerWork, expected: Position) -> Position:
    """Start the server, unreachable for others, compare its GTIDs, shut it down, and return its position."""
    copy = work.copy
    process = copy.process()
    alone = copy.identity(server_id=work.plan.server_id, port=None, access=Access.PRIVATE_SOCKET)
    with undone_on_error(process.kill):
        with copy.start(alone, "root", SecretStr(""), copy.for_one_task) as session:
            facts, position = check_recovered(session, expected)
            check_inside(facts, Path(work.plan.layout.mount))
        process.stop(timeout=work.instance.settings.server.start_timeout)
    return position


def take_up(work: ServerWork, step: TakeUp) -> None:
    """Prove that the server of the finished restore is still at its point, and snapshot its volumes.

    ConsistencyError if it is not: somebody has written to it since. After a look around the volumes are rolled back to
    the snapshots that were made of exactly this state.
    """
    be_mounted(work)
    work.copy.process().kill_all()
    if was_kept(work, step.name):
        return
    if step.after_look:
        take_back(work, f"{STEP_SNAPSHOT}{HANDOVER}")
        keep(work, step.name)
        return
    for dataset in work.datasets:
        datasets.set_properties(dataset, {"canmount": "noauto", **NO_SNAPSHOTS})
    look(work, _position(work, step.gtids))
    keep(work, step.name)


def _position(work: ServerWork, gtids: str | None) -> Position:
    part = PositionPart(binlog_file=None, binlog_offset=None, gtids=gtids, source="replay")
    return part.position(work.plan.flavour)


def check(work: ServerWork, step: CheckServer) -> Position:
    """Start the server, unreachable, once more: it must contain exactly the transactions of the step."""
    be_mounted(work)
    work.copy.process().kill_all()
    return look(work, _position(work, step.gtids))


def remove_all(plan: RestorePlan, copy: Copy) -> None:
    """Remove the datasets that this restore made, with their snapshots. All other datasets stay."""
    copy.process().kill_all()
    mark = restored_mark(plan)
    places = {plan.layout.top, *plan.layout.datasets.values()}
    owned.destroy_datasets([name for name in places if owned.is_ours(name, mark)], mark, with_snapshots=True)

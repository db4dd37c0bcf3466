"""Receives the volumes of a backup into datasets of their own, whatever kind of source they are of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from zsnapdb.base.errors import CommandError, DamagedError
from zsnapdb.base.model import Progress
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.restore import interrupted_receive, newest
from zsnapdb.jobs.restore.interrupted_receive import InterruptedReceive
from zsnapdb.planning.dataset_properties import explicit_values
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.steps import MakeTop, Receive
from zsnapdb.repository.manifest import FilesystemType, Manifest, VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.download import download
from zsnapdb.stream.memory import TransferMemory
from zsnapdb.stream.resuming import NotResumableError
from zsnapdb.zfs import datasets, owned, snapshots, streams
from zsnapdb.zfs.owned import Mark
from zsnapdb.zfs.streams import ReceiveStream

_PATIENCE = 30.0


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


def tell_what_stays(events: Events, places: Iterable[str]) -> None:
    """Warn of each dataset that is in a place of a restore which was given up, and does not carry its mark.

    It is of somebody else, or the power went while the restore made it: ZFS sets the properties of a new dataset in
    another transaction group than that in which it makes it (zfs_ioc_create, zfs_ioc_clone and zfs_ioc_recv_impl in
    module/zfs/zfs_ioctl.c of OpenZFS).
    """
    for name in sorted(places):
        if datasets.exists(name):
            events.warn(
                f"{name} stays: it does not carry the mark of this restore (hint: if nobody needs it, `zfs destroy"
                f" {name}`)"
            )


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
        {**NO_SNAPSHOTS, **restored_property(work.plan), **(more or {})},
    )


def receive(work: ReceivingWork, step: Receive) -> None:
    """Receive one volume's stream, unless this restore received it before. An interrupted receive goes on.

    Every chunk is verified, and the records in it are checked, before a byte of it is received. NotOursError if
    somebody else made the dataset. After an error what was received is kept, unless the pool is full.
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
    datasets.ensure(step.dataset.rpartition("/")[0])
    mark = restored_mark(work.plan)
    interrupted = None
    if not work.is_first_run and datasets.exists(step.dataset):
        interrupted = interrupted_receive.rest_of(work, step, manifest, volume, mark)
    with interrupted_receive.given_back_if_full(work, step, mark):
        try:
            _bring(work, step, manifest, volume, interrupted)
        except (CommandError, NotResumableError) as error:
            if interrupted is None or not _begins_again(error, step, interrupted):
                raise
            interrupted_receive.begin_again(work, step, mark, error.message)
            _bring(work, step, manifest, volume, None)


def _begins_again(error: CommandError | NotResumableError, step: Receive, interrupted: InterruptedReceive) -> bool:
    return isinstance(error, NotResumableError) or interrupted_receive.is_refused(error, step, interrupted)


def _bring(
    work: ReceivingWork, step: Receive, manifest: Manifest, volume: VolumePart, interrupted: InterruptedReceive | None
) -> None:
    """Fetch the volume's stream, or the rest that an interrupted receive needs, and let ZFS receive it."""
    properties = {} if interrupted is not None else _properties_of(work, step, volume)
    # Nothing goes on in the middle of a raw stream, so nothing of it is kept.
    with ReceiveStream(step.dataset, properties, keeps_part=not volume.is_raw) as stream:
        # A broken pipe means that `zfs receive` failed; finish() says why.
        with (
            newest.naming_restorable(work.instance, work.repository, manifest.backup_id),
            contextlib.suppress(BrokenPipeError),
        ):
            stored = work.repository.chunks_of(manifest, step.role)
            download(
                stored,
                volume.chunks,
                volume.codec,
                stream.pipe,
                concurrency=work.instance.repository.stream.concurrency,
                widens=work.instance.repository.bandwidth is None,
                name=lambda index: f"chunk {stored.key(index)}",
                ciphers=work.repository.ciphers(manifest),
                expected=expected_stream(volume, volume.features),
                memory=work.memory,
                on_bytes=lambda done: work.events.progress(
                    Progress(f"receive {step.role} of {step.backup_id}", done, step.plain_bytes)
                ),
                resumption=None if interrupted is None else interrupted.resumption,
            )
        stream.finish()


def _properties_of(work: ReceivingWork, step: Receive, volume: VolumePart) -> dict[str, str]:
    """Return the properties of the dataset that a full stream makes; an increment sets none."""
    if step.from_guid is not None:
        return {}
    is_filesystem = isinstance(volume.type, FilesystemType)
    explicit = explicit_values("filesystem" if is_filesystem else "volume")
    properties = {**explicit, **NO_SNAPSHOTS, **restored_property(work.plan)}
    if step.key_location is not None:
        properties["keylocation"] = step.key_location
    if is_filesystem:
        properties |= {"canmount": "noauto", "mountpoint": step.mountpoint}
    return properties


def _is_received(plan: RestoreIdentity, step: Receive) -> bool:
    """Whether the snapshot exists. This waits until an earlier `zfs receive` into the dataset has ended.

    That one keeps what it received, or removes the dataset that it made. NotOursError if the dataset has snapshots and
    is not of this restore.
    """
    deadline = time.monotonic() + _PATIENCE
    while datasets.exists(step.dataset):
        received = snapshots.by_guid(step.dataset)
        if received:
            owned.prove([step.dataset], restored_mark(plan))
        if step.guid in received:
            return True
        if not streams.is_being_received(step.dataset) and (
            step.from_guid is not None or streams.token(step.dataset) is not None
        ):
            return False
        if time.monotonic() > deadline:
            raise CommandError(
                f"{step.dataset} exists without its snapshot, and not as a part of it",
                hint="end any other `zfs receive` into the dataset; if there is none, destroy the dataset by hand",
            )
        time.sleep(0.2)
    return False

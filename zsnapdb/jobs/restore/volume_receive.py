"""Functions that receive or clone a backup's volumes into new datasets, for every kind of source.

An interrupted receive is resumed if ZFS kept the received part and the stored stream allows it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from zsnapdb.base.domain_types import Progress, pool_of
from zsnapdb.base.errors import CommandError, ConsistencyError, DamagedError, NotFound, PreflightError, ZsnapdbError
from zsnapdb.base.quantities import size
from zsnapdb.config.repository import StreamSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.restore import chain_checks
from zsnapdb.planning.backup.send_form import decide_workers
from zsnapdb.planning.dataset_property_classes import explicit_values
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.plan import AnyRestorePlan, RestorePlan
from zsnapdb.planning.restore.steps import CloneSnapshot, MakeTop, PoolNeeds, Receive, full_receive_reason
from zsnapdb.repository.manifest import FilesystemType, Manifest, VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.buffer_pool import TransferMemory
from zsnapdb.stream.download import Resumption, download, resume_at
from zsnapdb.stream.resume_stream import NotResumableError, ResumePoint, parse_token
from zsnapdb.zfs import datasets, destruction, snapshots, streams
from zsnapdb.zfs.command import PoolFullError, StreamRefusedError
from zsnapdb.zfs.destruction import Mark
from zsnapdb.zfs.streams import ReceiveStream

_PATIENCE = 30.0


class RestoreIdentity(Protocol):
    """The fields of a plan that identify the restore."""

    @property
    def restore_id(self) -> str: ...


P = TypeVar("P", bound=RestoreIdentity)


@dataclass(frozen=True)
class ReceivingWork(Generic[P]):
    """A restore that is being executed, for every kind of source.

    `is_first_run` is set if the target did not exist when this run began, so it contains no data from an earlier run.
    """

    settings: Settings
    instance: Instance
    repository: Repository
    plan: P
    memory: TransferMemory = field(default_factory=TransferMemory, kw_only=True)
    is_first_run: bool = field(default=False, kw_only=True)

    @property
    def events(self) -> Events:
        """The receiver of this restore's events."""
        return self.instance.events

    @property
    def mark(self) -> Mark:
        """The mark that this restore alone sets on every dataset and step snapshot."""
        return restored_mark(self.plan)

    def manifest(self, backup_id: str) -> Manifest:
        return self.repository.manifest(self.instance.name, backup_id)


A = TypeVar("A", bound=AnyRestorePlan)


class RestoreWork(ReceivingWork[A]):
    """A restore that is being executed step by step, for every kind of source."""

    @property
    def is_continued(self) -> bool:
        """Whether the plan continues a finished restore."""
        return False

    def is_irreversible(self) -> bool:
        """Return whether the restored datasets may be the only datasets of the server.

        In this case the restore removes no dataset.
        """
        return False

    def remove(self) -> None:
        """Remove everything that the restore created, after a check that each dataset belongs to the restore."""
        remove_datasets(self.plan)


def restored_mark(plan: RestoreIdentity) -> Mark:
    """Return the mark that this restore alone sets on its datasets and step snapshots."""
    return Mark(RESTORED_PROPERTY, plan.restore_id)


def restored_property(plan: RestoreIdentity) -> dict[str, str]:
    """Return the property and value that set the mark of `restored_mark`."""
    return {RESTORED_PROPERTY: plan.restore_id}


def remove_datasets(plan: AnyRestorePlan) -> None:
    """Remove the datasets that this restore created, with their snapshots. All other datasets stay."""
    mark = restored_mark(plan)
    destruction.destroy_datasets(
        [name for name in plan.targets if destruction.is_ours(name, mark)], mark, with_snapshots=True
    )


N = TypeVar("N", bound=PoolNeeds)


def pool_needs(
    kind: Callable[..., N], chain: Sequence[Manifest], top: str, *, binlogs: int = 0, clones: bool = False, **more: Any
) -> N:
    """Return the step that checks the pool's space and features for a chain of backups received into the dataset `top`.

    The binlogs to be replayed later have `binlogs` bytes. If `clones` is set, the volumes are cloned and need no space,
    because a clone shares every block with its snapshot. `more` contains further fields of the step.
    """
    features = 0
    for volume in (volume for manifest in chain for volume in manifest.volumes):
        features |= volume.features
    return kind(
        pool=pool_of(top),
        parent=top.rpartition("/")[0],
        # Each replayed transaction uses space in a relay log, in a binlog, and in the tables.
        plain_bytes=(0 if clones else sum(manifest.plain_size for manifest in chain)) + 3 * binlogs,
        stored_bytes=(0 if clones else sum(manifest.stored_size for manifest in chain)) + binlogs,
        features=0 if clones else features,
        zfs_version=chain[-1].zfs_version,
        encrypted=() if clones else chain[-1].encrypted,
        raw=() if clones else chain[-1].raw,
        **more,
    )


def receives_of(
    volumes: Iterable[tuple[Manifest, VolumePart]],
    places: Mapping[str, tuple[str, str]],
    key_location: str | None = None,
) -> tuple[Receive, ...]:
    """Return the steps that receive the volumes, in order. `places` maps each role to a dataset and a mount point.

    Datasets that are received raw load their keys from `key_location`.
    """
    return tuple(
        Receive(
            backup_id=manifest.backup_id,
            role=volume.role,
            dataset=places[volume.role][0],
            mountpoint=places[volume.role][1],
            snapshot=volume.snapshot,
            guid=volume.guid,
            from_guid=volume.from_guid,
            plain_bytes=volume.plain_size,
            stored_bytes=volume.stored_size,
            key_location=key_location if volume.is_raw else None,
        )
        for manifest, volume in volumes
    )


def warn_remaining(events: Events, places: Iterable[str]) -> None:
    """Warn about datasets that an abandoned restore planned, but that do not have its mark.

    Either another program created such a dataset, or the power failed while the restore created it. ZFS creates a
    dataset and sets its properties in separate transaction groups (zfs_ioc_create, zfs_ioc_clone and zfs_ioc_recv_impl
    in module/zfs/zfs_ioctl.c of OpenZFS).
    """
    for name in sorted(places):
        if datasets.exists(name):
            events.warn(
                f"{name} stays: it does not carry the mark of this restore (hint: if nobody needs it, `zfs destroy"
                f" {name}`)"
            )


def make_top(work: ReceivingWork[P], step: MakeTop, more: Mapping[str, str] | None = None) -> None:
    """Create the parent dataset of sibling volumes, unless this restore has already created it.

    The properties in `more` are also set.

    Raises:
        NotOursError: the dataset does not belong to this restore.
    """
    if datasets.exists(step.dataset):
        destruction.prove([step.dataset], work.mark)
        return
    datasets.create(step.dataset, {**NO_SNAPSHOTS, **restored_property(work.plan), **(more or {})})


@dataclass(frozen=True)
class _InterruptedReceive:
    """The resume token of an interrupted receive, and the part of the stream that remains to be received."""

    token: str
    resumption: Resumption


def receive(work: ReceivingWork[P], step: Receive) -> None:
    """Receive the stream of one volume, unless this restore has already received it. An interrupted receive is resumed.

    Each chunk is verified, and its records are checked, before any byte of the chunk is written to ZFS. If an error
    occurs, the received data is kept, unless the pool is full.

    Raises:
        NotOursError: the dataset does not belong to this restore.
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
    interrupted = None
    if not work.is_first_run and datasets.exists(step.dataset):
        interrupted = _rest_of(work, step, manifest, volume)
    with _given_back_if_full(work, step):
        try:
            _bring(work, step, manifest, volume, interrupted)
        except (CommandError, NotResumableError) as error:
            if interrupted is None or not _is_refused(error, step, interrupted):
                raise
            _begin_again(work, step, error.message)
            _bring(work, step, manifest, volume, None)


def _bring(
    work: ReceivingWork[P],
    step: Receive,
    manifest: Manifest,
    volume: VolumePart,
    interrupted: _InterruptedReceive | None,
) -> None:
    """Download the volume's stream for ZFS to receive. After an interruption, download only the rest."""
    properties = {} if interrupted is not None else _properties_of(work, step, volume)
    # The receive of a raw stream cannot be resumed, so ZFS need not keep the received part.
    with ReceiveStream(step.dataset, properties, keeps_part=not volume.is_raw) as stream:
        # A broken pipe means that `zfs receive` failed. `finish` raises its error.
        with (
            chain_checks.naming_restorable(work.instance, work.repository, manifest.backup_id),
            contextlib.suppress(BrokenPipeError),
        ):
            stored = work.repository.chunks_of(manifest, step.role)
            download(
                stored,
                volume.chunks,
                volume.codec,
                stream.pipe,
                concurrency=_workers(work.instance.repository.stream, volume),
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


def _workers(settings: StreamSettings, volume: VolumePart) -> int:
    """Return how many chunks to fetch in parallel. The number is lower if the chunks are larger than this host's."""
    largest = max((chunk.plain_size for chunk in volume.chunks), default=0)
    return decide_workers(settings.concurrency, largest, settings.chunk_size)


def _properties_of(work: ReceivingWork[P], step: Receive, volume: VolumePart) -> dict[str, str]:
    """Return the properties of the dataset that a full stream creates; empty for an increment."""
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
    """Wait for the end of an earlier `zfs receive` into the dataset, and return whether the snapshot exists.

    The earlier receive either keeps the received part, or removes the dataset that it created.

    Raises:
        NotOursError: the dataset has snapshots and does not belong to this restore.
    """
    deadline = time.monotonic() + _PATIENCE
    while datasets.exists(step.dataset):
        received = snapshots.by_guid(step.dataset)
        if received:
            destruction.prove([step.dataset], restored_mark(plan))
        if step.guid in received:
            return True
        if not streams.is_being_received(step.dataset) and (
            step.from_guid is not None or streams.token(step.dataset) is not None
        ):
            return False
        if time.monotonic() > deadline:
            raise CommandError(
                f"{step.dataset} exists without its snapshot, and is not a partial receive of it",
                hint="end any other `zfs receive` into the dataset; if there is none, destroy the dataset by hand",
            )
        time.sleep(0.2)
    return False


def _rest_of(
    work: ReceivingWork[P], step: Receive, manifest: Manifest, volume: VolumePart
) -> _InterruptedReceive | None:
    """Return the rest of a volume whose receive was interrupted; None if the whole volume must be received again.

    If the part that ZFS already received cannot be used, remove it and warn.

    Raises:
        NotOursError: the dataset does not belong to this restore; nothing was changed.
    """
    token = streams.token(step.dataset)
    if token is None:
        return None
    destruction.prove([step.dataset], work.mark)
    why: str | None
    try:
        point = parse_token(token)
        why = full_receive_reason(
            step, to_guid=point.to_guid, from_guid=point.from_guid, records=point.received > 0 and point.object > 0
        )
    except DamagedError as error:
        why = error.message
    if why is None:
        try:
            resumption = _resumption(work, manifest, volume, point)
        except NotResumableError as error:
            why = error.message
    if why is not None:
        _begin_again(work, step, why)
        return None
    work.events.tell(
        f"the {step.role} volume of {step.backup_id} continues at {size(resumption.before)} of"
        f" {size(step.plain_bytes)}: ZFS kept the received data"
    )
    return _InterruptedReceive(token, resumption)


def _resumption(work: ReceivingWork[P], manifest: Manifest, volume: VolumePart, point: ResumePoint) -> Resumption:
    stored = work.repository.chunks_of(manifest, volume.role)
    return resume_at(
        stored,
        volume.chunks,
        volume.codec,
        point,
        name=lambda index: f"chunk {stored.key(index)}",
        ciphers=work.repository.ciphers(manifest),
        expected=expected_stream(volume, volume.features),
    )


def _begin_again(work: ReceivingWork[P], step: Receive, why: str) -> None:
    work.events.warn(f"the {step.role} volume of {step.backup_id} is received again from its beginning: {why}")
    # When ZFS refuses to resume, it may also have removed the received part.
    if _resume_token(step) is not None:
        destruction.drop_partial(step.dataset, work.mark)


@contextlib.contextmanager
def _given_back_if_full(work: ReceivingWork[P], step: Receive) -> Iterator[None]:
    """Run a `with` block that receives the volume. If the pool is full, remove the received part, and warn.

    While the pool is full, no server in this pool can write. The removed part can be received again later.
    """
    try:
        yield
    except PoolFullError as error:
        try:
            if _resume_token(step) is not None:
                destruction.drop_partial(step.dataset, work.mark)
                work.events.warn(
                    f"the pool is full, so the partly received {step.role} volume of {step.backup_id} was removed"
                )
        except ZsnapdbError as second:
            error.add_note(f"removing the part of {step.dataset} that was received failed: {second}")
        raise


def _is_refused(error: CommandError | NotResumableError, step: Receive, interrupted: _InterruptedReceive) -> bool:
    """Return True if the receive cannot be resumed: the stream lacks the rest, or ZFS refused every record.

    After other errors, such as a full pool, the receive can be resumed.
    """
    is_of_zfs = isinstance(error, StreamRefusedError) and _resume_token(step) in (interrupted.token, None)
    return is_of_zfs or isinstance(error, NotResumableError)


def _resume_token(step: Receive) -> str | None:
    return streams.token(step.dataset) if datasets.exists(step.dataset) else None


def clone_snapshot(work: ReceivingWork[RestorePlan], step: CloneSnapshot) -> None:
    """Clone one volume from its snapshot on this host, unless this restore has already cloned it.

    Raises:
        PreflightError: the snapshot no longer exists, or does not belong to the backup.
        NotOursError: the dataset does not belong to this restore.
    """
    if not datasets.exists(step.dataset):
        _refuse_another_origin(step)
        datasets.ensure(step.dataset.rpartition("/")[0])
        datasets.clone(
            step.origin,
            step.guid,
            step.dataset,
            {
                **explicit_values(),
                "canmount": "noauto",
                "mountpoint": step.mountpoint,
                **NO_SNAPSHOTS,
                **restored_property(work.plan),
            },
        )
    destruction.prove([step.dataset], work.mark)
    if datasets.origin_guid(step.dataset) != step.guid:
        raise ConsistencyError(
            f"{step.dataset} is no longer a clone of {step.origin}, as the restore planned",
            hint=f"give it up with `zsnapdb restore {work.plan.instance} --abandon --target {work.plan.top}`, and start"
            " again",
        )
    start = f"{step.dataset}@{step.snapshot}"
    if start not in snapshots.by_guid(step.dataset).values():
        made = snapshots.PendingSnapshots.of([start], restored_property(work.plan))
        made.start()
        made.finish()


def _refuse_another_origin(step: CloneSnapshot) -> None:
    """Raise PreflightError if this host no longer has the snapshot for which the restore was planned."""
    try:
        is_same = datasets.guid(step.origin) == step.guid
    except NotFound:
        is_same = False
    if not is_same:
        raise PreflightError(
            f"the snapshot {step.origin} was destroyed after the restore was planned",
            hint="start the restore again; it is then planned from the existing snapshots",
        )

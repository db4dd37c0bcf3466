"""Stores a backup that has a journal, in these steps: send, store, confirm, commit, keep as a base.

An interrupted run leaves one of these states, from which the next run (`resume.py`) continues:
- Snapshots without a journal: the next run removes the snapshots.
- A journal, and some or all chunks: the next run sends every stream again, compares each stored chunk, and stores only
  the missing chunks.
- A manifest: the next run finishes the backup with `settle`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from zsnapdb import __version__
from zsnapdb.base import files
from zsnapdb.base.domain_types import Progress, Snapshot, SnapshotSet, pool_of
from zsnapdb.base.errors import DamagedError, PreflightError, RepositoryError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.backup.source_interface import SourceDescription
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import BASE_TAG, REPOSITORY_PROPERTY, STATE_PROPERTY, STORED
from zsnapdb.jobs.host.object_locks import extend_locks
from zsnapdb.jobs.record.host_backup_record import checked_backups, next_sequence, note_stored
from zsnapdb.planning.backup.dataset_encryption import judge_storing
from zsnapdb.planning.backup.fitness import require_fit
from zsnapdb.planning.backup.send_form import (
    SEND_FLAGS,
    SendForm,
    check_rows,
    decide_chunk_size,
    decide_first_chunk,
    decide_workers,
    form_of,
)
from zsnapdb.repository import layout
from zsnapdb.repository.backup_journal import BackupJournal, StartedBackup, StartedVolume, StreamFormat
from zsnapdb.repository.backup_marks import SnapshotMark, Unfinished, remove_mark
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.keyring import DataKey
from zsnapdb.repository.layout import ChunkKey
from zsnapdb.repository.manifest import (
    Manifest,
    ObjectivesPart,
    SentVolume,
    SourcePart,
    VolumePart,
    VolumeType,
    expected_stream,
)
from zsnapdb.repository.repository import Repository, VolumeChunks, confirm
from zsnapdb.repository.writer_lease import WriterLease
from zsnapdb.stream.buffer_pool import TransferMemory
from zsnapdb.stream.chunks import Body, ChunkSink, Codec
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.upload import KnownChunk, Uploaded, UploadSettings, upload
from zsnapdb.zfs import datasets, holds, snapshots, version
from zsnapdb.zfs.streams import SendStream, estimate


def may_hold_base(instance: Instance, names: Sequence[str], of_sets: Collection[str] = ()) -> list[str]:
    """Return the full names of the snapshots that this run may hold.

    If this run is killed, the next run must be able to find and release the holds. The next run finds the snapshots
    `of_sets`, because it reads all sets of the instance. The names of other snapshots are first written to a file. If
    the file cannot be written, the result lacks these snapshots. The function cannot recognise snapshots of sets by
    their names: received snapshots that belong to no set can have the same names.
    """
    others = [name for name in names if name not in of_sets]
    try:
        if others:
            _write(instance, others)
    except (OSError, PreflightError):
        return [name for name in names if name not in others]
    return list(names)


def release_base_holds(instance: Instance, places: Collection[str]) -> None:
    """Release a killed run's holds on snapshots that belong to no set.

    Call this only while no backup of the instance is in progress.

    If the file with the names does not exist, all snapshots of the datasets are searched. An older version may have
    left holds on any of them.
    """
    try:
        noted = _file(instance).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        holds.release(holds.held_snapshots(places, BASE_TAG), BASE_TAG)
    else:
        if not noted:
            return
        # The dataset may have been renamed.
        short = {name.partition("@")[2] for name in noted}
        there = [name for place in places for one in short if datasets.exists(name := f"{place}@{one}")]
        holds.release(holds.snapshots_with_hold(there, BASE_TAG), BASE_TAG)
    with contextlib.suppress(OSError, PreflightError):
        _write(instance, ())


def _file(instance: Instance) -> Path:
    return instance.host.bases / instance.name


def _write(instance: Instance, names: Sequence[str]) -> None:
    make_private(_file(instance).parent)
    files.replace(_file(instance), "\n".join(names).encode())


@dataclass(frozen=True)
class LeasedChunks:
    """The chunks of a volume. A chunk is stored only while this run holds the instance's lease."""

    chunks: VolumeChunks
    lease: WriterLease

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return the associated data that authenticates the position of an encrypted chunk in the stream."""
        return self.chunks.associated(index, last=last)

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk. Raises LeaseError if another run has taken over the lease."""
        self.lease.check()
        self.chunks.put_chunk(index, body, sha256)

    def give_up(self) -> None:
        """Stop all retries of requests to the store."""
        self.chunks.give_up()


@dataclass(frozen=True)
class _JournalledChunks(LeasedChunks):
    """The chunks of a volume.

    Before `put_chunk` stores a chunk, it checks the lease and clears the old journal entry.
    """

    journal: BackupJournal

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        self.lease.check()
        self.journal.forget(self.chunks.role, index)
        self.chunks.put_chunk(index, body, sha256)


@dataclass(frozen=True)
class Sender:
    """The part of a run that stores one backup.

    The mapping `present` gives the size in bytes of each chunk that was stored when the run began, by the chunk's
    object key. The mapping `bases` contains the base of each volume by role, if the caller knows and holds the bases.
    If `bases` is None, the bases are looked up.
    """

    instance: Instance
    repository: Repository
    journal: BackupJournal
    lease: WriterLease
    present: Mapping[ChunkKey, int]
    bases: Mapping[str, str] | None = None
    memory: TransferMemory = field(default_factory=TransferMemory)

    @classmethod
    def of(
        cls,
        instance: Instance,
        repository: Repository,
        journal: BackupJournal,
        lease: WriterLease,
        *,
        is_new: bool,
        bases: Mapping[str, str] | None = None,
    ) -> Sender:
        """Return the sender of a new or continued backup.

        If the run continues a backup, the chunks in the store are listed. A chunk that is in the journal but not in the
        store is stored again.
        """
        draft = journal.started.draft
        present = {} if is_new else repository.sizes(layout.chunks_of_backup(draft.instance, draft.backup_id))
        return cls(instance, repository, journal, lease, present, bases)

    def finish(self) -> Manifest:
        """Store all volumes and commit the backup.

        After this method, the manifest has been read back from the store, and the snapshots can be a base.

        Raises:
            LeaseError: another run has taken over the lease; no manifest was written.
        """
        started = self.journal.started
        self._refuse_clear()
        _announce(self.instance.name, self.repository, self.journal)
        key = self._new_key()
        with _bases_held(self.instance, started.volumes, self.bases) as bases:
            for volume in started.volumes:
                if self._finished(volume) is None:
                    self._send(volume, bases.get(volume.role), key)
            manifest = self._committed()
            self._settle([name for name in bases.values() if "@" in name])
        local_snapshot.keep(self.instance, manifest)
        return manifest

    def _committed(self) -> Manifest:
        manifest = self.journal.completed(self._numbered(self.journal.started.draft))
        assert manifest is not None
        for volume in manifest.volumes:
            confirm(self.repository.chunks(manifest.instance, manifest.backup_id, volume.role), volume.chunks)
        self.lease.confirm()
        digest = self.repository.commit(manifest)
        note_stored(self.instance, self.repository, manifest, digest)
        extend_locks(self.instance, self.repository, manifest.backup_id)
        return manifest

    def _numbered(self, draft: Manifest) -> Manifest:
        """Return the draft with a sequence number. Drafts from earlier versions have none."""
        if draft.sequence is not None:
            return draft
        known, checked = checked_backups(self.instance, self.repository)
        number = next_sequence(self.instance, self.repository, checked.numbers(known.backups))
        return draft.model_copy(update={"sequence": number})

    def _settle(self, bases: Sequence[str]) -> None:
        """Make the committed backup's snapshots a base, and release the holds on the snapshots in `bases`."""
        names = _there(self.journal)
        if names:
            holds.give_back(names, _stored_properties(self.repository), dict.fromkeys(bases, BASE_TAG))
        else:
            holds.release(bases, BASE_TAG)
        _forget(self.instance.name, self.repository, self.journal)

    def _refuse_clear(self) -> None:
        """Raise PreflightError if an encrypted volume would be stored unencrypted."""
        shown = [part for part in self.journal.started.volumes if form_of(part.send_flags) is not SendForm.RAW]
        ciphers = {part.dataset: part.type.encryption for part in shown if part.type.encryption}
        require_fit(judge_storing(ciphers, is_encrypting=self.repository.keyring.is_encrypting))

    def _new_key(self) -> DataKey | None:
        """Return a new data key for the chunks of this run; None without encryption. Each run has its own key."""
        if not self.repository.keyring.is_encrypting:
            return None
        key = self.repository.keyring.new_key(str(len(self.journal.keys) + 1))
        self.journal.add_key(key.part)
        return key

    def _is_present(self, role: str, index: int, stored_size: int) -> bool:
        started = self.journal.started
        return self.present.get(layout.chunk(started.draft.instance, started.backup_id, role, index)) == stored_size

    def _finished(self, volume: StartedVolume) -> VolumePart | None:
        """Return the volume if an earlier run stored its whole stream and all its chunks are still stored."""
        part = self.journal.finished.get(volume.role)
        if part is None or not all(
            self._is_present(volume.role, index, chunk.stored_size) for index, chunk in enumerate(part.chunks, 1)
        ):
            return None
        return part

    def _send(self, volume: StartedVolume, base: str | None, key: DataKey | None) -> VolumePart:
        """Send one volume. Its base is the snapshot or bookmark `base` (full name); None means a full stream.

        Afterwards all its chunks are stored, the END record of the stream has been read, and `zfs send` has succeeded.
        """
        started = self.journal.started
        chunks = self.repository.chunks(started.draft.instance, started.backup_id, volume.role)
        known = {
            index: chunk
            for index, chunk in self.journal.known(volume.role).items()
            if self._is_present(volume.role, index, chunk.chunk.stored_size)
        }

        stored = store_stream(
            volume,
            base,
            _JournalledChunks(chunks, self.lease, self.journal),
            self._settings(),
            self.instance.events,
            key,
            known=known,
            on_stored=partial(self.journal.stored, volume.role),
            memory=self.memory,
            total=volume.stream_size,
        )
        part = VolumePart(
            **volume.model_dump(exclude={"stream_size"}),
            features=stored.begin.features,
            codec=started.cut.codec,
            plain_size=stored.plain_size,
            sha256=stored.sha256,
            chunks=stored.chunks,
        )
        self.journal.volume_done(part)
        return part

    def _settings(self) -> UploadSettings:
        """Return the stream settings that the backup's first run chose. Later configuration changes have no effect."""
        cut = self.journal.started.cut
        return replace(
            settings_for(self.instance, cut.chunk_size),
            codec=cut.codec,
            level=cut.level,
            adaptive=cut.adaptive,
            first_chunk=cut.first_chunk,
        )


def settings_for(instance: Instance, chunk_size: int) -> UploadSettings:
    """Return upload settings for chunks of this size in bytes. The available memory limits the number of workers."""
    settings = instance.upload_settings()
    workers = decide_workers(settings.concurrency, chunk_size, settings.chunk_size)
    return replace(settings, chunk_size=chunk_size, concurrency=workers)


def store_stream(
    volume: SentVolume,
    base: str | None,
    sink: ChunkSink,
    settings: UploadSettings,
    events: Events,
    key: DataKey | None,
    *,
    known: Mapping[int, KnownChunk] | None = None,
    on_stored: Callable[[int, KnownChunk], None] | None = None,
    memory: TransferMemory | None = None,
    total: int | None = None,
) -> Uploaded:
    """Send a volume's snapshot and store the stream. Afterwards all chunks are stored, and `zfs send` succeeded.

    The stream is sent from the snapshot or bookmark `base`; None means a full stream. The arguments `known`,
    `on_stored` and `memory` have the same meaning as in `upload`. The argument `total` is the estimated size in bytes,
    if already known.

    Raises:
        ConfigError: the stream would have too many chunks. No chunk is stored.
    """
    if total is None:
        total = estimate(volume.full_name, base, volume.send_flags)
    check_rows(volume.full_name, total, settings.chunk_size)
    with SendStream(volume.full_name, base, volume.send_flags) as stream:
        try:
            stored = upload(
                stream.pipe,
                sink,
                settings,
                lambda done: events.progress(Progress(f"send {volume.role}", done, total)),
                cipher=ChunkCipher(key.secret, key.part.id) if key is not None else None,
                known=known,
                on_stored=on_stored,
                expected=expected_stream(volume),
                memory=memory,
            )
        except DamagedError:
            # The error of `zfs send` explains more than the error about the incomplete stream.
            stream.raise_its_own_error()
            raise
        stream.finish()
    return stored


def _announce(instance: str, repository: Repository, journal: BackupJournal) -> None:
    """Write a mark that tells other hosts of this unfinished backup. Call this before the first chunk is stored."""
    draft = journal.started.draft
    parts = {
        v.role: SnapshotMark(name=v.full_name, guid=v.guid, from_guid=v.from_guid) for v in journal.started.volumes
    }
    Unfinished(
        journal.started.backup_id, instance, socket.gethostname(), f"{draft.created:%Y-%m-%dT%H:%M:%SZ}", parts
    ).write(repository)


def _base_name(volume: StartedVolume, points: Mapping[str, snapshots.SendPoints]) -> str | None:
    """Return the name of the base: its snapshot or, if that no longer exists, its bookmark.

    The result is None for a full stream. ZFS sends the same stream from the bookmark as from the snapshot. If a
    continued run sent a different stream, it would notice this, because it compares every chunk.
    """
    if volume.from_guid is None:
        return None
    base = points[volume.dataset].names.get(volume.from_guid)
    if base is not None:
        return base
    raise DamagedError(
        f"neither a snapshot nor a bookmark with GUID {volume.from_guid} is left on {volume.dataset}",
        hint="somebody removed the base of this backup during the backup; run the backup again",
    )


@contextlib.contextmanager
def _bases_held(
    instance: Instance, volumes: Sequence[StartedVolume], known: Mapping[str, str] | None
) -> Iterator[Mapping[str, str]]:
    """Hold the base snapshots, and yield the base of each increment by role. If the block fails, release these holds.

    The argument `known` contains the bases if the caller already holds them. If this run is killed, the next run
    releases the holds.
    """
    if known is not None:
        yield known
        return
    points = snapshots.send_points([volume.dataset for volume in volumes if volume.from_guid is not None])
    bases = {volume.role: name for volume in volumes if (name := _base_name(volume, points)) is not None}
    names = may_hold_base(instance, [name for name in bases.values() if "@" in name])
    try:
        holds.ensure_held(names, BASE_TAG)
        yield bases
    except BaseException:
        with contextlib.suppress(ZsnapdbError):
            holds.release(names, BASE_TAG)
        raise


def settle(instance: str, repository: Repository, journal: BackupJournal) -> None:
    """Finish a committed backup of an earlier run, after its manifest was read back from the store.

    A second call is harmless. The snapshots of the backup become a base. The journal and the mark of the unfinished
    backup are removed.
    """
    keep_as_base(_there(journal), repository)
    _forget(instance, repository, journal)


def _there(journal: BackupJournal) -> list[str]:
    return [name for name in journal.started.snapshots() if datasets.exists(name)]


def _forget(instance: str, repository: Repository, journal: BackupJournal) -> None:
    """Remove the mark and the journal of the unfinished backup."""
    # If this host may not remove objects, the mark stays. Readers ignore the mark once the manifest exists.
    with contextlib.suppress(RepositoryError):
        remove_mark(repository, instance, journal.started.backup_id)
    journal.remove()


def protect(names: Sequence[str]) -> None:
    """Bookmark each snapshot, so that the next increment remains possible if the snapshot is removed.

    Call this before the first byte is sent.
    """
    snapshots.bookmark(names)


def keep_as_base(names: Sequence[str], repository: Repository) -> None:
    """Make the snapshots a base: bookmark each snapshot, release its hold, and mark the set as stored.

    Call this after the manifest was read back.
    """
    if names:
        protect(names)
        holds.give_back(names, _stored_properties(repository), {})


def _stored_properties(repository: Repository) -> dict[str, str]:
    return {STATE_PROPERTY: STORED, REPOSITORY_PROPERTY: repository.id}


def started_backup(
    instance: Instance,
    described: SourceDescription,
    repository: Repository,
    made: SnapshotSet,
    base: Summary | None,
    created: datetime,
    form: SendForm,
    sequence: int,
    sent_from: Mapping[str, str],
) -> StartedBackup:
    """Return all facts that a later run needs to continue the backup. Call this before the backup's streams are sent.

    The mapping `sent_from` contains the base's local snapshot or bookmark by role; it is empty for a full backup.
    """
    settings = instance.upload_settings()
    # If the stream contains blocks that the pool has compressed, it is not compressed a second time.
    codec = settings.codec if form is SendForm.PLAIN else Codec.NONE
    volumes = tuple(
        _sized(_volume(described.volumes[role], SEND_FLAGS[form], role, snapshot, base), sent_from.get(role))
        for role, snapshot in sorted(made.snapshots.items())
    )
    sizes = [volume.stream_size or 0 for volume in volumes]
    chunk_size = decide_chunk_size(settings.chunk_size, sizes)
    return StartedBackup(
        draft=_draft(instance, described.source, repository, made, created, sequence),
        base=base.backup_id if base is not None else None,
        recipients=repository.keyring.recipients,
        cut=StreamFormat(
            chunk_size=chunk_size,
            codec=codec,
            level=settings.level,
            adaptive=settings.adaptive,
            first_chunk=decide_first_chunk(settings.size_of(1), chunk_size, sizes),
        ),
        volumes=volumes,
    )


def _sized(volume: StartedVolume, base: str | None) -> StartedVolume:
    """Return the volume with the estimated size of its stream.

    The estimate of an increment from a bookmark takes a long time. So if the base is a bookmark, `store_stream` makes
    the estimate later.
    """
    if volume.from_guid is not None and (base is None or "@" not in base):
        return volume
    size = estimate(volume.full_name, base, volume.send_flags)
    return volume.model_copy(update={"stream_size": size})


def _volume(
    kind: VolumeType, flags: tuple[str, ...], role: str, snapshot: Snapshot, base: Summary | None
) -> StartedVolume:
    before = base.volume(role) if base is not None else None
    return StartedVolume(
        role=role,
        dataset=snapshot.dataset,
        snapshot=snapshot.name,
        guid=snapshot.guid,
        from_guid=before.guid if before is not None else None,
        send_flags=flags,
        type=kind,
    )


def _draft(
    instance: Instance, source: SourcePart, repository: Repository, made: SnapshotSet, created: datetime, sequence: int
) -> Manifest:
    pool = pool_of(next(iter(made.snapshots.values())).dataset)
    return Manifest(
        backup_id=made.backup_id,
        instance=instance.name,
        repository_id=repository.id,
        created=created,
        tool_version=__version__,
        run_id=instance.host.run_id(),
        host=instance.host.who().host,
        objectives=ObjectivesPart.of(instance.settings.objectives),
        zfs_version=version.userland(),
        pool_guid=version.pool_guid(pool),
        createtxg=made.createtxg,
        sequence=sequence,
        source=source,
        volumes=(),
    )

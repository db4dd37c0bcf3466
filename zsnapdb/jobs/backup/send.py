"""Stores a backup that was begun, in its first run or in a later one: send, compare, store, prove, commit, keep as a base.

What each state leaves behind, and what the next run makes of it (jobs/interrupted.py):

snapshots made, no journal      removed journal, some or all chunks     continued: every stream is sent again, and what
is stored already is compared and not stored again manifest written                finished: what is left to do below
`_keep_as_base`
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zsnapdb.errors import DamagedError, RepositoryError, ZsnapdbError
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.set_properties import BASE_TAG, REPOSITORY_PROPERTY, STATE_PROPERTY, STORED
from zsnapdb.model import Progress
from zsnapdb.repository import layout
from zsnapdb.repository.backup_journal import BackupJournal, VolumeBegun
from zsnapdb.repository.confirm import confirm
from zsnapdb.repository.keyring import DataKey
from zsnapdb.repository.layout import ChunkKey
from zsnapdb.repository.manifest import Manifest, VolumePart
from zsnapdb.repository.repository import Repository, VolumeChunks
from zsnapdb.repository.unfinished import SnapshotMark, Unfinished, remove
from zsnapdb.repository.writer_lease import WriterLease
from zsnapdb.stream.chunks import Body
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.upload import KnownChunk, UploadSettings, upload
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.streams import SendStream, estimate


@dataclass(frozen=True)
class _JournalledChunks:
    """A volume's chunks, written only while the lease is ours and the journal does not say otherwise."""

    chunks: VolumeChunks
    journal: BackupJournal
    lease: WriterLease

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to."""
        return self.chunks.associated(index, last=last)

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk. What the journal says of an earlier one in its place is taken back first."""
        self.lease.check()
        self.journal.forget(self.chunks.role, index)
        self.chunks.put_chunk(index, body, sha256)

    def give_up(self) -> None:
        """Let the store try nothing again."""
        self.chunks.give_up()


@dataclass(frozen=True)
class Sender:
    """One run over one backup.

    `present` has the stored chunks by key, with their sizes, as they were when the run began.
    """

    instance: Instance
    repository: Repository
    journal: BackupJournal
    lease: WriterLease
    present: Mapping[ChunkKey, int]

    @classmethod
    def of(
        cls,
        instance: Instance,
        repository: Repository,
        journal: BackupJournal,
        lease: WriterLease,
        *,
        is_new: bool,
    ) -> Sender:
        """Return a run.

        Of one that is continued the store is asked what it has; what the journal says beyond that is not believed.
        """
        present = {} if is_new else _stored_sizes(repository, journal.begun.draft)
        return cls(instance, repository, journal, lease, present)

    def finish(self) -> Manifest:
        """Store all volumes and commit the backup.

        Afterwards its manifest was read back, and its snapshots can be the base of the next one.

        LeaseError, before the manifest is written, if another run has taken over.
        """
        begun = self.journal.begun
        _announce(self.instance.name, self.repository, self.journal)
        key = self._new_key()
        with _bases_held(begun.volumes):
            volumes = tuple(self._finished(volume) or self._send(volume, key) for volume in begun.volumes)
        used = {chunk.key_id for volume in volumes for chunk in volume.chunks}
        keys = tuple(part for key_id, part in self.journal.keys.items() if key_id in used)
        manifest = begun.draft.model_copy(update={"keys": keys, "volumes": volumes})
        for volume in manifest.volumes:
            confirm(self.repository.chunks(manifest.instance, manifest.backup_id, volume.role), volume.chunks)
        self.lease.confirm()
        self.repository.commit(manifest)
        settle(self.instance.name, self.repository, self.journal)
        return manifest

    def _new_key(self) -> DataKey | None:
        """Return a data key for what this run stores: no run can read what another one stored."""
        if not self.repository.keyring.is_encrypting:
            return None
        key = self.repository.keyring.new_key(str(len(self.journal.keys) + 1))
        self.journal.add_key(key.part)
        return key

    def _is_present(self, role: str, index: int, stored_size: int) -> bool:
        begun = self.journal.begun
        return self.present.get(layout.chunk(begun.draft.instance, begun.backup_id, role, index)) == stored_size

    def _finished(self, volume: VolumeBegun) -> VolumePart | None:
        """Return the volume if an earlier run stored it to its END and all of it is still there."""
        found = self.journal.finished.get(volume.role)
        if found is None or not all(
            self._is_present(volume.role, index, chunk.stored_size) for index, chunk in enumerate(found.chunks, 1)
        ):
            return None
        return found

    def _send(self, volume: VolumeBegun, key: DataKey | None) -> VolumePart:
        """Send one volume.

        Afterwards all its chunks are stored, the stream's END was seen and `zfs send` ended well.
        """
        base = _base_name(volume)
        total = estimate(volume.full_name, base, volume.send_flags)
        begun = self.journal.begun
        chunks = self.repository.chunks(begun.draft.instance, begun.backup_id, volume.role)
        known = {
            index: chunk
            for index, chunk in self.journal.known(volume.role).items()
            if self._is_present(volume.role, index, chunk.chunk.stored_size)
        }

        def stored_now(index: int, chunk: KnownChunk) -> None:
            self.journal.stored(volume.role, index, chunk)

        with SendStream(volume.full_name, base, volume.send_flags) as stream:
            try:
                stored = upload(
                    stream.pipe,
                    _JournalledChunks(chunks, self.journal, self.lease),
                    self._settings(),
                    lambda done: self.instance.events.progress(Progress(f"send {volume.role}", done, total)),
                    cipher=ChunkCipher(key.secret, key.part.id) if key is not None else None,
                    known=known,
                    on_stored=stored_now,
                )
            except DamagedError:
                # What `zfs send` says of its own death is the better story.
                stream.raise_its_own_error()
                raise
            stream.finish()
        if (stored.begin.to_guid, stored.begin.from_guid) != (volume.guid, volume.from_guid or 0):
            raise DamagedError(
                f"the stream of {volume.full_name} leads from GUID {stored.begin.from_guid} to {stored.begin.to_guid}, "
                f"expected from {volume.from_guid or 0} to {volume.guid}",
                hint="was the snapshot renamed or replaced during the backup? run it again",
            )
        part = VolumePart(
            **volume.model_dump(),
            features=stored.begin.features,
            codec=begun.cut.codec,
            plain_size=stored.plain_size,
            sha256=stored.sha256,
            chunks=stored.chunks,
        )
        self.journal.volume_done(part)
        return part

    def _settings(self) -> UploadSettings:
        """Return how the stream is cut and compressed: as in the first run, whatever the configuration says now."""
        cut = self.journal.begun.cut
        return replace(
            self.instance.upload_settings(),
            chunk_size=cut.chunk_size,
            codec=cut.codec,
            level=cut.level,
            adaptive=cut.adaptive,
        )


def _announce(instance: str, repository: Repository, journal: BackupJournal) -> None:
    """Tell other hosts, before the first chunk, what is going on here."""
    draft = journal.begun.draft
    parts = {v.role: SnapshotMark(v.full_name, v.guid, v.from_guid) for v in journal.begun.volumes}
    Unfinished(
        journal.begun.backup_id, instance, socket.gethostname(), f"{draft.created:%Y-%m-%dT%H:%M:%SZ}", parts
    ).write(repository)


def _base_name(volume: VolumeBegun) -> str | None:
    """Return the snapshot or, if that is gone, the bookmark to send from.

    The stream is the same; what differs is found by comparing.
    """
    if volume.from_guid is None:
        return None
    found = {**snapshots.bookmarks(volume.dataset), **snapshots.by_guid(volume.dataset)}
    if volume.from_guid not in found:
        raise DamagedError(
            f"neither a snapshot nor a bookmark with GUID {volume.from_guid} is left on {volume.dataset}",
            hint="somebody removed the base of this backup while it ran; run it again",
        )
    return found[volume.from_guid]


@contextlib.contextmanager
def _bases_held(volumes: Sequence[VolumeBegun]) -> Iterator[None]:
    """Hold the snapshots that are sent from; a bookmark cannot be held.

    Ones left held by a run that died are let go by the next.
    """
    names = []
    for volume in volumes:
        name = _base_name(volume)
        if name is not None and "@" in name:
            snapshots.ensure_held(name, BASE_TAG)
            names.append(name)
    try:
        yield
    except BaseException:
        with contextlib.suppress(ZsnapdbError):
            snapshots.release(names, BASE_TAG)
        raise
    snapshots.release(names, BASE_TAG)


def _stored_sizes(repository: Repository, draft: Manifest) -> dict[ChunkKey, int]:
    return repository.sizes(layout.chunks_of_backup(draft.instance, draft.backup_id))


def settle(instance: str, repository: Repository, journal: BackupJournal) -> None:
    """After the manifest was read back: its snapshots become a base, and what told of an unfinished backup is removed.

    Can be repeated.
    """
    keep_as_base([name for name in journal.begun.snapshots() if datasets.exists(name)], repository)
    # A host that may not remove objects leaves it: beside a manifest it has no meaning.
    with contextlib.suppress(RepositoryError):
        remove(repository, instance, journal.begun.backup_id)
    journal.remove()


def protect(names: Sequence[str]) -> None:
    """Before the first byte is sent: a bookmark of each snapshot, so that the next increment does not depend on the snapshot staying."""
    for snapshot in snapshots.describe(names):
        snapshots.bookmark(snapshot)


def keep_as_base(names: Sequence[str], repository: Repository) -> None:
    """After the manifest is read back: each snapshot has a bookmark, its hold is let go, and the set is marked as stored there."""
    if names:
        protect(names)
        snapshots.release(names)
        snapshots.set_on(names, {STATE_PROPERTY: STORED, REPOSITORY_PROPERTY: repository.id})

"""Verifies that the repository still contains all bytes that were written.

A verification lists all objects or, with `--deep`, reads every byte.

The findings are recorded in the repository. A failure of the store is not a finding: the run records the findings so
far, and ends with an error.

Findings about archived binlogs are recorded under `<incarnation>/<file>`. Findings about an active binlog are not
recorded, because its objects change until the next run. A document (marker, manifest, description, evidence, pin, mark,
lease) is damaged if it does not match its own signature or digest. The meaning of a document is checked only when a
program uses the document.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from zsnapdb.base import untrusted_text
from zsnapdb.base.domain_types import Progress
from zsnapdb.base.errors import ArchivedError, ConfigError, DamagedError, NotFound, RepositoryError, ZsnapdbError
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import archived_damage
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.planning.repository.host_backup_record import StoredFinding
from zsnapdb.planning.repository.verification import Consequences, consequences, due
from zsnapdb.repository import layout, marker, stored_document, verifications
from zsnapdb.repository.archived_objects import require_readable
from zsnapdb.repository.binlog_archive import BinlogArchive, listed_damage, name_of, stored_sizes
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summaries
from zsnapdb.repository.layout import Key, KeyPrefix
from zsnapdb.repository.manifest import Manifest, VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks
from zsnapdb.repository.verifications import Depth as Depth
from zsnapdb.store.base import ARCHIVED_HINT
from zsnapdb.stream.buffer_pool import SlotPool
from zsnapdb.stream.chunks import Body, Workspace, stream_hash, unseal
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.send_stream_checks import Walker

_READERS = 8
_LARGE_DOCUMENT = 16 << 20
"""Only one document of this size in bytes is in memory at a time."""
_LARGE_BACKUP = 100_000
"""Only one manifest with this number of chunks is in memory at a time."""
_LEASES = ("writer", "consolidate")


@dataclass(frozen=True)
class DocumentCheck:
    """The damage of stored documents by object key, and the number of documents that were read.

    `without_digest` is the number of documents that an earlier version stored without signature and digest. In such a
    document, damage is found only if the damage makes the document malformed.
    """

    damage: dict[str, tuple[str, ...]]
    read: int
    without_digest: int

    def without(self, keys: Iterable[Key]) -> DocumentCheck:
        others = set(keys)
        return replace(self, damage={key: damage for key, damage in self.damage.items() if key not in others})


NO_DOCUMENTS = DocumentCheck({}, 0, 0)


def check_documents(repository: Repository, instance: str) -> DocumentCheck:
    """Read every document of the instance, and the marker of the repository, and return their damage.

    Raises:
        RepositoryError: the store is unreachable.
    """
    damage: dict[str, tuple[str, ...]] = {}
    without_digest = read = 0
    alone = threading.Lock()

    def look(document: tuple[Key, int]) -> tuple[Key, bool | DamagedError | None]:
        key, size = document
        with alone if size >= _LARGE_DOCUMENT else contextlib.nullcontext():
            return key, _read_document(repository, key)

    with ThreadPoolExecutor(_READERS, thread_name_prefix="verify") as pool:
        for key, found in pool.map(look, _documents(repository, instance)):
            if isinstance(found, DamagedError):
                damage[key] = (found.message,)
            elif found is not None:
                without_digest += not found
            read += found is not None
    return DocumentCheck(dict(sorted(damage.items())), read, without_digest)


def _read_document(repository: Repository, key: Key) -> bool | DamagedError | None:
    """Return the damage of a document; if there is none, return whether the document has a signature or digest.

    Return None if the document no longer exists.
    """
    place = repository.place(key)
    try:
        body = repository.get(key)
    except NotFound:
        if key == layout.MARKER:
            return DamagedError(f"the marker {place} is missing", hint="run `zsnapdb init`, which writes it again")
        return None
    try:
        if key == layout.MARKER:
            marker.Marker.parse(body, place)
            return marker.has_digest(body)
        document = stored_document.open_document(body, place)
        untrusted_text.parsed(document.line)
    except DamagedError as error:
        return error
    except ValueError:
        return DamagedError(f"{place} is not a document", hint="the object was altered")
    return document.has_digest


def _documents(repository: Repository, instance: str) -> Iterator[tuple[Key, int]]:
    """Yield the key of each document, and its size in bytes (0 for short documents that are not listed)."""
    yield layout.MARKER, 0
    prefixes: tuple[Callable[[str], KeyPrefix[Any]], ...] = (
        layout.manifests,
        layout.pins,
        layout.verifications,
        layout.drills,
        layout.evidence_log,
        layout.unfinished,
    )
    for prefix in prefixes:
        yield from ((one.key, one.size) for one in repository.list(prefix(instance)))
    yield from ((layout.lease(f"{instance}/{name}"), 0) for name in _LEASES)
    for listed in repository.list(layout.incarnations(instance)):
        yield listed.key, listed.size
        place = (instance, listed.key.incarnation)
        yield layout.complete(*place), 0
        yield from ((one.key, one.size) for one in repository.list(layout.rotated_binlogs(*place)))
        yield from ((one.key, one.size) for one in repository.list(layout.segments(*place)))


def observe_binlogs(
    archive: BinlogArchive, files: Sequence[ArchivedFile], depth: Depth, concurrency: int, events: Events
) -> Iterator[tuple[ArchivedFile, tuple[str, ...] | None, int]]:
    """Yield each binlog, its damage, and the number of bytes read.

    The damage is None if the binlog changed while it was read. `concurrency` files are read in parallel, with one chunk
    of each file in memory.
    """
    sizes = stored_sizes(archive, files)
    total, done = sum(file.stored_size for file in files), 0

    def check(file: ArchivedFile) -> tuple[str, ...]:
        damage = listed_damage(archive, file, sizes)
        return archived_damage(archive, file) if depth is Depth.READ and not damage else damage

    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="verify")
    try:
        for file, damage in zip(files, pool.map(check, files), strict=True):
            done += file.stored_size
            if depth is Depth.READ:
                events.progress(Progress("verify binlogs", done, total))
            gone = bool(damage) and file not in archive.load().files
            yield file, None if gone else damage, file.stored_size if depth is Depth.READ else 0
    finally:
        # After an interrupt, do not wait until the remaining files are read.
        pool.shutdown(cancel_futures=True)


_LISTERS = 8
_SAVE_SECONDS = 30.0
"""The time in seconds between two records of findings in a long run."""


@dataclass(frozen=True)
class VerifyPlan:
    """The backups and archived binlogs that a verification would check, unverified or damaged objects first.

    `size` is the number of bytes to read (0 if objects are only listed).
    """

    instance: str
    depth: Depth
    backups: Summaries
    chosen: tuple[str, ...]
    known: Checks
    archive: Archive
    binlogs: tuple[ArchivedFile, ...]

    @property
    def digests(self) -> dict[str, str]:
        """The digests of manifests and binlog descriptions, by name."""
        names = {backup.backup_id: backup.digest for backup in self.backups.backups}
        return names | {name_of(file): file.digest for file in self.archive.files if file.is_rotated}

    @property
    def backups_size(self) -> int:
        to_read = set(self.chosen) if self.depth is Depth.READ else set()
        return sum(backup.stored_size for backup in self.backups.backups if backup.backup_id in to_read)

    @property
    def size(self) -> int:
        return self.backups_size + (sum(file.stored_size for file in self.binlogs) if self.depth is Depth.READ else 0)


@dataclass(frozen=True)
class VerifyResult:
    """The result of a verification: the damage that was found now or earlier, by backup, and its consequences.

    `binlogs` contains the damage of archived binlogs, by incarnation and name. `size` is the number of bytes read.
    `unrecorded` is the reason why the findings were not recorded, or "" if they were recorded.
    """

    plan: VerifyPlan
    damage: Mapping[str, tuple[str, ...]]
    binlogs: Mapping[str, tuple[str, ...]]
    meaning: Consequences
    size: int
    seconds: float
    unrecorded: str
    missing: tuple[StoredFinding, ...] = ()
    """Differences between the repository and the backups that this host stored."""
    documents: DocumentCheck = NO_DOCUMENTS
    """The result for all documents except manifests. The damage of manifests is in the field `damage`."""
    checks: Checks = field(default_factory=Checks)
    """All findings, including those of earlier runs and of drills."""
    archived: tuple[ArchivedError, ...] = ()
    """The errors of backups that were not read, because chunks are in an archive class."""

    @property
    def last_reads(self) -> dict[str, datetime]:
        """The time (UTC) when every byte of a backup was last read without damage, by backup id."""
        times = {one.backup_id: self.checks.whole_since(one.backup_id, Depth.READ) for one in self.plan.backups.backups}
        return {backup_id: when for backup_id, when in times.items() if when is not None}

    @property
    def is_whole(self) -> bool:
        is_lacking = any(finding.is_alarming for finding in self.missing)
        is_damaged = self.damage or self.meaning.broken or self.binlogs or self.documents.damage
        return not is_damaged and not is_lacking

    @property
    def raw(self) -> tuple[str, ...]:
        """The verified backups whose streams ZFS encrypted (raw streams).

        The records and hashes of these streams were verified. But only a drill proves that ZFS can decrypt their
        blocks.
        """
        chosen = set(self.plan.chosen)
        return tuple(s.backup_id for s in self.plan.backups.backups if s.is_raw and s.backup_id in chosen)

    def alarm(self) -> ZsnapdbError | None:
        """Return the error that the user should see; None if there is none.

        The error is DamagedError, NotFound if there is no backup, or ArchivedError if backups could not be read.
        """
        if not self.is_whole:
            return DamagedError(
                f"the repository has damaged or missing objects of instance {self.plan.instance}",
                hint="read the lists of damaged and restorable backups; begin a new chain with `zsnapdb backup --full`",
            )
        if not self.plan.backups.backups:
            return NotFound(
                f"the repository has no backup of instance {self.plan.instance}; nothing was verified",
                hint=f"run `zsnapdb backup`; if there were backups, {OTHER_ADDRESS_HINT}",
            )
        if self.archived:
            return ArchivedError("; ".join(error.message for error in self.archived), hint=ARCHIVED_HINT)
        return None


def plan(instance: Instance, depth: Depth, *, older_than: float | None = None, limit: int | None = None) -> VerifyPlan:
    """Return the objects that a verification would check now; change nothing.

    The function reads new manifests and earlier findings.
    """
    repository = instance.open_repository()
    return _plan(instance, repository, instance.archive(repository), depth, older_than, limit)


def _plan(
    instance: Instance,
    repository: Repository,
    binlog_archive: BinlogArchive,
    depth: Depth,
    older_than: float | None,
    limit: int | None,
) -> VerifyPlan:
    backups = instance.summaries(repository)
    archive = binlog_archive.load()
    files = {name_of(file): file for file in archive.files}
    everything = VerifyPlan(instance.name, depth, backups, (), Checks(), archive, ())
    known = verifications.read(repository, instance.name).about(everything.digests)
    damaged = known.damaged()

    def chosen(names: Iterable[str]) -> tuple[str, ...]:
        return due(
            {name: None if name in damaged else known.whole_since(name, depth) for name in names},
            instance.host.now(),
            older_than,
            limit,
        )

    binlogs = tuple(files[name] for name in chosen(files))
    return replace(everything, chosen=chosen(one.backup_id for one in backups.backups), known=known, binlogs=binlogs)


def verify(
    instance: Instance, depth: Depth, *, older_than: float | None = None, limit: int | None = None
) -> VerifyResult:
    """Verify backups and archived binlogs, and record the findings.

    Raises:
        RepositoryError: the store is unreachable.
        ConfigError: a key for a deep verification is missing.
    """
    repository = instance.open_repository()
    # Read every description from the store, even if this host has it in the cache.
    planned = _plan(instance, repository, BinlogArchive(repository, instance.name), depth, older_than, limit)
    notebook = _Notebook(repository, instance, planned)
    began, total = time.monotonic(), 0
    active_damage: dict[str, tuple[str, ...]] = {}
    archived: list[ArchivedError] = []
    try:
        for name, damage, size in _look(instance, repository, planned, archived):
            total += size
            notebook.note(name, depth, damage)
        archive, concurrency = BinlogArchive(repository, instance.name), instance.repository.stream.concurrency
        for file, damage, size in observe_binlogs(archive, planned.binlogs, depth, concurrency, instance.events):
            total += size
            if file.is_rotated:
                notebook.note(name_of(file), depth, damage)
            elif damage:
                active_damage[name_of(file)] = damage
    except BaseException:
        notebook.save()
        raise
    notebook.finish()
    damaged = notebook.checks.damaged()
    bad = {name: damage for name, damage in damaged.items() if "/" not in name}
    bad |= {name: (error.message,) for name, error in planned.backups.unreadable.items()}
    checked = host_backup_record.check(
        instance, repository, planned.backups.backups, planned.backups.unread, planned.archive
    )
    wrong = (checked.known_archive or planned.archive).damaged
    binlogs = {
        **{name: damage for name, damage in damaged.items() if "/" in name},
        **active_damage,
        **{f"description {number}": (error.message,) for number, error in enumerate(wrong, 1)},
    }
    there = [backup for backup in planned.backups.backups if backup.backup_id not in notebook.gone]
    meaning = consequences(there, bad)
    return VerifyResult(
        planned,
        dict(sorted(bad.items())),
        dict(sorted(binlogs.items())),
        meaning,
        total,
        time.monotonic() - began,
        notebook.unrecorded,
        checked.findings,
        check_documents(repository, instance.name).without(layout.manifest(instance.name, one) for one in bad),
        notebook.checks,
        tuple(archived),
    )


class _Notebook:
    """The findings of this run and of earlier runs. The run regularly saves its findings in a new object."""

    def __init__(self, repository: Repository, instance: Instance, planned: VerifyPlan) -> None:
        self.unrecorded = ""
        self._now, self._instance = instance.host.now, instance.name
        self.gone: set[str] = set()
        self._repository, self._known, self._digests = repository, planned.known, planned.digests
        self._findings = {name: dict(records) for name, records in planned.known.findings.items()}
        self._key = verifications.new_key(instance.name, self._now())
        self._saved = time.monotonic()
        self._is_dirty = self._is_written = False

    @property
    def checks(self) -> Checks:
        return Checks(self._findings, self._known.keys)

    def note(self, name: str, depth: Depth, damage: tuple[str, ...] | None) -> None:
        """Add the damage of one backup. `damage` is None if the backup was removed during the check."""
        if damage is None:
            self.gone.add(name)
            self._findings.pop(name, None)
            return
        records = self._findings.setdefault(name, {})
        records[depth] = verifications.finding(depth, self._now(), damage, records, digest=self._digests.get(name))
        self._is_dirty = True
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the findings so far. If they cannot be saved, the verification continues."""
        if not self._is_dirty:
            return
        try:
            verifications.write(self._repository, self._instance, self._key, self.checks)
            self._is_written = True
        except (RepositoryError, ConfigError) as error:
            self.unrecorded = error.message
        self._saved, self._is_dirty = time.monotonic(), False

    def finish(self) -> None:
        """Save the findings, and remove the earlier records, whose findings the new record also contains."""
        self.save()
        if self._is_written and not self.unrecorded:
            try:
                verifications.remove_merged(self._repository, self._key, self._known)
            except RepositoryError as error:
                self.unrecorded = error.message


def _look(
    instance: Instance, repository: Repository, planned: VerifyPlan, archived: list[ArchivedError]
) -> Iterator[tuple[str, tuple[str, ...] | None, int]]:
    """Yield each chosen backup, its damage, and the number of bytes read.

    The damage is None if the backup was removed during the check. A backup that cannot be read, because chunks are in
    an archive class, is left out, and its error is added to `archived`.
    """
    if planned.depth is Depth.LISTED:
        alone = threading.Lock()
        rows = {one.backup_id: sum(part.chunk_count for part in one.volumes) for one in planned.backups.backups}

        def look(name: str) -> tuple[str, ...] | None:
            with alone if rows[name] >= _LARGE_BACKUP else contextlib.nullcontext():
                return damage_of(repository, instance.name, name)

        with ThreadPoolExecutor(_LISTERS, thread_name_prefix="verify") as pool:
            damages = pool.map(look, planned.chosen)
            for name, damage in zip(planned.chosen, damages, strict=True):
                yield name, damage, 0
        return
    whole = reader(instance, repository, planned.backups_size)
    for name in planned.chosen:
        before = whole.done
        try:
            damage = damage_of(repository, instance.name, name, whole)
        except ArchivedError as error:
            archived.append(error)
            continue
        yield name, damage, whole.done - before


def reader(instance: Instance, repository: Repository, total: int = 0) -> Reader:
    """Return a reader of complete backups. `total` is the number of bytes in all backups to read."""
    return Reader(repository, instance.repository.stream.concurrency, total, instance.events)


def damage_of(
    repository: Repository, instance: str, backup_id: str, reader: Reader | None = None
) -> tuple[str, ...] | None:
    """Return the damage of one backup: its manifest, missing chunks, wrong sizes, and the findings of `reader`.

    Return None if the backup was removed during the check.

    Raises:
        ArchivedError: the reader cannot read chunks, because they are in an archive class.
    """
    try:
        manifest = repository.manifest(instance, backup_id)
    except DamagedError as error:
        return (error.message,)
    except NotFound:
        return None
    listed = [repository.chunks_of(manifest, one.role).compare(one.chunks) for one in manifest.volumes]
    if reader is not None:
        require_readable(repository, [one for found in listed for one in found.archived], f"backup {backup_id}")
    damage: list[str] = []
    for volume, found in zip(manifest.volumes, listed, strict=True):
        damage += found.unfit.values()
        if reader is not None:
            damage += reader.read(manifest, volume, set(found.unfit))
    # The backup may have been removed during this check. In that case it has no manifest, because the manifest is
    # removed first.
    if damage and not repository.exists(layout.manifest(instance, backup_id)):
        return None
    return tuple(damage)


class Reader:
    """A reader of complete volumes.

    The reader checks the hash of each chunk, decrypts the chunk, and checks the records and GUIDs of the stream.
    """

    def __init__(self, repository: Repository, concurrency: int, total: int, events: Events) -> None:
        self._repository, self._concurrency, self._total, self._events = repository, concurrency, total, events
        self._memory, self._workspace = SlotPool(), Workspace()
        self.done = 0

    def read(self, manifest: Manifest, volume: VolumePart, unread: set[int]) -> list[str]:
        """Return the damage of a volume. Chunks in `unread` are known to be damaged and are skipped.

        The function needs as much memory as `concurrency` + 1 chunks.
        """
        damage: list[str] = []
        walker: Walker | None = Walker(expected_stream(volume, volume.features)) if not unread else None
        ciphers = self._repository.ciphers(manifest)
        for index, plain in self._plain(manifest, volume, ciphers, unread):
            self.done += volume.chunks[index - 1].stored_size
            self._events.progress(Progress("verify", self.done, self._total))
            if isinstance(plain, DamagedError):
                damage.append(plain.message)
                walker = None
            elif walker is not None:
                try:
                    walker.feed(memoryview(plain))
                except DamagedError as error:
                    damage.append(f"{self._name_of(manifest, volume)}: {error.message}")
                    walker = None
        return damage + (self._whole(manifest, volume, walker) if walker is not None else [])

    def _name_of(self, manifest: Manifest, volume: VolumePart) -> str:
        return f"volume {volume.role} of backup {manifest.backup_id}"

    def _whole(self, manifest: Manifest, volume: VolumePart, walker: Walker) -> list[str]:
        what = self._name_of(manifest, volume)
        try:
            walker.finish()
        except DamagedError as error:
            return [f"{what}: {error.message}"]
        chunks = volume.chunks
        if sum(chunk.plain_size for chunk in chunks) != volume.plain_size or stream_hash(chunks) != volume.sha256:
            return [f"{what}: all its chunks together do not have the size or the hash in the manifest"]
        return []

    def _plain(
        self, manifest: Manifest, volume: VolumePart, ciphers: Mapping[str, ChunkCipher], unread: set[int]
    ) -> Iterator[tuple[int, Body | DamagedError]]:
        """Yield the decrypted chunks in order, and an error for a damaged chunk. Meanwhile fetch the next chunks."""
        chunks, store = volume.chunks, self._repository.chunks_of(manifest, volume.role)

        def fetch(index: int) -> Body | DamagedError:
            chunk, what = chunks[index - 1], f"chunk {store.key(index)}"
            try:
                cipher = ciphers[chunk.key_id] if chunk.key_id is not None else None
                body = store.get_chunk(index)
                plain = unseal(
                    body,
                    chunk,
                    volume.codec,
                    cipher,
                    store.associated(index, last=index == len(chunks)),
                    what,
                    workspace=self._workspace,
                    memory=self._memory,
                )
                if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
                    return DamagedError(
                        f"{what}: its stored bytes do not have the SHA-256 the manifest says, although they decrypt"
                        f" to the right content"
                    )
                return plain
            except NotFound:
                return DamagedError(f"{what} is missing")
            except KeyError:
                return DamagedError(f"{what} names key {chunk.key_id}, which its manifest does not have")
            except DamagedError as error:
                return error

        pending: deque[tuple[int, Future[Body | DamagedError]]] = deque()
        following = (index for index in range(1, len(chunks) + 1) if index not in unread)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="verify") as pool:
            try:
                for index in following:
                    pending.append((index, pool.submit(fetch, index)))
                    if len(pending) > self._concurrency:
                        at, future = pending.popleft()
                        yield at, future.result()
                while pending:
                    at, future = pending.popleft()
                    yield at, future.result()
            finally:
                for _, future in pending:
                    future.cancel()

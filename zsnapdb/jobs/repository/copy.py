"""Copies an instance's backups and archived binlogs to a second repository, byte for byte, with their signatures.

The second repository has the same id as the first. Encrypted chunks are bound to this id, so they can be decrypted in
both repositories. During the copy, each chunk is compared with its stored hash. Chunks that an earlier run copied are
read back and compared too. The manifest is copied last. No object is decrypted. Each run also copies missing pins of
copied backups and missing evidence of drills. No later change or removal of a pin is copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from zsnapdb.base.domain_types import Progress
from zsnapdb.base.errors import ArchivedError, ConfigError, ConsistencyError, DamagedError, NotFound, UsageError
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.object_locks import extend_locks
from zsnapdb.jobs.record import host_backup_record, own_archived_binlogs
from zsnapdb.jobs.repository import prune_facts
from zsnapdb.planning.backup_chain import Lineage
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.backup_writers import by_backup, writers
from zsnapdb.planning.repository.retention import RetentionFacts
from zsnapdb.repository import backup_marks, binlog_archive, drills, layout
from zsnapdb.repository.archived_objects import require_readable
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary, summaries
from zsnapdb.repository.layout import BinlogKey, ChunkKey, Key
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.marker import Marker
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import lease
from zsnapdb.stream.chunks import Chunk


@dataclass
class CopiedBinlogs:
    """The result of copying binlogs: the names of copied files, the failed files with reasons, and the bytes written.

    Each copied file is now complete in the second repository, or at least longer than before the copy.
    """

    copied: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    size: int = 0


def missing_binlogs(
    here: BinlogArchive, there: BinlogArchive | None, kept: Collection[str], backups: Iterable[Summary]
) -> tuple[ArchivedFile, ...]:
    """Return the archived files that are missing or incomplete in the second repository, in the order of the archive.

    `kept` contains the backups that the second repository contains or will contain.
    """
    stored = list(backups)
    order = [backup.backup_id for backup in stored]
    useful = [old.file for old in prune_facts.expired(here, kept, stored, order) if not old.decision.remove]
    known = {(file.incarnation, file.name): file for file in (there.load().files if there is not None else ())}

    def is_missing(file: ArchivedFile) -> bool:
        other = known.get((file.incarnation, file.name))
        if other is None or other.is_rotated or file.is_rotated:
            return other is None or (other.is_rotated, other.digest) != (file.is_rotated, file.digest)
        return other.end < file.end

    return tuple(file for file in useful if is_missing(file))


def copy_binlogs(
    here: BinlogArchive,
    there: BinlogArchive,
    files: Iterable[ArchivedFile],
    concurrency: int,
    confirm: Callable[[], None],
) -> CopiedBinlogs:
    """Copy the archived binlogs `files`.

    A file that is damaged, or that changes during the copy, is reported and skipped. `confirm` raises an error if
    another process may be writing to the second repository.
    """
    done = CopiedBinlogs()
    started: set[str] = set()
    for file in files:
        try:
            if file.incarnation not in started:
                _description(here, there, here.incarnation_key(file.incarnation))
                started.add(file.incarnation)
            with ThreadPoolExecutor(concurrency, thread_name_prefix="copy") as pool:
                done.size += sum(pool.map(lambda body: _body(here, there, *body), here.bodies(file)))
            confirm()
            if file.is_rotated:
                _description(here, there, here.file_key(file))
                binlog_archive.remove_unneeded(there, file)
            else:
                for segment in file.segments:
                    _description(here, there, here.segment_key(file.incarnation, segment))
                if there.repository.exists(there.file_key(file)):
                    raise DamagedError("the second repository has another binlog of this name, which is rotated")
        except NotFound:
            done.failed[file.name] = "it was changed or removed during the copy; run the copy again"
            continue
        except (ArchivedError, DamagedError, ConsistencyError) as error:
            done.failed[file.name] = error.message
            continue
        done.copied.append(file.name)
    confirm()
    _copy_complete_records(here, there)
    return done


def _copy_complete_records(here: BinlogArchive, there: BinlogArchive) -> None:
    """For each incarnation, copy the record of the position up to which its archive is complete.

    If the second repository lacks the binlog bytes up to that position, readers ignore the record.
    """
    for listed in there.repository.list(layout.incarnations(there.instance)):
        key = layout.complete(there.instance, listed.key.incarnation)
        with contextlib.suppress(NotFound):
            there.repository.overwrite(key, here.repository.get(key))


def _body(here: BinlogArchive, there: BinlogArchive, key: BinlogKey, chunk: Chunk) -> int:
    """Copy one chunk or segment, unless the second repository contains it. Return the number of written bytes."""
    source, target = here.repository, there.repository
    with contextlib.suppress(NotFound):
        if hashlib.sha256(target.get(key)).hexdigest() == chunk.stored_sha256:
            return 0
    body = source.get(key)
    if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        raise DamagedError(
            f"{key}: its stored bytes do not have the SHA-256 its description says", hint="see `zsnapdb verify --deep`"
        )
    target.overwrite(key, body, sha256=chunk.stored_sha256)
    return len(body)


def _description(here: BinlogArchive, there: BinlogArchive, key: Key) -> None:
    """Copy the description of an archived binlog byte for byte.

    Raises:
        ConsistencyError: the second repository contains a different description.
    """
    if not there.repository.put_same(key, here.repository.get(key), is_alone=True):
        raise ConsistencyError(
            f"{key} was read back different from what was copied",
            hint="the second repository has another binlog of this name",
        )


@dataclass(frozen=True)
class CopyPlan:
    """The plan of a copy.

    `backups` contains all backups of the first repository. `missing` contains the backups to copy, each base before its
    increments. `there` is the number of backups in the second repository. `left_out` contains, by backup id, the
    reasons why backups are not copied.
    """

    instance: str
    backups: tuple[Summary, ...]
    missing: tuple[Summary, ...]
    there: int
    left_out: Mapping[str, str]
    unreadable: Mapping[str, DamagedError]
    binlogs: tuple[ArchivedFile, ...]
    """The archived binlogs that are missing or incomplete in the second repository."""
    known: frozenset[str] = frozenset()
    """The backups that this host knows. After the copy, this host knows their copies too."""

    @property
    def size(self) -> int:
        return self.backups_size + sum(file.stored_size for file in self.binlogs)

    @property
    def backups_size(self) -> int:
        return sum(backup.stored_size for backup in self.missing)


@dataclass(frozen=True)
class CopyResult:
    """The result of a copy: copied backup ids, failed backups with reasons, bytes written, and duration in seconds."""

    plan: CopyPlan
    copied: tuple[str, ...]
    failed: Mapping[str, str]
    binlogs: CopiedBinlogs
    size: int
    seconds: float

    @property
    def is_whole(self) -> bool:
        return not self.failed and not self.plan.unreadable and not self.binlogs.failed


def plan(source: Instance, target: Instance) -> CopyPlan:
    """Return the objects that a copy would transfer now; change nothing."""
    here = source.open_repository()
    return _plan(source, here, target, _there(here, source, target))


def _there(here: Repository, source: Instance, target: Instance) -> Repository | None:
    """Return the second repository; None if it does not exist yet.

    Raises:
        UsageError: the second repository is the first one.
        ConfigError: the second repository is not a copy of the first one.
    """
    if _place(source) == _place(target):
        raise UsageError(
            f"the source and the target of the copy are the same repository, {source.repository.url}",
            hint="name another repository with --to",
        )
    try:
        there = target.open_repository()
    except NotFound:
        target.open_store()[0].check()
        return None
    if there.id != here.id:
        raise ConfigError(
            f"{target.repository.url} is another repository (id {there.id}), not a copy of"
            f" {source.repository.url} (id {here.id})",
            hint="copy to a prefix or folder without a repository; the first copy creates the repository there",
        )
    return there


def _place(instance: Instance) -> tuple[str, str | None]:
    provider = instance.repository.provider
    return instance.repository.url, provider.endpoint if provider is not None else None


def _plan(source: Instance, here: Repository, target: Instance, there: Repository | None) -> CopyPlan:
    known, checked = host_backup_record.checked_backups(source, here)
    provenance = checked.provenance
    # Both repositories have the same id, so the cache of the first repository must not be used for the second. Anyone
    # who can write to the second repository can add a manifest to it. So a copy is valid only if its manifest equals
    # that of the first repository.
    digests = {backup.backup_id: backup.digest for backup in known.backups}
    listed = summaries(there, target.name, None).backups if there is not None else ()
    copied = {one.backup_id for one in listed if digests.get(one.backup_id, one.digest) == one.digest}
    lineage = Lineage(provenance.trusted(known.backups))
    depth: dict[str, int] = {}
    left_out: dict[str, str] = {}
    needed: set[str] = set()
    for backup in known.backups:
        try:
            chain = lineage.chain(backup)
            depth[backup.backup_id] = len(chain)
            if backup.backup_id not in provenance.unchosen:
                needed |= {link.backup_id for link in chain}
        except DamagedError as error:
            if backup.backup_id not in copied:
                left_out[backup.backup_id] = error.message
    for name, why in provenance.unchosen.items():
        if name not in needed and name not in copied:
            left_out[name] = f"foreign: {why}"
    if target.repository.keep is not None:
        now = removal_time(source.host).at
        counted = [backup for backup in known.backups if backup.backup_id not in provenance.unchosen]
        facts = RetentionFacts(
            writers=by_backup(writers(counted, now)), foreign=provenance.unchosen, untrusted=provenance.untrusted
        )
        for decision in retention.decide(known.backups, target.repository.keep, now, facts).decisions:
            if not decision.keep and decision.backup_id not in copied:
                left_out.setdefault(
                    decision.backup_id,
                    f"the second repository's retention policy would not keep it: {'; '.join(decision.reasons)}",
                )
    missing = [
        backup for backup in known.backups if backup.backup_id not in copied and backup.backup_id not in left_out
    ]
    missing.sort(key=lambda backup: depth[backup.backup_id])
    will_be = copied | {backup.backup_id for backup in missing}
    other = BinlogArchive(there, target.name) if there is not None else None
    binlogs = missing_binlogs(BinlogArchive(here, source.name), other, will_be, known.backups)
    proved = frozenset(provenance.for_removal.proofs)
    return CopyPlan(
        source.name, known.backups, tuple(missing), len(copied), left_out, known.unreadable, binlogs, proved
    )


def copy(source: Instance, target: Instance) -> CopyResult:
    """Copy the missing backups and binlogs.

    Afterwards every copied backup is in the second repository: its chunks were compared, and its manifest was read
    back. A damaged backup is reported and skipped together with its increments. If the copy is interrupted, the next
    run continues.
    """
    here = source.open_repository()
    there = _there(here, source, target)
    if there is None:
        Marker(id=here.id, recipients=here.recipients).write(RepositoryObjects(*target.open_store()))
        there = target.open_repository()
    name, host = target.name, target.host
    with lease(
        there,
        f"{name}/writer",
        doing=f"copying {name}",
        tell=target.events.tell,
        has_ended=host.has_ended,
        patience=target.wait,
    ) as writer:
        planned = _plan(source, here, target, there)
        began, run = time.monotonic(), _Run(here, there, target, planned)
        copied: list[str] = []
        failed: dict[str, str] = {}
        for backup in planned.missing:
            try:
                base = run.lineage.base(backup)
                if base is not None and base.backup_id in failed:
                    failed[backup.backup_id] = f"it is an increment of {base.backup_id}, which could not be copied"
                    continue
                manifest = here.manifest(source.name, backup.backup_id)
                run.copy_chunks(manifest)
                writer.confirm()
                run.copy_manifest(backup.backup_id)
                if backup.backup_id in planned.known:
                    host_backup_record.note_stored(target, there, manifest, backup.digest)
                extend_locks(target, there, backup.backup_id)
            except (ArchivedError, DamagedError, NotFound, ConsistencyError) as error:
                failed[backup.backup_id] = error.message
                target.events.warn(f"backup {backup.backup_id} could not be copied: {error.message}")
                continue
            copied.append(backup.backup_id)
        _copy_pins(here, there, target.name)
        drills.copy_missing(here, there, target.name)
        concurrency = target.repository.stream.concurrency
        binlogs = copy_binlogs(
            BinlogArchive(here, source.name),
            BinlogArchive(there, target.name),
            planned.binlogs,
            concurrency,
            writer.confirm,
        )
        own = own_archived_binlogs.known_binlogs(source, here, planned.binlogs)
        ours = [file for file in planned.binlogs if (file.incarnation, file.name) in own]
        if ours:
            own_archived_binlogs.note_archived_files(target, there, ours, [file.incarnation for file in ours])
        return CopyResult(planned, tuple(copied), failed, binlogs, run.size + binlogs.size, time.monotonic() - began)


def _copy_pins(here: Repository, there: Repository, instance: str) -> None:
    """Copy each pin that the second repository lacks, if it contains the backup."""
    pinned, known = ({listed.key.backup_id for listed in one.list(layout.pins(instance))} for one in (here, there))
    for backup_id in (pinned - known).intersection(there.backup_ids(instance)):
        backup_marks.copy_pin(here, there, instance, backup_id)


class _Run:
    def __init__(self, here: Repository, there: Repository, instance: Instance, planned: CopyPlan) -> None:
        self.size = 0
        self.lineage = Lineage([backup for backup in planned.backups if backup.backup_id not in planned.left_out])
        self._here, self._there, self._name = here, there, instance.name
        self._concurrency, self._total, self._report = (
            instance.repository.stream.concurrency,
            planned.backups_size,
            instance.events.progress,
        )
        self._done = 0
        self._counting = Lock()

    def copy_chunks(self, manifest: Manifest) -> None:
        """Copy every chunk of the backup that the second repository lacks.

        Raises:
            ArchivedError: chunks are in an archive class of the first repository; nothing was copied.
            DamagedError: a chunk does not match the manifest. The message names the first such chunk.
        """
        prefix = layout.chunks_of_backup(self._name, manifest.backup_id)
        sizes = self._there.sizes(prefix)
        require_readable(self._here, self._here.list(prefix), f"backup {manifest.backup_id}")
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="copy") as pool:
            work = [pool.submit(self._copy_chunk, key, chunk, sizes.get(key)) for key, chunk in self._chunks(manifest)]
            try:
                for future in work:
                    future.result()
            finally:
                for future in work:
                    future.cancel()

    def _chunks(self, manifest: Manifest) -> Iterator[tuple[ChunkKey, Chunk]]:
        for volume in manifest.volumes:
            for index, chunk in enumerate(volume.chunks, 1):
                yield layout.chunk(self._name, manifest.backup_id, volume.role, index), chunk

    def _copy_chunk(self, key: ChunkKey, chunk: Chunk, there: int | None) -> None:
        if there != chunk.stored_size or _hash(self._there.get(key)) != chunk.stored_sha256:
            try:
                body = self._here.get(key)
            except NotFound as error:
                raise DamagedError(f"chunk {key} is missing", hint="see `zsnapdb verify`") from error
            if len(body) != chunk.stored_size or _hash(body) != chunk.stored_sha256:
                raise DamagedError(
                    f"chunk {key}: its stored bytes do not have the SHA-256 the manifest says",
                    hint="see `zsnapdb verify --deep`",
                )
            self._there.overwrite(key, body, sha256=chunk.stored_sha256)
            with self._counting:
                self.size += len(body)
        with self._counting:
            self._done += chunk.stored_size
            self._report(Progress("copy", self._done, self._total))

    def copy_manifest(self, backup_id: str) -> None:
        """Copy the manifest byte for byte, and read the copy back. A different manifest in the second repository stays.

        Raises:
            ConsistencyError: the stored manifest is different.
        """
        key = layout.manifest(self._name, backup_id)
        if not self._there.put_same(key, self._here.get(key), is_alone=True):
            raise ConsistencyError(
                f"manifest {key} was read back different from what was copied",
                hint="the second repository has another backup with this id",
            )


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()

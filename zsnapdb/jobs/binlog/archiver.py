"""The archiver of one server's binlogs. It stores rotated binlogs as complete files, and the active binlog in segments.

The archiver stores only bytes that the server can no longer lose, and reports every gap in the archive. It syncs the
binlog file before it archives a segment, because readable bytes may not be on disk yet. If a server loses transactions
in a power failure, it later assigns their GTIDs to other transactions. The archiver reads the archive again at every
start. The decisions are in `planning/binlog/archive.py`. The binlog does not record the engine of a table that was
created without an ENGINE clause. So the archiver asks the server for the engines of newly created tables.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from zsnapdb.base.domain_types import BinlogCoordinates, new_backup_id
from zsnapdb.base.errors import ConsistencyError, DamagedError, PreflightError, RepositoryError, ServerError
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.archive_round import Round
from zsnapdb.jobs.binlog.other_writers import OtherWriters, ends_of
from zsnapdb.jobs.binlog.server_binlogs import (
    BinlogSource,
    LocalFiles,
    contains_last,
    cuts,
    find_source,
    find_taken_back,
    head_part,
    known_history,
    last_seen,
    returned_after,
)
from zsnapdb.jobs.host.binlog_spans import span_and_tables
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.jobs.record.host_backup_record import next_sequence
from zsnapdb.mysql.binlog.events import read_plain
from zsnapdb.mysql.binlog.tail import commit_horizon
from zsnapdb.mysql.probe import dialect
from zsnapdb.mysql.schema.tables import creation_options
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock
from zsnapdb.planning.backup.dataset_encryption import judge_archiving
from zsnapdb.planning.binlog.archive import ArchiveStep, Plan, ServerBinlog, decide, has_more
from zsnapdb.planning.binlog.archive_times import (
    ArchiverObservation,
    CommitHorizon,
    CommitTimeEvidence,
    LastRecord,
    is_reached,
    is_worth_recording,
    sighting_between,
)
from zsnapdb.planning.binlog.created_tables import MOST_MADE, CreatedTable
from zsnapdb.planning.binlog.route_elements import CompleteUntil
from zsnapdb.planning.repository.host_backup_record import ArchivedPosition
from zsnapdb.planning.server_facts import Dialect
from zsnapdb.repository import binlog_archive
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_archive_contents import active_file
from zsnapdb.repository.binlog_descriptions import ArchivedFile, CreatedTablePart, Incarnation, Segment
from zsnapdb.repository.keyring import DataKey
from zsnapdb.stream.chunks import NO_CHUNK, Chunk, plain_hash, seal, stream_hash
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.upload import UploadSettings

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def made_parts(
    instance: Instance, source: BinlogSource, tables: Iterable[CreatedTable]
) -> tuple[CreatedTablePart, ...]:
    """Return the engines that the server reports for the created tables.

    The result lacks tables whose engine has changed since their creation. It also lacks table attributes that a later
    ALTER TABLE may have changed. The result is empty if the server does not answer or is now a different server. In
    this case, a restore reports that the engines of these tables are not recorded.
    """
    as_made = [table for table in tables if table.table and not table.is_touched][:MOST_MADE]
    if not as_made:
        return ()
    try:
        with instance.session(read_timeout=5.0) as session:
            if find_source(session) != source:
                return ()
            said = [(made, creation_options(session, made.schema, made.table)) for made in as_made]
    except (ServerError, PreflightError):
        return ()
    return tuple(part for made, words in said if words is not None and (part := _part(made, *map(_word, words))))


def _part(
    made: CreatedTable, engine: str | None, collation: str | None, row_format: str | None
) -> CreatedTablePart | None:
    if engine is None:
        return None
    return CreatedTablePart(
        offset=made.offset,
        engine=engine,
        collation=None if made.is_converted else collation,
        row_format=None if made.is_altered else row_format,
    )


def _word(value: object) -> str | None:
    text = "" if value is None else str(value)
    return text if _NAME.fullmatch(text) is not None else None


_SECOND = 1_000_000


class CompletenessRecorder:
    """A recorder of the time up to which the archive is complete.

    The recorder queries the server before a round, and writes the record after the round. `interval` is the time in
    seconds between two records.
    """

    def __init__(self, events: Events, interval: float, steady: Callable[[], float] = time.monotonic) -> None:
        self._events, self._interval, self._steady = events, interval, steady
        self._recorded: tuple[int, float] | None = None
        self._refused: float | None = None
        self._forms: Dialect | None = None
        self._trouble = ""

    def before(self, session: Session) -> CommitHorizon | None:
        """Return the commit horizon: a time before which every commit is already in the server's binlogs.

        Return None if no record is due, or the server does not answer. If the repository refuses a record, the next
        record is due only after `interval` seconds.
        """
        if self._refused is not None and self._steady() - self._refused < self._interval:
            return None
        try:
            if not is_worth_recording(self._last(), round(clock(session)) * _SECOND, self._interval, None):
                return None
            # Ask for the server's dialect only once, because the server may log each query.
            self._forms = self._forms or dialect(session)
            return commit_horizon(session, self._forms)
        except ServerError as error:
            # The server may have been replaced.
            self._forms = None
            self._warn(str(error))
            return None

    def after(self, result: Round, horizon: CommitHorizon | None, archive: BinlogArchive) -> Round:
        """Record the time of the horizon if the round has archived all commits up to the horizon.

        Return the round with the recorded time. The binlogs are already archived, so a refusal by the repository only
        causes a warning.
        """
        if result.new_incarnation:
            # The last record belongs to another incarnation, so a new record is due in the next round.
            self._recorded = None
        # The commits up to the horizon may be in a binlog that could not be archived.
        is_whole = result.blocked is None and not result.problems
        if not is_whole or horizon is None or result.end is None or result.incarnation is None:
            return result
        if not is_reached(horizon, result.end):
            return result
        if not is_worth_recording(self._last(), horizon.until, self._interval, result.last_commit):
            return result
        try:
            archive.note_complete(CompleteUntil(result.incarnation, result.end.file, result.end.offset, horizon.until))
        except RepositoryError as error:
            self._refused = self._steady()
            self._warn(str(error))
            return result
        self._refused = None
        self._recorded, self._trouble = (horizon.until, self._steady()), ""
        return replace(result, complete_until=horizon.until)

    def _last(self) -> LastRecord | None:
        if self._recorded is None:
            return None
        until, at = self._recorded
        return LastRecord(until, self._steady() - at)

    def _warn(self, why: str) -> None:
        if why != self._trouble:
            self._trouble = why
            self._events.warn(f"the time until which the archive is complete cannot be recorded: {why}")


_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
_MERGED = 32
"""The number of segments of an active binlog that are merged into one segment."""


@dataclass
class _RoundResults:
    rotated: list[str] = field(default_factory=list)
    transactions: int = 0
    plain_size: int = 0


class Archiver:
    """The archiver of one server's binlogs. It works in rounds, and is the only writer of its incarnation."""

    def __init__(self, instance: Instance, archive: BinlogArchive, source: BinlogSource) -> None:
        self._instance = instance
        self.archive = self._archive = archive
        self._host = instance.host
        self._settings: UploadSettings = instance.upload_settings()
        self._source = source
        self._files = LocalFiles(source)
        self._events = instance.events
        self._warned: set[str] = set()
        self._keys: dict[str, DataKey] = {}
        self._disagrees = False
        self._noted: ArchivedPosition | None = None
        contents = archive.load()
        self._incarnations = list(contents.incarnations)
        for error in contents.damaged:
            self._events.warn(f"{error.message}; this description is skipped")
        own_archived_binlogs.inherit(instance, archive.repository, contents)
        known = known_history(contents, source, self._files)
        self._incarnation, self._kept, self._elsewhere = known.incarnation, list(known.files), known.elsewhere
        last = own_archived_binlogs.archived_last(instance, archive.repository)
        self._returned = returned_after(contents.incarnations, self._incarnation, last)
        self._others = OtherWriters(instance, archive, contents)
        newest = self._kept[-1] if self._kept else None
        seen = last_seen(newest, contents.state.complete) if newest is not None else None
        self._last_look = None if seen is None else ArchiverObservation(seen)
        """The last observation of the binlogs after which all bytes were archived."""
        self._look = self._look_now()
        rotated = [file for file in self._kept if file.is_rotated]
        if own_archived_binlogs.known_binlogs(instance, archive.repository, rotated[-1:]):
            # A killed run may have left segments of a file whose complete copy is archived.
            self._remove_unneeded(rotated[-1])

    def _look_now(self) -> ArchiverObservation:
        return ArchiverObservation(round(self._host.now().timestamp() * _SECOND), time.monotonic_ns() // 1000)

    def _witness(self, known: ArchivedFile | None) -> CommitTimeEvidence:
        """Return the evidence about commit times in a binlog whose bytes can be read now."""
        seen = sighting_between(self._last_look, self._look_now())
        return CommitTimeEvidence(seen) if known is None else CommitTimeEvidence(seen, known.span.stretches, known.end)

    def look(self, ask: Callable[[], BinlogSource | None] | None = None) -> Round:
        """Archive all bytes that the server has written to its binlogs since the last round.

        If an error occurs, the archiver treats none of the new bytes as archived. `ask` queries the server's identity a
        second time, and returns None if the server does not answer. A restore first replaces the files, and then starts
        the restored server with another identity. So the archiver begins a new incarnation only if the server still
        reports the identity that the archiver knows. Otherwise the round does nothing.
        """
        self._look = self._look_now()
        local = self._files.list()
        if self._returned is None and self._incarnation is not None and has_more(self._kept, local):
            self._returned = self._others.reason_to_begin(self._incarnation, self._kept[-1])
        plan = self._plan(local)
        if plan.begin is not None:
            self._last_look = None
        is_whole = not any(file.problem for file in local)
        if plan.begin is not None and plan.steps and ask is not None and ask() != self._source:
            plan, is_whole = Plan(None, ()), False
        self._refuse_clear(plan.steps)
        if plan.begin is not None and plan.steps:
            self._begin(plan.begin)
        done = _RoundResults()
        for step in plan.steps:
            try:
                self._archive_active(step, done) if step.is_last else self._archive_rotated(step, done)
            except FileNotFoundError:
                # The binlog was purged after it was listed. The next round decides whether that is a gap.
                break
        else:
            self._last_look = self._look if is_whole else self._last_look
        newest = self._kept[-1] if self._kept else None
        if newest is not None and plan.steps:
            self._note(newest)
        commits = [file.last_commit for file in self._kept if file.last_commit is not None]
        return Round(
            new_incarnation=plan.begin if plan.steps else None,
            rotated=tuple(done.rotated),
            transactions=done.transactions,
            plain_size=done.plain_size,
            gaps=tuple(step.gap for step in plan.steps if step.gap),
            problems=tuple(file.problem for file in local if file.problem),
            blocked=local[-1].problem or None if local else "the index lists no binlog with a complete header",
            end=BinlogCoordinates(newest.name, newest.end) if newest else None,
            gtids=newest.reached if newest else None,
            last_commit=max(commits, default=None),
            incarnation=newest.incarnation if newest else None,
        )

    def _note(self, newest: ArchivedFile) -> None:
        """Record the newest archived position on this host. The repository already contains the archived bytes."""
        position = ArchivedPosition(
            incarnation=newest.incarnation, file=newest.name, end=newest.end, last_commit=newest.last_commit
        )
        if position != self._noted:
            own_archived_binlogs.note_archived(self._instance, self._archive.repository, position)
            self._noted = position

    def _plan(self, local: Sequence[ServerBinlog]) -> Plan:
        newest = self._kept[-1] if self._kept else None
        same_name = next((file for file in local if newest is not None and file.name == newest.name), None)
        agrees = not self._disagrees
        if (
            agrees
            and newest is not None
            and same_name is not None
            and same_name.fingerprint == newest.fingerprint
            and same_name.size >= newest.end
        ):
            agrees = contains_last(self._files, newest)
        self._disagrees = False
        return decide(self._kept, local, agrees=agrees, elsewhere=self._elsewhere, returned=self._returned)

    def _begin(self, reason: str) -> None:
        if self._incarnation is not None and not self._kept:
            return
        # Other writers may have begun histories since the archive was read.
        contents = self._archive.load()
        known = {one.id for one in self._incarnations}
        self._incarnations += [one for one in contents.incarnations if one.id not in known]
        restore, taken_back = find_taken_back(self._instance, self._incarnations, self._elsewhere)
        # Only the id of an unreadable incarnation is known. So the times in the ids should be in order too.
        began = self._host.now()
        newest = max((one.began for one in self._incarnations), default=None)
        if newest is not None and newest < _END_OF_TIME:
            began = max(began, newest + timedelta(seconds=1))
        self._incarnation = Incarnation(
            id=new_backup_id(began, secrets.randbits(16)),
            repository_id=self._archive.repository.id,
            instance=self._archive.instance,
            flavour=self._source.flavour,
            server_uuid=self._source.server_uuid,
            server_id=self._source.server_id,
            began=began,
            reason=reason,
            sequence=next_sequence(self._instance, self._archive.repository, [i.sequence for i in self._incarnations]),
            restore=restore,
            taken_back=taken_back,
            ends=ends_of(self._instance, self._archive, contents),
            overtakes=self._others.overtaking,
        )
        self._others.begin(self._incarnation)
        self._incarnations.append(self._incarnation)
        self._kept, self._returned = [], None
        self._archive.begin(self._incarnation)
        own_archived_binlogs.note_archived_files(self._instance, self._archive.repository, [], [self._incarnation.id])

    def _id(self) -> str:
        if self._incarnation is None:
            raise ConsistencyError("no new incarnation was started")
        return self._incarnation.id

    def _key(self, name: str) -> DataKey | None:
        """Return the data key with which this run encrypts a file; None if the repository is not encrypted."""
        keyring = self._archive.repository.keyring
        if not keyring.is_encrypting:
            return None
        if name not in self._keys:
            self._keys = {name: keyring.new_key("1")}
        return self._keys[name]

    def _refuse_clear(self, steps: Sequence[ArchiveStep]) -> None:
        """Raise PreflightError if the server encrypts bytes that would be stored unencrypted."""
        is_hidden = any(self._files.opening(step.name).is_encrypted for step in steps)
        for finding in judge_archiving(is_hidden, is_encrypting=self._archive.repository.keyring.is_encrypting):
            raise PreflightError(finding.detail, hint=finding.hint)

    def _archive_active(self, step: ArchiveStep, done: _RoundResults) -> None:
        """Archive the bytes that the server has added to its active binlog."""
        known = self._kept[-1] if step.offset else None
        with self._files.open(step.name) as file:
            size = file.seek(0, os.SEEK_END)
            opening = self._files.opening(step.name)
            complete = known.end if known else opening.head.end or 0
            synced = False
            for cut in cuts(
                file,
                step.name,
                size,
                start=known.size if known else 0,
                complete=complete,
                limit=self._settings.chunk_size,
                witness=self._witness(known),
            ):
                if not synced:
                    os.fsync(file.fileno())
                    synced = True
                segment = Segment(
                    repository_id=self._archive.repository.id,
                    name=step.name,
                    start=cut.start,
                    end=cut.end,
                    attempt=secrets.token_hex(2),
                    span=cut.span.with_made(made_parts(self._instance, self._source, cut.tables)),
                    head=head_part(self._source, opening) if cut.start == 0 else None,
                    gap=step.gap if cut.start == 0 else None,
                    codec=self._settings.codec,
                    chunk=NO_CHUNK,
                    seen=self._look.wall,
                )
                self._store(file, segment)
                done.transactions += cut.span.transactions
                done.plain_size += cut.end - cut.start
            self._merge(file, step.name)

    def _store(self, file: BinaryIO, segment: Segment) -> Segment:
        """Store a segment, and add it to the archive."""
        key = self._key(segment.name)
        plain = read_plain(file, segment.start, segment.end)
        associated = self._archive.associated(
            segment.repository_id, self._id(), f"segment/{segment.name}", segment.start, last=False
        )
        cipher = ChunkCipher(key.secret, key.part.id) if key else None
        body, chunk = seal(memoryview(plain), segment.codec, self._settings.level, cipher, associated)
        segment = segment.model_copy(update={"chunk": chunk, "key": key.part if key else None})
        self._archive.add_segment(self._id(), segment, body)
        if not segment.is_merged:
            before = self._kept[-1].segments if self._kept and self._kept[-1].name == segment.name else ()
            self._take_in(segment.name, (*before, segment))
        return segment

    def _take_in(self, name: str, segments: Sequence[Segment]) -> None:
        assert self._incarnation is not None
        file = active_file(self._archive.instance, self._incarnation, name, segments)
        if file is None:
            raise ConsistencyError(f"the first segment of {name} is not archived")
        if self._kept and self._kept[-1].name == name:
            self._kept[-1] = file
        else:
            self._kept.append(file)

    def _merge(self, file: BinaryIO, name: str) -> None:
        """If there are many segments, merge the last segments into one.

        The merged segment is read back before the original segments are removed.
        """
        segments = self._kept[-1].segments if self._kept and self._kept[-1].name == name else ()
        small = segments[
            len(segments) - next((n for n, s in enumerate(reversed(segments)) if s.is_merged), len(segments)) :
        ]
        if len(small) < _MERGED or small[-1].end - small[0].start > self._settings.chunk_size:
            return
        span = small[0].span
        for segment in small[1:]:
            span = span.then(segment.span, self._source.flavour)
        merged = small[0].model_copy(
            update={
                "repository_id": self._archive.repository.id,
                "end": small[-1].end,
                "span": span,
                "attempt": secrets.token_hex(2),
                "is_merged": True,
                "seen": small[-1].seen,
            }
        )
        merged = self._store(file, merged)
        if hashlib.sha256(self._archive.get_segment(self._id(), merged)).hexdigest() != merged.chunk.stored_sha256:
            raise DamagedError(
                f"a segment of {name} was read back different from what was written", hint="the store cannot be trusted"
            )
        self._take_in(name, (*segments[: len(segments) - len(small)], merged))
        try:
            binlog_archive.remove_segments(self._archive, self._id(), small)
        except RepositoryError as error:
            self._warn_once(f"unneeded segments of {name} could not be removed: {error.message}")

    def _archive_rotated(self, step: ArchiveStep, done: _RoundResults) -> None:
        """Archive a complete binlog that the server has closed.

        Every chunk is read back before the description of the file is written. After that, the segments of the file are
        removed.
        """
        known = self._kept[-1] if step.offset else None
        opening = self._files.opening(step.name)
        with self._files.open(step.name) as file:
            size = file.seek(0, os.SEEK_END)
            for segment in known.segments if known else ():
                if plain_hash(read_plain(file, segment.start, segment.end)).hexdigest() != segment.chunk.plain_hash:
                    self._disagrees = True
                    raise ConsistencyError(
                        f"{step.name} no longer contains the bytes that were archived from it",
                        hint="no action is needed: the next round begins a new incarnation",
                    )
            span, tables = span_and_tables(file, step.name, self._witness(known))
            os.fsync(file.fileno())
            attempt = secrets.token_hex(2)
            key = self._key(step.name)
            chunks = self._put_chunks(file, step.name, attempt, span.end, key)
        before, archived = (known.span.made, known.end) if known else ((), 0)
        added = made_parts(self._instance, self._source, [table for table in tables if table.offset >= archived])
        rotated = ArchivedFile(
            repository_id=self._archive.repository.id,
            instance=self._archive.instance,
            incarnation=self._id(),
            name=step.name,
            flavour=self._source.flavour,
            is_rotated=True,
            head=head_part(self._source, opening),
            span=span.with_made((*before, *added)),
            size=size,
            sha256=stream_hash(chunks),
            gap=known.gap if known else step.gap,
            codec=self._settings.codec,
            attempt=attempt,
            chunks=chunks,
            keys=(key.part,) if key else (),
            seen=None if self._last_look is None else self._last_look.wall,
        )
        # A sweep may have removed chunks, because no description of the file refers to them yet and they may be old.
        self._archive.confirm(self._id(), step.name, attempt, chunks)
        # Write the record first: if the run is killed before the commit, the next run archives and records the file
        # again.
        own_archived_binlogs.note_archived_files(self._instance, self._archive.repository, [rotated])
        self._archive.commit(rotated)
        if known is not None:
            self._kept[-1] = rotated
        else:
            self._kept.append(rotated)
        self._remove_unneeded(rotated)
        done.rotated.append(step.name)
        done.transactions += span.transactions - (known.span.transactions if known else 0)
        done.plain_size += span.end - (known.end if known else 0)

    def _put_chunks(self, file: BinaryIO, name: str, attempt: str, end: int, key: DataKey | None) -> tuple[Chunk, ...]:
        """Store the bytes of the file up to `end` in chunks, read each chunk back, and return the chunk descriptions.

        The function needs as much memory as the upload of a volume's stream.
        """
        cipher = ChunkCipher(key.secret, key.part.id) if key else None
        starts = range(0, end, self._settings.chunk_size)

        def put(index: int, plain: bytearray) -> Chunk:
            associated = self._archive.associated(
                self._archive.repository.id, self._id(), f"binlog/{name}", index, last=index == len(starts)
            )
            body, chunk = seal(memoryview(plain), self._settings.codec, self._settings.level, cipher, associated)
            self._archive.put_chunk(self._id(), name, attempt, index, body)
            read = self._archive.get_chunk(self._id(), name, attempt, index)
            if hashlib.sha256(read).hexdigest() != chunk.stored_sha256:
                raise DamagedError(
                    f"chunk {index} of {name} was read back different from what was written",
                    hint="the store cannot be trusted",
                )
            return chunk

        chunks: list[Chunk] = []
        pending: deque[Future[Chunk]] = deque()
        pool = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="binlog")
        try:
            for index, start in enumerate(starts, 1):
                stop = min(start + self._settings.chunk_size, end)
                pending.append(pool.submit(put, index, read_plain(file, start, stop)))
                if len(pending) > self._settings.concurrency:
                    chunks.append(pending.popleft().result())
            chunks += [future.result() for future in pending]
        finally:
            pool.shutdown(cancel_futures=True)
        return tuple(chunks)

    def _remove_unneeded(self, file: ArchivedFile) -> None:
        try:
            binlog_archive.remove_unneeded(self._archive, file)
        except RepositoryError as error:
            self._warn_once(f"unneeded segments of {file.name} could not be removed: {error.message}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._events.warn(text)

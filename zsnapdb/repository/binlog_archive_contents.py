"""The contents of a binlog archive: every described incarnation and binlog, rotated or active."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar, cast

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConsistencyError, DamagedError, NotFound
from zsnapdb.base.gtid import GtidSet
from zsnapdb.planning import creation_order
from zsnapdb.planning.binlog.route_elements import NOTHING_KNOWN, ArchiveState, CompleteUntil, Unreadable
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_description_cache import DescriptionCache, Known, KnownFile, KnownSegment
from zsnapdb.repository.binlog_descriptions import (
    ArchivedFile,
    CompleteRecord,
    HistoryEnd,
    Incarnation,
    ReadChunks,
    Segment,
    UnreadChunks,
    UnreadKeys,
    covering,
    number_of,
)
from zsnapdb.repository.layout import CompleteKey, K, Key, SegmentKey
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.repository.objects import ListedObject
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.stored_document import StoredDocument, digest_of
from zsnapdb.stream.chunks import Chunk

Description: TypeAlias = Incarnation | CompleteRecord | ArchivedFile | Segment
T = TypeVar("T", bound=Description)
D = TypeVar("D", Incarnation, CompleteRecord, ArchivedFile)
F = TypeVar("F", ArchivedFile, Segment)
E = TypeVar("E", KnownFile, Known)

_THREADS = 8
_READINGS = 5


@dataclass(frozen=True)
class Archive:
    """The contents of an instance's binlog archive: its incarnations, oldest first, and their files in order.

    `damaged` contains an error for each unreadable description, and for each gap between two parts of an active binlog.
    `state` contains the locations of the damage, and the end of the complete part. `lines` maps each key to the SHA-256
    of the description's line. `displaced` contains the binlogs with an unused foreign description, because this host
    archived their segments.
    """

    incarnations: tuple[Incarnation, ...]
    files: tuple[ArchivedFile, ...]
    damaged: tuple[DamagedError, ...] = ()
    state: ArchiveState = NOTHING_KNOWN
    lines: Mapping[str, str] = field(default_factory=dict)
    displaced: tuple[str, ...] = ()

    def of(self, incarnation: str) -> tuple[ArchivedFile, ...]:
        """Return the files of one incarnation, in order."""
        return tuple(file for file in self.files if file.incarnation == incarnation)


def load(repository: Repository, instance: str, cache: DescriptionCache | None = None) -> Archive:
    """Return the contents of the instance's archive.

    With a cache, only descriptions that the cache lacks are read, and the chunks of rotated binlogs stay unread. A
    damaged description does not hide other descriptions. Raises RepositoryError if the store cannot be reached.
    """
    repository.keyring.read_own()
    read_chunks = partial(_read_chunks, repository, instance)
    known = (
        {cache.key(entry): _with_unread_chunks(read_chunks, entry) for entry in cache.read()}
        if cache is not None
        else {}
    )
    reading = _Reading(repository, read_chunks, cache is not None, known)
    keys = [listed.key for listed in repository.list(layout.incarnations(instance))]
    incarnations: list[Incarnation] = []
    damages: list[_Damage] = []
    for key, read in _read_all(reading, keys, _incarnation):
        if isinstance(read, Incarnation):
            incarnations.append(read)
        else:
            damages.append(_Damage(read, Unreadable(key.incarnation, None, 0, read.message)))
    incarnations = creation_order.by_number(incarnations, lambda one: one.sequence, lambda one: (one.began, one.id))
    # The records are read before the binlogs, because a binlog archived in between could give a record of an unread
    # place.
    complete, unread = _complete(reading, [layout.complete(instance, one.id) for one in incarnations])
    files: list[ArchivedFile] = []
    displaced: list[str] = []
    for incarnation in incarnations:
        readable, wrong, foreign = _files(reading, instance, incarnation)
        files += readable
        damages += wrong
        displaced += foreign
    if cache is not None and (reading.is_changed or reading.known):
        cache.write(reading.found)
    return Archive(
        tuple(incarnations),
        tuple(files),
        (*(damage.error for damage in damages), *unread),
        ArchiveState(
            tuple(damage.place for damage in damages),
            complete,
            taken_back=_taken_back(incarnations),
            grown=grown(incarnations, files),
        ),
        reading.lines,
        tuple(displaced),
    )


def _taken_back(incarnations: Sequence[Incarnation]) -> tuple[tuple[str, GtidSet], ...]:
    """Return the GTIDs that a restore took back, by incarnation. GTIDs that cannot be parsed are left out."""
    found: list[tuple[str, GtidSet]] = []
    for one in incarnations:
        if one.taken_back is not None:
            with contextlib.suppress(ValueError):
                found.append((one.id, GtidSet.parse(one.taken_back)))
    return tuple(found)


def grown(incarnations: Sequence[Incarnation], files: Sequence[ArchivedFile]) -> tuple[tuple[str, str], ...]:
    """Return each incarnation with every other one to which transactions were archived after the first one began.

    The number of transactions decides this, not a clock. A binlog also grows at its rotation, without a transaction.
    """
    of: dict[str, list[ArchivedFile]] = {}
    for file in files:
        of.setdefault(file.incarnation, []).append(file)

    def has_grown(end: HistoryEnd) -> bool:
        number = number_of(end.name)
        return any(
            file.span.transactions > (end.transactions if file.number == number else 0)
            for file in of.get(end.incarnation, ())
            if file.number >= number
        )

    return tuple((one.id, end.incarnation) for one in incarnations for end in one.ends if has_grown(end))


@dataclass
class _Reading:
    """One reading of an archive. `lines` maps each key read so far to the SHA-256 of the description's line.

    `known` contains descriptions from earlier readings that this reading has not used yet. `found` contains the
    descriptions of this reading. Without a cache, both are empty.
    """

    repository: Repository
    read_chunks: ReadChunks
    has_cache: bool = False
    known: dict[str, Known] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    found: dict[str, Known] = field(default_factory=dict)
    is_changed: bool = False

    def is_own(self, key: Key, read: ArchivedFile | Segment) -> bool:
        """Return whether this host prefers the description to foreign descriptions.

        A host that cannot distinguish its own descriptions treats every description as its own.
        """
        digests = (self.lines[key], *((read.digest,) if isinstance(read, ArchivedFile) else ()))
        return self.repository.keyring.is_own(*digests)

    def recall(self, listed: ListedObject[K]) -> ArchivedFile | Segment | None:
        """Return the cached description of a listed object if the object is unchanged and this host still trusts it."""
        known = self.known.pop(listed.key, None) or self.found.get(listed.key)
        if known is None:
            return None
        is_same = bool(listed.version) and known.version == listed.version
        if not is_same or not self.repository.keyring.believes(known.signer, known.line):
            self.is_changed = True
            return None
        self.lines[listed.key] = known.line
        self.found[listed.key] = known
        return known.file if isinstance(known, KnownFile) else known.segment

    def keep(
        self, key: Key, version: str, incarnation: str, document: StoredDocument, read: ArchivedFile | Segment
    ) -> ArchivedFile | Segment:
        """Cache a description that was just read, and return it. For a rotated binlog, return it without the chunks."""
        if not self.has_cache or not version:
            return read
        self.is_changed = True
        facts = (version, document.signer, document.digest)
        if isinstance(read, Segment):
            self.found[key] = KnownSegment(*facts, incarnation, read)
            return read
        known = _with_unread_chunks(self.read_chunks, KnownFile(*facts, read.digest, read.stored_size, read))
        self.found[key] = known
        return known.file


def _with_unread_chunks(read_chunks: ReadChunks, known: E) -> E:
    """Return the entry of a rotated binlog.

    The chunks, their data keys and the signature of both are read at the first use.
    """
    if isinstance(known, KnownSegment):
        return known
    file = known.file
    unread = UnreadChunks(known.digest, known.stored_size, read_chunks, (file.incarnation, file.name, known.line))
    update = {"chunks": unread, "keys": UnreadKeys(unread), "head": file.head.compact(), "span": file.span.compact()}
    return known._replace(file=file.model_copy(update=update).compact())


def _read_chunks(
    repository: Repository, instance: str, incarnation: str, name: str, known_line: str
) -> tuple[tuple[Chunk, ...], tuple[KeyPart, ...]]:
    key = layout.rotated_binlog(instance, incarnation, name)
    try:
        line = repository.verified(key)
    except NotFound as error:
        raise DamagedError(f"{key} is missing", hint="the object was removed after it was listed") from error
    if digest_of(line) != known_line:
        raise DamagedError(f"{key} differs from what this host read before", hint="the object was replaced")
    file = _rotated(line, key)
    _check_origin(repository, file, key)
    return tuple(file.chunks), tuple(file.keys)


def _complete(reading: _Reading, keys: Sequence[CompleteKey]) -> tuple[tuple[CompleteUntil, ...], list[DamagedError]]:
    """Return the end of each incarnation's complete part, and the errors of unreadable records."""
    records: list[CompleteUntil] = []
    errors: list[DamagedError] = []
    for _, read in _read_all(reading, keys, _complete_record):
        if isinstance(read, CompleteRecord):
            records.append(CompleteUntil(read.incarnation, read.name, read.end, read.until))
        else:
            errors.append(read)
    return tuple(records), errors


@dataclass(frozen=True)
class _Damage:
    """An unreadable part of the archive, and its location."""

    error: DamagedError
    place: Unreadable

    @classmethod
    def of_binlog(cls, incarnation: str, name: str, error: DamagedError) -> _Damage:
        return cls(error, Unreadable(incarnation, name, number_of(name), error.message))


def _files(
    reading: _Reading, instance: str, incarnation: Incarnation
) -> tuple[list[ArchivedFile], list[_Damage], list[str]]:
    """Return an incarnation's files in order, their damage, and the names of the displaced files.

    Anyone who can write to the repository can add a description of the active binlog. So if the description of a
    rotated binlog is foreign or unreadable, this host's own segments of the binlog are used.

    If a listed description or a segment is missing, the binlogs are read again, because the archiver may have replaced
    the object.

    Raises: ConsistencyError if an object is missing at every attempt.
    """
    for attempt in range(1, _READINGS + 1):
        # Segments are listed before rotated files. So a file that is rotated in between is in both lists, and never in
        # neither.
        segments = list(reading.repository.list(layout.segments(instance, incarnation.id)))
        described = reading.repository.list(layout.rotated_binlogs(instance, incarnation.id))
        read = _recall_or_read(reading, described, incarnation.id, _rotated)
        files = [file for file in read.values() if isinstance(file, ArchivedFile)]
        damages = [
            _Damage.of_binlog(incarnation.id, key.name, error)
            for key, error in read.items()
            if isinstance(error, DamagedError)
        ]
        parts: dict[str, list[ListedObject[SegmentKey]]] = {}
        for listed in segments:
            parts.setdefault(listed.key.name, []).append(listed)
        there, foreign = len(files) + len(damages), {file.name for file in files} & parts.keys()
        trusted = (
            key.name for key, file in read.items() if isinstance(file, ArchivedFile) and reading.is_own(key, file)
        )
        foreign -= set(trusted)
        for name in {key.name for key in read} & (parts.keys() - foreign - {damage.place.name for damage in damages}):
            parts.pop(name)
        actives = [_active(reading, instance, incarnation, name, known) for name, known in parts.items()]
        if there < len(read) or any(active.is_changed for active in actives):
            continue
        if any(active.is_cut for active in actives) and attempt < _READINGS:
            continue
        own = {active.file.name for active in actives if active.file is not None and active.is_own} & foreign
        files = [file for file in files if file.name not in own]
        known = {file.name for file in files}
        kept = [active for active in actives if active.file is None or active.file.name not in known]
        files += [active.file for active in kept if active.file is not None]
        damages += [active.damage for active in kept if active.damage is not None]
        own |= {active.file.name for active in kept if active.file is not None and active.is_displacing}
        return sorted(files, key=lambda file: number_of(file.name)), damages, sorted(own)
    raise ConsistencyError(f"the binlogs of {instance} change faster than they can be read", hint="try again")


@dataclass(frozen=True)
class _Active:
    """The readable part of an active binlog, from its start, and the damage after it, if any.

    `is_changed` is True if a segment was removed after it was listed. `is_cut` is True if a segment is missing before a
    later one. `is_own` is True if this host stored the first segment. `is_displacing` is True if foreign segments exist
    but are not used.
    """

    file: ArchivedFile | None = None
    damage: _Damage | None = None
    is_changed: bool = False
    is_cut: bool = False
    is_own: bool = False
    is_displacing: bool = False


def _active(
    reading: _Reading, instance: str, incarnation: Incarnation, name: str, known: Sequence[ListedObject[SegmentKey]]
) -> _Active:
    """Return the readable part of an active binlog. A foreign or unreadable segment never replaces another segment."""
    read = _recall_or_read(reading, known, incarnation.id, lambda body, key: _segment(body, key, incarnation.flavour))
    segments = {key.span: segment for key, segment in read.items() if isinstance(segment, Segment)}
    own = {key.span for key, one in read.items() if isinstance(one, Segment) and reading.is_own(key, one)}
    chosen = covering(list(own)) or covering(list(segments))
    file = active_file(instance, incarnation, name, [segments[span] for span in chosen])
    is_own = bool(chosen) and chosen[0] in own
    reached = chosen[-1][1] if file is not None else 0
    foreign = segments.keys() - own if is_own else set()
    later = {one.key: read.get(one.key) for one in known if one.key.span[1] > reached and one.key.span not in foreign}
    if any(segment is None for segment in later.values()):
        return _Active(is_changed=True)
    if not later:
        return _Active(file, is_own=is_own, is_displacing=bool(foreign))
    error = next((one for one in later.values() if isinstance(one, DamagedError)), None)
    gap = DamagedError(
        f"{layout.segments(instance, incarnation.id, name).path} lacks the segment of {name} from byte {reached} on",
        hint="the object was removed after it was written; the archive has a gap there",
    )
    damage = _Damage.of_binlog(incarnation.id, name, error or gap)
    return _Active(file, damage, is_cut=error is None, is_own=is_own)


def _at(kind: type[D], key_of: Callable[[D], str]) -> Callable[[bytes, str], D]:
    """Return a decoder for this kind of description.

    The decoder raises DamagedError for a description that is stored under another object's key.
    """

    def decode(body: bytes, key: str) -> D:
        description = kind.decode(body, key)
        _check_place(key, key_of(description))
        return description

    return decode


_incarnation = _at(Incarnation, lambda one: layout.incarnation(one.instance, one.id))
_complete_record = _at(CompleteRecord, lambda one: layout.complete(one.instance, one.incarnation))
_rotated = _at(ArchivedFile, lambda one: layout.rotated_binlog(one.instance, one.incarnation, one.name))


def _segment(body: bytes, key: SegmentKey, flavour: Flavour) -> Segment:
    segment = Segment.decode(body, key)
    try:
        segment.check_gtids(flavour)
    except ValueError as error:
        raise DamagedError(f"{key} cannot be read: {error}", hint="the object was altered") from error
    if (segment.name, segment.start, segment.end) != (key.name, *key.span):
        _check_place(key, f"{segment.name}, bytes {segment.start} to {segment.end}")
    return segment


def _check_place(key: str, described: str) -> None:
    """Raise DamagedError if a description is stored under the key of another object."""
    if described != key:
        raise DamagedError(
            f"{key} describes {described}", hint="objects were renamed or copied by hand in the repository"
        )


def _check_origin(repository: Repository, description: Description, key: str) -> None:
    """Raise DamagedError for a description of another repository, or of unencrypted chunks that this host refuses."""
    if description.repository_id != repository.id:
        raise DamagedError(
            f"{key} belongs to repository {description.repository_id}, this is repository {repository.id}",
            hint="objects were copied by hand from another repository; copy backups with `zsnapdb copy`",
        )
    if isinstance(description, ArchivedFile):
        repository.keyring.check_encrypted((chunk.key_id for chunk in description.chunks), key)
    elif isinstance(description, Segment):
        repository.keyring.check_encrypted((description.chunk.key_id,), key)


def _recall_or_read(
    reading: _Reading, listed: Iterable[ListedObject[K]], incarnation: str, decode: Callable[[bytes, K], F]
) -> dict[K, F | DamagedError | None]:
    """Return the listed descriptions in order.

    Descriptions that are not in this host's cache are read as in `_read_all`.

    None stands for an object that was removed after the listing.
    """
    results: dict[K, F | DamagedError | None] = {}
    versions: dict[K, str] = {}
    for one in listed:
        results[one.key] = known = cast("F | None", reading.recall(one))
        if known is None:
            versions[one.key] = one.version

    def keep(key: K, document: StoredDocument, read: F) -> F:
        return cast(F, reading.keep(key, versions[key], incarnation, document, read))

    results.update(_read_all(reading, list(versions), decode, keep))
    return results


def _read_all(
    reading: _Reading,
    keys: Sequence[K],
    decode: Callable[[bytes, K], T],
    keep: Callable[[K, StoredDocument, T], T] | None = None,
) -> list[tuple[K, T | DamagedError]]:
    """Return the decoded objects in order. Objects that were removed after the listing are omitted.

    `keep` returns the form in which a description is kept in memory.
    """
    repository = reading.repository

    def read(key: K) -> tuple[K, T | DamagedError] | None:
        try:
            document = repository.keyring.opened(repository.get(key), key)
            description = decode(document.line, key)
            _check_origin(repository, description, key)
            reading.lines[key] = document.digest
            return key, description if keep is None else keep(key, document, description)
        except DamagedError as error:
            return key, error
        except NotFound:
            return None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="binlogs") as pool:
        return [item for item in pool.map(read, keys) if item is not None]


def active_file(instance: str, incarnation: Incarnation, name: str, segments: Sequence[Segment]) -> ArchivedFile | None:
    """Return the active binlog that consists of the given segments, in order.

    The result is None if the first segment of the binlog is missing.
    """
    if not segments or segments[0].head is None or segments[0].start != 0:
        return None
    span = segments[0].span
    for segment in segments[1:]:
        span = span.then(segment.span, Flavour(incarnation.flavour))
    return ArchivedFile(
        repository_id=incarnation.repository_id,
        instance=instance,
        incarnation=incarnation.id,
        name=name,
        flavour=incarnation.flavour,
        is_rotated=False,
        head=segments[0].head,
        span=span,
        size=segments[-1].end,
        sha256="",
        gap=segments[0].gap,
        segments=tuple(segments),
        seen=segments[-1].seen,
    )

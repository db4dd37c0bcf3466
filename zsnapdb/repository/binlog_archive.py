"""The binlog archive of one instance, with methods that read and write it.

`binlog_descriptions` defines the objects of the archive. `binlog_archive_contents` reads all descriptions.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, TypeAlias

from typing_extensions import Buffer

from zsnapdb.base import safe_open
from zsnapdb.base.errors import ConsistencyError, DamagedError, ExistsError, NotFound
from zsnapdb.planning.binlog.route_elements import CompleteUntil
from zsnapdb.planning.repository import document_digests
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive_contents import Archive, load
from zsnapdb.repository.binlog_description_cache import DescriptionCache
from zsnapdb.repository.binlog_descriptions import ArchivedFile, CompleteRecord, Incarnation, Segment
from zsnapdb.repository.layout import (
    BinlogChunkKey,
    BinlogKey,
    IncarnationKey,
    Key,
    RotatedBinlogKey,
    SegmentBodyKey,
    SegmentKey,
)
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.repository.objects import ListedObject
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.chunks import Body, Chunk, Codec, plain_hash, stream_hash, unseal
from zsnapdb.stream.crypto import ChunkCipher

Load = Callable[[], Body]


class ArchivedBytes(io.RawIOBase):
    """An archived binlog, open for reading.

    `parts` contains each chunk's size and a function that loads the chunk and checks its hashes. Only two chunks are
    kept in memory, because readers move forward, or back by at most one event.
    """

    def __init__(self, name: str, parts: Sequence[tuple[int, Load]]) -> None:
        super().__init__()
        self.name = name
        self._loads = [load for _, load in parts]
        self._ends = list(accumulate(size for size, _ in parts))
        self._recent: dict[int, Body] = {}
        self._loaded: set[int] = set()
        self._at = 0

    def readable(self) -> bool:
        """Return True, because the file is always readable."""
        return True

    def seekable(self) -> bool:
        """Return True, because the file is always seekable."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the offset of the next read in bytes, and return this offset."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ends[-1] if self._ends else 0}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, target: Buffer, /) -> int:
        """Read into the target, at most to the end of the current chunk.

        Raises: DamagedError if the chunk is damaged.
        """
        number = bisect_right(self._ends, self._at)
        view = memoryview(target).cast("B")
        if number == len(self._ends) or not len(view):
            return 0
        start = self._ends[number - 1] if number else 0
        piece = memoryview(self._chunk(number))[self._at - start :][: len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def load_rest(self) -> None:
        """Load every chunk that was not read yet.

        Raises: DamagedError if a chunk is damaged.
        """
        for number in range(len(self._loads)):
            if number not in self._loaded:
                self._chunk(number)

    def _chunk(self, number: int) -> Body:
        if number not in self._recent:
            while len(self._recent) > 1:
                self._recent.pop(next(iter(self._recent)))
            self._recent[number] = self._loads[number]()
            self._loaded.add(number)
        return self._recent[number]


_PIECE = 1 << 20


@contextlib.contextmanager
def _new_file(target: Path, end: int) -> Iterator[BinaryIO]:
    """Open a new file.

    When the block ends, the file is truncated to `end` bytes and synced to disk. After an error, the file is removed.

    Raises: ExistsError if `target` exists.
    """
    try:
        with safe_open.create(target) as out:
            yield out
            out.truncate(end)
            out.flush()
            os.fsync(out.fileno())
    except FileExistsError as error:
        raise ExistsError(f"{target} already exists", hint="name another file; nothing is overwritten") from error
    except BaseException:
        safe_open.remove(target)
        raise


def _copy_chunk(chunk: Chunk, start: int, read: Callable[[int, int], Body], out: BinaryIO) -> bool:
    """Write a chunk from a local copy of the binlog. Return whether the copy contains the chunk's bytes."""
    proof, end = plain_hash(), start + chunk.plain_size
    for at in range(start, end, _PIECE):
        piece = read(at, min(at + _PIECE, end))
        proof.update(piece)
        out.write(piece)
    return proof.hexdigest() == chunk.plain_hash


@dataclass(frozen=True)
class BinlogArchive:
    """The binlog archive of an instance in a repository.

    The repository's keyring signs and verifies descriptions and opens data keys.
    """

    repository: Repository
    instance: str
    cache: DescriptionCache | None = field(default=None, kw_only=True)
    """The descriptions that this host has already read.

    None means that there is no cache, so every description is read.
    """

    def load(self) -> Archive:
        """Return the contents of the archive.

        A damaged description does not hide other descriptions. Raises RepositoryError if the store cannot be reached.
        """
        return load(self.repository, self.instance, self.cache)

    def fetch(self, file: ArchivedFile, target: Path) -> None:
        """Write the file's archived bytes, up to the end of its last complete transaction, to a new file `target`.

        When this method returns, the bytes are synced to disk. Every chunk is decrypted, and its hashes are checked,
        before any byte of the chunk is written. Raises ExistsError if `target` exists, and DamagedError with the name
        of a missing or altered object. After any error except ExistsError, no file is left at `target`.
        """
        with _new_file(target, file.end) as out:
            for plain in self.plain(file):
                out.write(plain)

    def is_local(self, file: ArchivedFile, read: Callable[[int, int], Body]) -> bool:
        """Whether a copy of the file on this host contains the archived bytes, according to the archived hashes.

        `read` returns the bytes of the copy between two offsets. Nothing is fetched, and no key is needed.
        """
        at = 0
        with open(os.devnull, "wb") as nowhere:
            for chunk in file.chunks:
                if not _copy_chunk(chunk, at, read, nowhere):
                    return False
                at += chunk.plain_size
        return file.is_rotated and at == file.end and stream_hash(file.chunks) == file.sha256

    def copy_local(self, file: ArchivedFile, read: Callable[[int, int], Body], target: Path) -> bool:
        """Write the archived bytes to a new file `target`, like `fetch`, but from a copy of the file on this host.

        `read` returns the bytes of the copy between two offsets. Every chunk is checked by the hash in the file's
        description; no chunk is fetched, and no key is needed. If the copy differs from the archived bytes, the result
        is False and no file is left at `target`.
        """
        chunks: Sequence[Chunk] = file.chunks if file.is_rotated else tuple(segment.chunk for segment in file.segments)
        is_same = not file.is_rotated or stream_hash(chunks) == file.sha256
        at = 0
        with _new_file(target, file.end) as out:
            for chunk in chunks if is_same else ():
                is_same = is_same and _copy_chunk(chunk, at, read, out)
                at += chunk.plain_size
        if not is_same:
            safe_open.remove(target)
        return is_same

    def plain(self, file: ArchivedFile) -> Iterator[Body]:
        """Yield the plain bytes of the file's chunks or segments in order. The hashes are checked first."""
        return (load() for _, load in self._loads(file))

    def open(self, file: ArchivedFile) -> ArchivedBytes:
        """Return the archived bytes of the file, for random access. Reads raise the same errors as `plain`."""
        return ArchivedBytes(file.name, list(self._loads(file)))

    def _loads(self, file: ArchivedFile) -> Iterator[tuple[int, Load]]:
        """Yield, in order, the size of each chunk or segment, and a function that loads it and checks its hashes."""
        return self._loads_of_chunks(file) if file.is_rotated else self._loads_of_segments(file)

    def _loads_of_chunks(self, file: ArchivedFile) -> Iterator[tuple[int, Load]]:
        if stream_hash(file.chunks) != file.sha256:
            name = f"binlog {file.name} of {self.instance}, incarnation {file.incarnation}"
            raise DamagedError(
                f"the description of {name} does not match its own list of chunks", hint="the description was altered"
            )
        ciphers, count = self._ciphers(file.keys, file.name), len(file.chunks)
        for index, chunk in enumerate(file.chunks, 1):
            key = self.chunk_key(file.incarnation, file.name, file.attempt, index)
            associated = self.associated(
                file.repository_id, file.incarnation, f"binlog/{file.name}", index, last=index == count
            )
            yield chunk.plain_size, partial(self._open, key, chunk, file.codec, ciphers, associated)

    def _loads_of_segments(self, file: ArchivedFile) -> Iterator[tuple[int, Load]]:
        opened: dict[str, dict[str, ChunkCipher]] = {}
        for segment in file.segments:
            wrapped = segment.key.wrapped if segment.key else ""
            if wrapped not in opened:
                opened[wrapped] = self._ciphers((segment.key,) if segment.key else (), file.name)
            key = self.segment_body_key(file.incarnation, segment)
            associated = self.associated(
                segment.repository_id, file.incarnation, f"segment/{segment.name}", segment.start, last=False
            )
            chunk = segment.chunk
            yield chunk.plain_size, partial(self._open, key, chunk, segment.codec, opened[wrapped], associated)

    def begin(self, incarnation: Incarnation) -> None:
        """Store the description of a new incarnation. Raises ExistsError if an incarnation with this id exists."""
        place = document_digests.incarnation(incarnation.id)
        self._put(self.incarnation_key(incarnation.id), incarnation.encode(), place)

    def add_segment(self, incarnation: str, segment: Segment, body: Body) -> None:
        """Store a segment of an active file, durably: first its body, then its description.

        Raises ExistsError if another writer that this host trusts has described this segment.
        """
        self.repository.put_alone(self.segment_body_key(incarnation, segment), body)
        place = document_digests.segments(incarnation, segment.name)
        self._put(self.segment_key(incarnation, segment), segment.encode(), place)

    def note_complete(self, complete: CompleteUntil) -> None:
        """Durably record the end of the completely archived part of an incarnation.

        The new record replaces an older record.
        """
        record = CompleteRecord(
            repository_id=self.repository.id,
            instance=self.instance,
            incarnation=complete.incarnation,
            name=complete.name,
            end=complete.end,
            until=complete.until,
        )
        key = layout.complete(self.instance, complete.incarnation)
        place = document_digests.complete(complete.incarnation)
        self.repository.overwrite(key, self.repository.keyring.signed(record.encode(), place))

    def put_chunk(self, incarnation: str, name: str, attempt: str, index: int, body: Body) -> None:
        """Store a chunk of a rotated file that has no description yet."""
        self.repository.overwrite(self.chunk_key(incarnation, name, attempt, index), body)

    def get_chunk(self, incarnation: str, name: str, attempt: str, index: int) -> bytes:
        """Return a stored chunk."""
        return self.repository.get(self.chunk_key(incarnation, name, attempt, index))

    def commit(self, file: ArchivedFile) -> None:
        """Store the description of a rotated file and read it back.

        A trusted description is never overwritten. A foreign or unreadable description is replaced, because the
        incarnation belongs to this host.

        Raises: ConsistencyError if the repository then contains another description of the file.
        """
        key, keyring = self.file_key(file), self.repository.keyring
        with contextlib.suppress(ExistsError):
            self._put(key, file.encode())
        stored = keyring.verified(self.repository.get(key), key)
        if ArchivedFile.decode(stored, key) != file:
            raise ConsistencyError(
                f"{key} was read back different from what was written",
                hint="check whether another host archives the same server",
            )
        keyring.forget(document_digests.segments(file.incarnation, file.name))

    def get_segment(self, incarnation: str, segment: Segment) -> bytes:
        """Return the stored body of a segment."""
        return self.repository.get(self.segment_body_key(incarnation, segment))

    def confirm(self, incarnation: str, name: str, attempt: str, chunks: Sequence[Chunk]) -> None:
        """Check that the repository contains every chunk of a file, with the recorded size.

        Call this method before `commit`.

        Raises DamagedError with the name of the first chunk that is missing or incomplete.
        """
        sizes = self.repository.sizes(layout.binlog_chunks(self.instance, incarnation, name, attempt))
        for index, chunk in enumerate(chunks, 1):
            key = self.chunk_key(incarnation, name, attempt, index)
            if sizes.get(key) == chunk.stored_size:
                continue
            try:
                size = len(self.repository.get(key))
            except NotFound:
                size = -1
            if size != chunk.stored_size:
                raise DamagedError(
                    f"{key} is missing or incomplete",
                    hint="a prune may have swept the object; the archiver stores the file again in its next round",
                )

    def bodies(self, file: ArchivedFile) -> Iterator[tuple[BinlogKey, Chunk]]:
        """Yield the key and the description of each object that contains bytes of the file."""
        for index, chunk in enumerate(file.chunks, 1):
            yield self.chunk_key(file.incarnation, file.name, file.attempt, index), chunk
        for segment in file.segments:
            yield self.segment_body_key(file.incarnation, segment), segment.chunk

    def incarnation_key(self, incarnation: str) -> IncarnationKey:
        """Return the key of an incarnation's description."""
        return layout.incarnation(self.instance, incarnation)

    def file_key(self, file: ArchivedFile) -> RotatedBinlogKey:
        """Return the key of a rotated file's description."""
        return layout.rotated_binlog(self.instance, file.incarnation, file.name)

    def chunk_key(self, incarnation: str, name: str, attempt: str, index: int) -> BinlogChunkKey:
        """Return the key of a rotated file's chunk."""
        return layout.binlog_chunk(self.instance, incarnation, name, attempt, index)

    def segment_key(self, incarnation: str, segment: Segment) -> SegmentKey:
        """Return the key of a segment's description."""
        return layout.segment(self.instance, incarnation, segment.name, segment.start, segment.end)

    def segment_body_key(self, incarnation: str, segment: Segment) -> SegmentBodyKey:
        """Return the key of a segment's body."""
        return layout.segment_body(
            self.instance, incarnation, segment.name, segment.start, segment.end, segment.attempt
        )

    def associated(self, repository_id: str, incarnation: str, role: str, index: int, *, last: bool) -> bytes:
        """Return the associated data of an encrypted chunk. The data names the object that the chunk belongs to.

        `repository_id` is the id of the repository to which the description of the file or segment was written. `role`
        is `binlog/<file>` or `segment/<file>`. `index` is the number of the chunk (from 1), or the offset of the
        segment's first byte.
        """
        return "\n".join(
            ("zsnapdb/1", repository_id, self.instance, incarnation, role, str(index), str(int(last)))
        ).encode()

    def _put(self, key: Key, line: bytes, place: str = "") -> None:
        """Store a description.

        A foreign or unreadable description is replaced, because the incarnation belongs to this host.

        Raises: ExistsError if a trusted description exists.
        """
        keyring = self.repository.keyring
        body = keyring.signed(line, place)
        try:
            self.repository.put_alone(key, body)
        except ExistsError:
            with contextlib.suppress(DamagedError):
                keyring.known(self.repository.get(key), key)
                raise
            self.repository.overwrite(key, body)

    def _ciphers(self, keys: Sequence[KeyPart], name: str) -> dict[str, ChunkCipher]:
        opened = self.repository.keyring.open_keys(keys, f"binlog {name} of {self.instance}") if keys else {}
        return {key_id: ChunkCipher(key, key_id) for key_id, key in opened.items()}

    def _open(self, key: Key, chunk: Chunk, codec: Codec, ciphers: dict[str, ChunkCipher], associated: bytes) -> Body:
        try:
            body = self.repository.get(key)
        except NotFound as error:
            raise DamagedError(
                f"{key} is missing", hint="the object was removed after it was written; the archive has a gap there"
            ) from error
        if chunk.key_id is not None and chunk.key_id not in ciphers:
            raise DamagedError(
                f"{key} names a data key that is not in its description", hint="the description was altered"
            )
        return unseal(body, chunk, codec, ciphers[chunk.key_id] if chunk.key_id is not None else None, associated, key)


ListedPart: TypeAlias = ListedObject[BinlogChunkKey] | ListedObject[SegmentBodyKey] | ListedObject[SegmentKey]
"""The key of a listed object that contains a part of a binlog."""


def remove(archive: BinlogArchive, file: ArchivedFile) -> int:
    """Remove a binlog from the archive. Return the number of removed objects.

    After an interruption, either the binlog is still complete, or only unusable objects remain below its name. A killed
    run may have left segments of a rotated binlog. These segments are removed before the binlog's description, because
    readers would use the segments if the description were missing. For an active binlog, the segment with the first
    byte is removed first. If the record of the incarnation's complete part names this binlog, the record is removed
    too.
    """
    repository, place = archive.repository, (archive.instance, file.incarnation, file.name)
    _remove_complete_record(archive, file)
    descriptions = sorted(repository.sizes(layout.segments(*place)))
    for key in descriptions:
        repository.delete(key)
    if file.is_rotated:
        repository.delete(archive.file_key(file))
    bodies: list[BinlogKey] = [
        *repository.sizes(layout.binlog_chunks(*place)),
        *repository.sizes(layout.segment_bodies(*place)),
    ]
    repository.delete_many(bodies)
    repository.keyring.forget(document_digests.segments(file.incarnation, file.name))
    return len(descriptions) + int(file.is_rotated) + len(bodies)


def _remove_complete_record(archive: BinlogArchive, file: ArchivedFile) -> None:
    key = layout.complete(archive.instance, file.incarnation)
    with contextlib.suppress(NotFound, DamagedError):
        line = archive.repository.keyring.verified(archive.repository.get(key), key)
        if CompleteRecord.decode(line, key).name == file.name:
            archive.repository.delete(key)


def remove_segments(archive: BinlogArchive, incarnation: str, segments: Sequence[Segment]) -> None:
    """Remove segments that a longer segment has replaced. Their descriptions are removed first."""
    for segment in segments:
        archive.repository.delete(archive.segment_key(incarnation, segment))
    for segment in segments:
        archive.repository.delete(archive.segment_body_key(incarnation, segment))


def remove_unneeded(archive: BinlogArchive, file: ArchivedFile) -> int:
    """Remove the unneeded objects of a rotated file. Return their number.

    Unneeded objects are the file's segments and the chunks of other attempts. Descriptions of segments are removed
    first.
    """
    repository, place = archive.repository, (archive.instance, file.incarnation, file.name)
    keys: list[BinlogKey] = [
        *repository.sizes(layout.segments(*place)),
        *repository.sizes(layout.segment_bodies(*place)),
        *(key for key in repository.sizes(layout.binlog_chunks(*place)) if key.attempt != file.attempt),
    ]
    for key in keys:
        repository.delete(key)
    return len(keys)


def undescribed(archive: BinlogArchive) -> dict[tuple[str, str], list[ListedPart]]:
    """Return the objects of undescribed binlogs, keyed by incarnation and name.

    Either a killed run left these objects, or a running archiver has not described them yet. A binlog is described if
    the archive contains the description of the rotated file, even an unreadable one, or the binlog's first segment.
    Only incarnations with a description are searched.
    """
    described = archive.repository.list(layout.incarnations(archive.instance))
    return {
        (incarnation, name): objects
        for incarnation in [listed.key.incarnation for listed in described]
        for name, objects in _undescribed(archive, incarnation).items()
    }


def _undescribed(archive: BinlogArchive, incarnation: str) -> dict[str, list[ListedPart]]:
    repository, place = archive.repository, (archive.instance, incarnation)
    # Names are listed before descriptions, so that a binlog that is described in between is not treated as undescribed.
    bodies = (*repository.folders(layout.binlog_chunks(*place)), *repository.folders(layout.segment_bodies(*place)))
    unclear = {name for name in bodies if layout.is_binlog_name(name)}
    unclear |= {listed.key.name for listed in repository.list(layout.segments(*place))}
    unclear -= _described(archive, incarnation)
    parts = {name: _parts(archive, incarnation, name) for name in sorted(unclear)}
    described = _described(archive, incarnation) if parts else frozenset()
    return {name: objects for name, objects in parts.items() if objects and name not in described}


def _described(archive: BinlogArchive, incarnation: str) -> frozenset[str]:
    """Return the names of the files that have descriptions in the incarnation."""
    place = (archive.instance, incarnation)
    segments = archive.repository.list(layout.segments(*place))
    begun = {listed.key.name for listed in segments if listed.key.span[0] == 0}
    return frozenset(begun | {listed.key.name for listed in archive.repository.list(layout.rotated_binlogs(*place))})


def _parts(archive: BinlogArchive, incarnation: str, name: str) -> list[ListedPart]:
    """Return the objects below the name of a binlog, except the description of a rotated file."""
    repository, place = archive.repository, (archive.instance, incarnation, name)
    return [
        *repository.list(layout.binlog_chunks(*place)),
        *repository.list(layout.segment_bodies(*place)),
        *repository.list(layout.segments(*place)),
    ]


def sweep(archive: BinlogArchive, incarnation: str, name: str, keys: Collection[str]) -> int:
    """Remove the objects that `undescribed` returned for a name. Return the number of removed objects.

    Nothing is removed if the name now has a description, or an object that is not in `keys`. A running archiver gives
    each body a new name, so its new objects prevent the removal.
    """
    now: list[BinlogKey] = sorted(part.key for part in _parts(archive, incarnation, name))
    if not now or not set(now) <= set(keys) or name in _described(archive, incarnation):
        return 0
    # The description itself is requested, because a listing may be outdated.
    if archive.repository.exists(layout.rotated_binlog(archive.instance, incarnation, name)):
        return 0
    archive.repository.delete_many(now)
    return len(now)


def name_of(file: ArchivedFile) -> str:
    """Return the name that verification findings use for a file."""
    return f"{file.incarnation}/{file.name}"


def stored_sizes(archive: BinlogArchive, files: Sequence[ArchivedFile]) -> dict[BinlogKey, int]:
    """Return the sizes of stored chunks and segments in bytes, keyed by object key.

    The result contains all chunks and segments of each incarnation to which one of the files belongs.
    """
    sizes: dict[BinlogKey, int] = {}
    for incarnation in sorted({file.incarnation for file in files}):
        chunks = archive.repository.sizes(layout.binlog_chunks(archive.instance, incarnation))
        segments = archive.repository.sizes(layout.segment_bodies(archive.instance, incarnation))
        sizes.update((*chunks.items(), *segments.items()))
    return sizes


def listed_damage(archive: BinlogArchive, file: ArchivedFile, sizes: Mapping[BinlogKey, int]) -> tuple[str, ...]:
    """Return the bodies that are missing or have a wrong size. `sizes` is the result of `stored_sizes`."""
    damage = []
    for key, chunk in archive.bodies(file):
        if key not in sizes:
            damage.append(f"{key} is missing")
        elif sizes[key] != chunk.stored_size:
            damage.append(f"{key} has {sizes[key]} bytes, {chunk.stored_size} were written")
    return tuple(damage)


def stored_damage(archive: BinlogArchive, file: ArchivedFile) -> tuple[str, ...]:
    """Read the stored bytes of a rotated file, without any key. Return the damaged bodies."""
    damage = []
    for key, chunk in archive.bodies(file):
        try:
            body = archive.repository.get(key)
        except NotFound:
            damage.append(f"{key} is missing")
            continue
        if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
            damage.append(f"{key}: the stored bytes do not have the SHA-256 in the description")
    return tuple(damage)

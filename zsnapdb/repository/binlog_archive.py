"""Reading and writing the binlog archive of one instance.

`binlog_descriptions` says what its objects are, `binlog_contents` reads all descriptions, `binlog_removal` removes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.errors import ConsistencyError, DamagedError, ExistsError, NotThere
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_contents import Archive, load
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Incarnation, Segment
from zsnapdb.repository.layout import (
    BinlogChunkKey,
    IncarnationKey,
    Key,
    RotatedBinlogKey,
    SegmentBodyKey,
    SegmentKey,
)
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.chunks import Body, Chunk, Codec, stream_hash, unseal
from zsnapdb.stream.crypto import ChunkCipher


@dataclass(frozen=True)
class BinlogArchive:
    """The binlog archive of an instance in a repository.

    Descriptions are signed and verified, keys opened, by the repository's keyring.
    """

    repository: Repository
    instance: str

    def load(self) -> Archive:
        """Return what is archived. A damaged description does not hide the others; an unreachable store raises."""
        return load(self.repository, self.instance)

    def fetch(self, file: ArchivedFile, target: Path) -> None:
        """Write the file's archived bytes, to the end of its last complete transaction, to `target`, which must not exist; synced.

        Every chunk is proved by its hashes (and opened) before a byte of it is written. DamagedError names what is
        missing or altered; nothing is left at `target` then.
        """
        try:
            with target.open("xb") as out:
                for plain in self.plain(file):
                    out.write(plain)
                out.truncate(file.end)
                out.flush()
                os.fsync(out.fileno())
        except FileExistsError as error:
            raise ExistsError(f"{target} is already there", hint="name another file; nothing is overwritten") from error
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            raise

    def plain(self, file: ArchivedFile) -> Iterator[Body]:
        """Yield the plain bytes of the file's chunks or segments in order, each proved."""
        return self._plain_chunks(file) if file.is_rotated else self._plain_segments(file)

    def _plain_chunks(self, file: ArchivedFile) -> Iterator[Body]:
        if stream_hash(file.chunks) != file.sha256:
            name = f"binlog {file.name} of {self.instance}, incarnation {file.incarnation}"
            raise DamagedError(f"the description of {name} does not fit its own chunks", hint="it was altered")
        ciphers, count = self._ciphers(file.keys, file.name), len(file.chunks)
        for index, chunk in enumerate(file.chunks, 1):
            key = self.chunk_key(file.incarnation, file.name, file.attempt, index)
            associated = self.associated(file.incarnation, f"binlog/{file.name}", index, last=index == count)
            yield self._open(key, chunk, file.codec, ciphers, associated)

    def _plain_segments(self, file: ArchivedFile) -> Iterator[Body]:
        opened: dict[str, dict[str, ChunkCipher]] = {}
        for segment in file.segments:
            wrapped = segment.key.wrapped if segment.key else ""
            if wrapped not in opened:
                opened[wrapped] = self._ciphers((segment.key,) if segment.key else (), file.name)
            key = self.segment_body_key(file.incarnation, segment)
            associated = self.associated(file.incarnation, f"segment/{segment.name}", segment.start, last=False)
            yield self._open(key, segment.chunk, segment.codec, opened[wrapped], associated)

    def begin(self, incarnation: Incarnation) -> None:
        """Make the incarnation exist. ExistsError if there is one of its id."""
        self._put(self.incarnation_key(incarnation.id), incarnation.encode())

    def add_segment(self, incarnation: str, segment: Segment, body: Body) -> None:
        """Store a segment of an active file, durably: its body, then its description.

        ExistsError if another writer has described this segment.
        """
        self.repository.put(self.segment_body_key(incarnation, segment), body)
        self._put(self.segment_key(incarnation, segment), segment.encode())

    def put_chunk(self, incarnation: str, name: str, attempt: str, index: int, body: Body) -> None:
        """Store a chunk of a rotated file that is not described yet."""
        self.repository.overwrite(self.chunk_key(incarnation, name, attempt, index), body)

    def get_chunk(self, incarnation: str, name: str, attempt: str, index: int) -> bytes:
        """Return a stored chunk."""
        return self.repository.get(self.chunk_key(incarnation, name, attempt, index))

    def commit(self, file: ArchivedFile) -> None:
        """Make the rotated file exist: described never over another, and read back the same.

        ConsistencyError if something else is there.
        """
        key = self.file_key(file)
        with contextlib.suppress(ExistsError):
            self._put(key, file.encode())
        stored = self.repository.keyring.verified(self.repository.get(key), key)
        if ArchivedFile.decode(stored, key) != file:
            raise ConsistencyError(
                f"{key} was read back different from what was written",
                hint="does another host archive the same server?",
            )

    def get_segment(self, incarnation: str, segment: Segment) -> bytes:
        """Return the stored body of a segment."""
        return self.repository.get(self.segment_body_key(incarnation, segment))

    def confirm(self, incarnation: str, name: str, attempt: str, chunks: Sequence[Chunk]) -> None:
        """Prove that every chunk of a file that is about to be described is still there.

        DamagedError names the first that is not.
        """
        sizes = self.repository.sizes(layout.binlog_chunks(self.instance, incarnation, name, attempt))
        for index, chunk in enumerate(chunks, 1):
            key = self.chunk_key(incarnation, name, attempt, index)
            if sizes.get(key) == chunk.stored_size:
                continue
            try:
                size = len(self.repository.get(key))
            except NotThere:
                size = -1
            if size != chunk.stored_size:
                raise DamagedError(
                    f"{key} is not there any more, or not whole",
                    hint="did a prune sweep it meanwhile? the next look archives the file again",
                )

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

    def associated(self, incarnation: str, role: str, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to.

        `role` is `binlog/<file>` (index from 1) or `segment/<file>` (index: its first byte).
        """
        return "\n".join(
            ("zsnapdb/1", self.repository.id, self.instance, incarnation, role, str(index), str(int(last)))
        ).encode()

    def _put(self, key: Key, body: bytes) -> None:
        self.repository.put(key, self.repository.keyring.signed(body))

    def _ciphers(self, keys: Sequence[KeyPart], name: str) -> dict[str, ChunkCipher]:
        opened = self.repository.keyring.open_keys(keys, f"binlog {name} of {self.instance}") if keys else {}
        return {key_id: ChunkCipher(key, key_id) for key_id, key in opened.items()}

    def _open(self, key: Key, chunk: Chunk, codec: Codec, ciphers: dict[str, ChunkCipher], associated: bytes) -> Body:
        try:
            body = self.repository.get(key)
        except NotThere as error:
            raise DamagedError(
                f"{key} is missing", hint="the object was removed after it was written; the archive has a gap there"
            ) from error
        if chunk.key_id is not None and chunk.key_id not in ciphers:
            raise DamagedError(
                f"{key} names a key that its description does not have", hint="the description was altered"
            )
        return unseal(body, chunk, codec, ciphers[chunk.key_id] if chunk.key_id is not None else None, associated, key)

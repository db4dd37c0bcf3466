"""Reads a stream to its END, and compresses, hashes and stores its chunks in parallel behind the reader.

Memory: `concurrency + 1` slots of one chunk, and for each worker what its chunk compresses to, whatever the stream's
length.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.planning.backup.level import next_level
from zsnapdb.stream.chunks import Chunk, ChunkSink, Codec, Workspace, new_slot, plain_hash, room_for, seal, stream_hash
from zsnapdb.stream.crypto import NONCE_BYTES, ChunkCipher
from zsnapdb.stream.records import Begin, Walker

_AHEAD_BYTES = 512
"""Read ahead of a slice; less than the smallest chunk."""

_READ_BYTES = 256 << 10
"""Read at once; less than the cache of a processor."""


@dataclass(frozen=True)
class UploadSettings:
    """Chunk size in bytes, codec and level, number of parallel workers.

    `adaptive`: the level is only where to begin.
    """

    chunk_size: int
    codec: Codec
    level: int
    concurrency: int
    adaptive: bool = False


@dataclass(frozen=True)
class KnownChunk:
    """A chunk that is stored, and whether it is the last one of its stream."""

    chunk: Chunk
    last: bool

    def is_of(self, size: int, plain_hash: str, last: bool) -> bool:
        """Whether it was made of exactly this slice."""
        return (self.chunk.plain_size, self.chunk.plain_hash, self.last) == (size, plain_hash, last)


@dataclass(frozen=True)
class Uploaded:
    """A stream that is stored whole: every chunk is there and the END record was seen."""

    begin: Begin
    chunks: tuple[Chunk, ...]

    @property
    def plain_size(self) -> int:
        return sum(chunk.plain_size for chunk in self.chunks)

    @property
    def stored_size(self) -> int:
        return sum(chunk.stored_size for chunk in self.chunks)

    @property
    def sha256(self) -> str:
        return stream_hash(self.chunks)


@dataclass(frozen=True)
class _Slice:
    """A slice of the stream in its slot: the bytes, their plain hash in hexadecimal, whether it is the last one."""

    slot: memoryview
    plain: memoryview
    hash: str
    last: bool


def _slices(pipe: BinaryIO, take: Callable[[], memoryview], chunk_size: int) -> Iterator[_Slice]:
    """Yield the stream, slice by slice, in slots.

    To know the last one a few bytes are read ahead, not a whole slice: that would cost another slot. It is hashed piece
    by piece as it is read, while the processor's cache still has it: that takes a third less time than hashing it from
    memory.
    """
    ahead = pipe.read(_AHEAD_BYTES)
    while ahead:
        slot = take()
        room = slot[NONCE_BYTES : NONCE_BYTES + chunk_size]
        size = len(ahead)
        room[:size] = ahead
        digest = plain_hash(ahead)
        while size < chunk_size:
            piece = room[size : size + _READ_BYTES]
            count = pipe.readinto(piece)  # type: ignore[attr-defined]
            if not count:
                break
            digest.update(piece[:count])
            size += count
        ahead = pipe.read(_AHEAD_BYTES) if size == chunk_size else b""
        yield _Slice(slot, room[:size], digest.hexdigest(), not ahead)


class _Level:
    """The zstd level of the next chunk. An adaptive one is thought over each time every worker has sealed a chunk."""

    def __init__(self, settings: UploadSettings) -> None:
        self.level = settings.level
        self._settings = settings
        self._processors = len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self._sealing = 0.0
        self._sealed = 0

    def sealed(self, seconds: float) -> None:
        """Note how long a worker took to seal a chunk."""
        if not self._settings.adaptive:
            return
        with self._lock:
            self._sealing += seconds
            self._sealed += 1
            if self._sealed >= self._settings.concurrency:
                now = time.monotonic()
                self.level = next_level(
                    self.level, busy=self._sealing, elapsed=now - self._since, processors=self._processors
                )
                self._since, self._sealing, self._sealed = now, 0.0, 0


class _Work:
    """What the workers of one upload share: how a slice in a slot becomes a stored chunk."""

    def __init__(
        self,
        store: ChunkSink,
        settings: UploadSettings,
        cipher: ChunkCipher | None,
        known: Mapping[int, KnownChunk],
        on_stored: Callable[[int, KnownChunk], None] | None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.cipher = cipher
        self.known = known
        self.on_stored = on_stored
        self.failed = threading.Event()
        self.slots: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(settings.concurrency + 1):
            self.slots.put(new_slot(room_for(settings.chunk_size)))
        self._level = _Level(settings)
        self._workspace = Workspace()

    def do(self, index: int, piece: _Slice) -> Chunk:
        """Seal and store one slice, unless an earlier run did; its slot is free afterwards."""
        try:
            earlier = self.known.get(index)
            if earlier is not None and earlier.is_of(len(piece.plain), piece.hash, piece.last):
                return earlier.chunk
            began = time.monotonic()
            body, chunk = seal(
                piece.plain,
                self.settings.codec,
                self._level.level,
                self.cipher,
                self.store.associated(index, last=piece.last),
                workspace=self._workspace,
                slot=piece.slot,
                known_hash=piece.hash,
            )
            self._level.sealed(time.monotonic() - began)
            self.store.put_chunk(index, body, chunk.stored_sha256)
            if self.on_stored is not None:
                self.on_stored(index, KnownChunk(chunk, piece.last))
            return chunk
        except BaseException:
            self.failed.set()
            raise
        finally:
            self.slots.put(piece.slot)


def upload(
    pipe: BinaryIO,
    store: ChunkSink,
    settings: UploadSettings,
    on_bytes: Callable[[int], None],
    *,
    cipher: ChunkCipher | None = None,
    known: Mapping[int, KnownChunk] | None = None,
    on_stored: Callable[[int, KnownChunk], None] | None = None,
) -> Uploaded:
    """Store the stream in `pipe` to its end and return what was stored.

    `on_bytes` is told the plain bytes read so far. `known` is what an earlier run stored of the same stream: a slice
    with the same size, hash and end is not stored again. `on_stored` is told each chunk after it is stored (not the
    known ones), from several threads at once, in any order; the upload fails if it raises. Raises DamagedError if the
    stream is not one of whole records from BEGIN to END, and whatever the store raises. The caller still has to see
    that `zfs send` ended with status 0.
    """
    work = _Work(store, settings, cipher, known or {}, on_stored)
    futures: list[Future[Chunk]] = []
    walker, total = Walker(), 0
    pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="chunk")
    try:
        for piece in _slices(pipe, work.slots.get, settings.chunk_size):
            if work.failed.is_set():
                break
            walker.feed(piece.plain)
            total += len(piece.plain)
            futures.append(pool.submit(work.do, len(futures) + 1, piece))
            on_bytes(total)
        chunks = tuple(_results(futures))
    except BaseException:
        store.give_up()
        raise
    finally:
        # After an error what has not begun is not begun any more.
        pool.shutdown(cancel_futures=True)
    return Uploaded(walker.finish(), chunks)


def _results(futures: list[Future[Chunk]]) -> list[Chunk]:
    """Return the chunks when all are stored.

    Raise the error of the first one that failed, without waiting for those before it.
    """
    for future in as_completed(futures):
        future.result()
    return [future.result() for future in futures]

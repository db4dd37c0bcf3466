"""Upload of a stream up to its END record. Chunks are compressed, hashed and stored in parallel during the read.

Memory: `concurrency + 1` slices, each plain or in its stored form. While a worker compresses a slice, both forms are in
memory. If one connection to the store is slow, more slices are in flight, within the memory limit of `InFlight`. The
memory in use does not depend on the length of the stream.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.planning.backup.send_form import next_level
from zsnapdb.stream.buffer_pool import InFlight, TransferMemory, chunk_size
from zsnapdb.stream.chunks import Chunk, ChunkSink, Codec, Workspace, plain_hash, room_for, seal, stream_hash
from zsnapdb.stream.crypto import NONCE_BYTES, ChunkCipher
from zsnapdb.stream.send_stream_checks import BeginRecord, ExpectedStream, Walker

_AHEAD_BYTES = 512
"""Number of bytes that are read beyond the end of a slice. It is less than the size of the smallest chunk."""

_MOST_IN_FLIGHT = 128 << 20
"""Limit, in plain bytes, of the slices in flight when the network is the bottleneck.

The slices' stored forms need additional memory. Each worker has at most one stored form.
"""

_READ_BYTES = 256 << 10
"""Number of bytes per read. It is less than the size of the CPU cache."""


@dataclass(frozen=True)
class UploadSettings:
    """Maximum chunk size in bytes, codec, level, and number of parallel workers.

    `adaptive` says whether the level may change. In that case, `level` is only the initial level. `widens` says whether
    more workers may start if the network is slow. `first_chunk` is the size of the first chunks in bytes; later chunks
    grow to `chunk_size`. None means that all chunks have the size `chunk_size`.
    """

    chunk_size: int
    codec: Codec
    level: int
    concurrency: int
    adaptive: bool = False
    widens: bool = True
    first_chunk: int | None = None

    def size_of(self, index: int) -> int:
        """Return the size in bytes of the chunk with this number (from 1). The last chunk may be smaller."""
        return chunk_size(index, self.first_chunk or self.chunk_size, self.chunk_size)


@dataclass(frozen=True)
class KnownChunk:
    """A stored chunk, and whether it is the last chunk of its stream."""

    chunk: Chunk
    last: bool

    def is_of(self, size: int, plain_hash: str, last: bool) -> bool:
        """Whether the chunk was created from exactly this slice."""
        return (self.chunk.plain_size, self.chunk.plain_hash, self.last) == (size, plain_hash, last)


@dataclass(frozen=True)
class Uploaded:
    """A completely stored stream: every chunk is stored, and the END record was read."""

    begin: BeginRecord
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
    """A slice of the stream in its slot: the bytes, their plain hash in hexadecimal, and whether it is the last.

    `room` is the largest possible size of the slice in bytes.
    """

    slot: memoryview
    plain: memoryview
    hash: str
    last: bool
    room: int


def _slices(pipe: BinaryIO, take: Callable[[int], memoryview], size_of: Callable[[int], int]) -> Iterator[_Slice]:
    """Yield the stream, slice by slice, in slots. `size_of` returns the size of a slice by its number (from 1).

    To recognize the last slice, only a few bytes are read ahead. A complete slice would need another slot. A slice is
    hashed in small parts while it is read, because each part is then still in the CPU cache. This takes a third less
    time than hashing the slice later from memory.
    """
    ahead = pipe.read(_AHEAD_BYTES)
    for index in itertools.count(1):
        if not ahead:
            return
        chunk_size = size_of(index)
        slot = take(chunk_size)
        room = slot[NONCE_BYTES : NONCE_BYTES + chunk_size]
        size = len(ahead)
        room[:size] = ahead
        digest = plain_hash(ahead)
        while size < chunk_size:
            block = room[size : size + _READ_BYTES]
            count = pipe.readinto(block)  # type: ignore[attr-defined]
            if not count:
                break
            digest.update(block[:count])
            size += count
        ahead = pipe.read(_AHEAD_BYTES) if size == chunk_size else b""
        yield _Slice(slot, room[:size], digest.hexdigest(), not ahead, chunk_size)


class _Level:
    """The zstd level of the next chunk.

    An adaptive level is chosen again after each worker has sealed about one chunk.
    """

    def __init__(self, settings: UploadSettings) -> None:
        self.level = settings.level
        self._settings = settings
        self._processors = len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self._sealing = 0.0
        self._sealed = 0

    def sealed(self, seconds: float) -> None:
        """Record the seconds that a worker needed to seal a chunk."""
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
    """The shared state of the workers of one upload. `do` seals and stores the slice in a slot."""

    def __init__(
        self,
        store: ChunkSink,
        settings: UploadSettings,
        cipher: ChunkCipher | None,
        known: Mapping[int, KnownChunk],
        on_stored: Callable[[int, KnownChunk], None] | None,
        memory: TransferMemory,
    ) -> None:
        self.store = store
        self.settings = settings
        self.cipher = cipher
        self.known = known
        self.on_stored = on_stored
        self.failed = threading.Event()
        self._memory = memory
        self.in_flight = InFlight(settings.concurrency, waiting=1, most_bytes=_MOST_IN_FLIGHT, widens=settings.widens)
        self._level = _Level(settings)
        self._workspace = Workspace()

    def take(self, size: int) -> memoryview:
        """Wait until another slice may be in flight, and return a slot for it."""
        self.in_flight.take(size)
        return self._memory.plain.take(room_for(size))

    def do(self, index: int, part: _Slice) -> Chunk:
        """Seal and store one slice, unless an earlier run stored it. Then release the slice's slot."""
        with self.in_flight.working:
            if self.failed.is_set():
                # Another slice failed while this one waited, so store nothing more.
                self._memory.plain.give(part.slot)
                self.in_flight.give(part.room)
                raise CancelledError
            return self._done(index, part)

    def _done(self, index: int, part: _Slice) -> Chunk:
        slot = part.slot
        try:
            earlier = self.known.get(index)
            if earlier is not None and earlier.is_of(len(part.plain), part.hash, part.last):
                return earlier.chunk
            began = time.monotonic()
            if self.settings.codec is not Codec.NONE:
                slot = self._memory.stored.take(room_for(part.room))
            body, chunk = seal(
                part.plain,
                self.settings.codec,
                self._level.level,
                self.cipher,
                self.store.associated(index, last=part.last),
                workspace=self._workspace,
                into=slot,
                known_hash=part.hash,
            )
            if slot is not part.slot:
                # The stored form is in its own slot, so another slice can use this slot.
                self._memory.plain.give(part.slot)
            sealed = time.monotonic()
            self._level.sealed(sealed - began)
            self.store.put_chunk(index, body, chunk.stored_sha256)
            self.in_flight.transferred(len(body), time.monotonic() - sealed)
            if self.on_stored is not None:
                self.on_stored(index, KnownChunk(chunk, part.last))
            return chunk
        except BaseException:
            self.failed.set()
            raise
        finally:
            (self._memory.plain if slot is part.slot else self._memory.stored).give(slot)
            self.in_flight.give(part.room)


def upload(
    pipe: BinaryIO,
    store: ChunkSink,
    settings: UploadSettings,
    on_bytes: Callable[[int], None],
    *,
    cipher: ChunkCipher | None = None,
    known: Mapping[int, KnownChunk] | None = None,
    on_stored: Callable[[int, KnownChunk], None] | None = None,
    expected: ExpectedStream | None = None,
    memory: TransferMemory | None = None,
) -> Uploaded:
    """Store the stream in `pipe` up to its end and return its chunks.

    - `on_bytes` is called with the number of plain bytes read so far.
    - `known`: the chunks of the same stream that an earlier run stored. Equal slices are not stored again.
    - `on_stored` is called with each newly stored chunk, by several threads concurrently and in any order. The upload
      fails if `on_stored` raises an error.
    - `expected`: the required content of the BEGIN record.
    - `memory`: memory that several streams use one after the other.

    Raises DamagedError unless the stream has complete records, from BEGIN to END, of the types that zsnapdb sends; a
    restore accepts no other stream. Raises the errors of the store. The caller must check that `zfs send` ended with
    status 0.
    """
    work = _Work(store, settings, cipher, known or {}, on_stored, memory or TransferMemory())
    futures: list[Future[Chunk]] = []
    walker, total = Walker(expected), 0
    pool = ThreadPoolExecutor(work.in_flight.most_workers, thread_name_prefix="chunk")
    try:
        for part in _slices(pipe, work.take, settings.size_of):
            if work.failed.is_set():
                break
            walker.feed(part.plain)
            total += len(part.plain)
            futures.append(pool.submit(work.do, len(futures) + 1, part))
            on_bytes(total)
        chunks = tuple(_results(futures))
    except BaseException:
        store.give_up()
        raise
    finally:
        # After an error, chunks on which no worker has started are not stored.
        pool.shutdown(cancel_futures=True)
    return Uploaded(walker.finish(), chunks)


def _results(futures: list[Future[Chunk]]) -> list[Chunk]:
    """Return the chunks when all are stored.

    If a chunk fails, raise its error without waiting for other chunks. The chunks that are then cancelled raise no
    error.
    """
    for future in as_completed(futures):
        if not isinstance(future.exception(), CancelledError):
            future.result()
    return [future.result() for future in futures]

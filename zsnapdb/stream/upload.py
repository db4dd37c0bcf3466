"""Reads a stream to its END, and compresses, hashes and stores its chunks in parallel behind the reader.

Memory: `concurrency + 2` buffers of one chunk, and as many compressed ones at most, whatever the stream's length.
"""

from __future__ import annotations

import hashlib
import mmap
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.stream.chunks import Chunk, ChunkStore, Codec, seal, stream_hash
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.records import Begin, Walker

_AHEAD_BYTES = 512
"""Read ahead of a slice; less than the smallest chunk."""


@dataclass(frozen=True)
class UploadSettings:
    """Chunk size in bytes, codec and level, number of parallel workers."""

    chunk_size: int
    codec: Codec
    level: int
    concurrency: int


@dataclass(frozen=True)
class KnownChunk:
    """A chunk that is stored, and whether it is the last one of its stream."""

    chunk: Chunk
    last: bool

    def is_of(self, plain: memoryview, last: bool) -> bool:
        """Whether it was made of exactly this slice."""
        same = (self.chunk.plain_size, self.last) == (len(plain), last)
        return same and hashlib.sha256(plain).hexdigest() == self.chunk.plain_sha256


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


def _fill(pipe: BinaryIO, buffer: mmap.mmap, filled: int) -> int:
    """Read on behind `filled` bytes until the buffer is full or the pipe ends; return the bytes it holds."""
    with memoryview(buffer) as view:
        while filled < len(view):
            with view[filled:] as rest:
                count = pipe.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                break
            filled += count
    return filled


def _slices(pipe: BinaryIO, take: Callable[[], mmap.mmap]) -> Iterator[tuple[mmap.mmap, int, bool]]:
    """Yield the stream as filled buffers: buffer, bytes in it, whether it is the last one.

    To know the last one a few bytes are read ahead, not a whole slice: that would cost another buffer.
    """
    ahead = pipe.read(_AHEAD_BYTES)
    while ahead:
        buffer = take()
        buffer[: len(ahead)] = ahead
        size = _fill(pipe, buffer, len(ahead))
        ahead = pipe.read(_AHEAD_BYTES) if size == len(buffer) else b""
        yield buffer, size, not ahead


def upload(
    pipe: BinaryIO,
    store: ChunkStore,
    settings: UploadSettings,
    on_bytes: Callable[[int], None],
    *,
    cipher: ChunkCipher | None = None,
    known: Mapping[int, KnownChunk] | None = None,
    on_stored: Callable[[int, KnownChunk], None] | None = None,
) -> Uploaded:
    """Store the stream in `pipe` to its end and return what was stored.

    `on_bytes` is told the plain bytes read so far. `known` is what an earlier run stored of the same stream: a slice with
    the same size, hash and end is not stored again. `on_stored` is told each chunk after it is stored (not the known ones),
    from several threads at once, in any order; the upload fails if it raises. Raises DamagedError if the stream is not one
    of whole records from BEGIN to END, and whatever the store raises. The caller still has to see that `zfs send` ended with status 0.
    """
    before = known or {}
    buffers: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
    for _ in range(settings.concurrency + 2):
        # Anonymous memory costs nothing until it is touched: a short stream does not pay for a whole chunk.
        buffers.put(mmap.mmap(-1, settings.chunk_size))
    failed = threading.Event()

    def work(index: int, buffer: mmap.mmap, size: int, last: bool) -> Chunk:
        try:
            with memoryview(buffer) as whole, whole[:size] as plain:
                earlier = before.get(index)
                if earlier is not None and earlier.is_of(plain, last):
                    return earlier.chunk
                body, chunk = seal(plain, settings.codec, settings.level, cipher, store.associated(index, last=last))
                store.put_chunk(index, body)
                if isinstance(body, memoryview):
                    body.release()
            if on_stored is not None:
                on_stored(index, KnownChunk(chunk, last))
            return chunk
        except BaseException:
            failed.set()
            raise
        finally:
            buffers.put(buffer)

    futures: list[Future[Chunk]] = []
    walker, total = Walker(), 0
    pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="chunk")
    try:
        for buffer, size, last in _slices(pipe, buffers.get):
            if failed.is_set():
                break
            with memoryview(buffer) as whole, whole[:size] as piece:
                walker.feed(piece)
            total += size
            futures.append(pool.submit(work, len(futures) + 1, buffer, size, last))
            on_bytes(total)
        chunks = tuple(future.result() for future in futures)
    finally:
        # After an error what has not begun is not begun any more.
        pool.shutdown(cancel_futures=True)
    return Uploaded(walker.finish(), chunks)

"""Reads a stream to its END, and compresses, hashes and stores its chunks in parallel behind the reader.

Memory: `concurrency + 2` buffers of one chunk, and as many compressed ones at most, whatever the stream's length.
"""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.stream.chunks import Chunk, ChunkStore, Codec, seal, stream_hash
from zsnapdb.stream.records import RECORD_BYTES, Begin, check_end, parse_begin


@dataclass(frozen=True)
class UploadSettings:
    """Chunk size in bytes, codec and level, number of parallel workers."""

    chunk_size: int
    codec: Codec
    level: int
    concurrency: int


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


def _fill(pipe: BinaryIO, buffer: mmap.mmap) -> int:
    """Read until the buffer is full or the pipe ends; return the bytes read."""
    filled = 0
    with memoryview(buffer) as view:
        while filled < len(view):
            with view[filled:] as rest:
                count = pipe.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                break
            filled += count
    return filled


class _Tail:
    """The last bytes of a stream, however they fall across chunks."""

    def __init__(self) -> None:
        self.bytes = b""

    def add(self, piece: memoryview) -> None:
        self.bytes = (self.bytes + bytes(piece[-RECORD_BYTES:]))[-RECORD_BYTES:]


def upload(pipe: BinaryIO, store: ChunkStore, settings: UploadSettings, on_bytes: Callable[[int], None]) -> Uploaded:
    """Store the stream in `pipe` to its end and return what was stored.

    `on_bytes` is told the plain bytes read so far. Raises DamagedError if the stream does not begin and end as a send
    stream does, and whatever the store raises. The caller still has to see that `zfs send` ended with status 0.
    """
    buffers: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
    for _ in range(settings.concurrency + 2):
        # Anonymous memory costs nothing until it is touched: a short stream does not pay for a whole chunk.
        buffers.put(mmap.mmap(-1, settings.chunk_size))
    failed = threading.Event()

    def work(index: int, buffer: mmap.mmap, size: int) -> Chunk:
        try:
            with memoryview(buffer) as whole, whole[:size] as plain:
                body, chunk = seal(plain, settings.codec, settings.level)
                store.put_chunk(index, body)
                if isinstance(body, memoryview):
                    body.release()
            return chunk
        except BaseException:
            failed.set()
            raise
        finally:
            buffers.put(buffer)

    futures: list[Future[Chunk]] = []
    first, tail, total = b"", _Tail(), 0
    pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="chunk")
    try:
        while not failed.is_set():
            buffer = buffers.get()
            size = _fill(pipe, buffer)
            if size == 0:
                break
            view = memoryview(buffer)[:size]
            if not futures:
                first = bytes(view[:RECORD_BYTES])
                parse_begin(first)
            tail.add(view)
            view.release()
            total += size
            futures.append(pool.submit(work, len(futures) + 1, buffer, size))
            on_bytes(total)
        chunks = tuple(future.result() for future in futures)
    finally:
        # After an error what has not begun is not begun any more.
        pool.shutdown(cancel_futures=True)
    begin = parse_begin(first)
    check_end(tail.bytes, first)
    return Uploaded(begin, chunks)

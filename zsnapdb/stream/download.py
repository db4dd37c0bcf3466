"""Download of a stream.

Chunks are fetched, verified and decompressed before the reader needs them, and written in order.

Memory: `concurrency` slices, each plain or in its stored form. While a worker decompresses a slice, both forms are in
memory. If one connection to the store is slow, more slices are in flight, within the memory limit of `InFlight`. The
memory in use does not depend on the length of the stream.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from zsnapdb.base.errors import ConfigError, DamagedError, NotFound
from zsnapdb.stream.buffer_pool import InFlight, TransferMemory
from zsnapdb.stream.chunks import Body, Chunk, ChunkSource, Codec, Workspace, unseal, unseal_in_place
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.resume_stream import NotResumableError, ResumedStream, ResumePoint, first_place
from zsnapdb.stream.send_stream_checks import RECORD_BYTES, ExpectedStream, Walker, parse_begin

_MOST_IN_FLIGHT = 96 << 20
"""Limit for the slices in flight when the network is the bottleneck, in bytes after decompression.

The slices' stored forms need additional memory. A fetched slice occupies its memory until the slice is written.
"""

_MOST_STEPS_BACK = 8
"""Maximum number of chunks before the estimated chunk that are searched for a record before the resume point."""


class Passage(Protocol):
    """A filter through which all slices of a stream pass before they are written to the pipe."""

    def feed(self, slice_: memoryview, *, last: bool) -> Iterator[memoryview]:
        """Yield the bytes to write for a slice. Raises DamagedError before the first yield if the slice is refused."""


class WholeStream:
    """A filter that forwards a whole stream unchanged and checks its records."""

    def __init__(self, expected: ExpectedStream | None) -> None:
        self._walker = Walker(expected)

    def feed(self, slice_: memoryview, *, last: bool) -> Iterator[memoryview]:
        self._walker.feed(slice_)
        if last:
            self._walker.finish()
        yield slice_

    def finish(self) -> None:
        """Raise DamagedError unless the stream has ended."""
        self._walker.finish()


@dataclass(frozen=True)
class Resumption:
    """The rest of a stream that an interrupted receive still needs. The rest starts in chunk number `first` (from 1).

    `before` is the total size of the chunks before `first` after decryption and decompression, in bytes.
    """

    stream: ResumedStream
    first: int
    before: int


def download(
    store: ChunkSource,
    chunks: Sequence[Chunk],
    codec: Codec,
    pipe: BinaryIO,
    *,
    concurrency: int,
    name: Callable[[int], str],
    on_bytes: Callable[[int], None],
    ciphers: Mapping[str, ChunkCipher] | None = None,
    expected: ExpectedStream | None = None,
    memory: TransferMemory | None = None,
    resumption: Resumption | None = None,
    widens: bool = True,
) -> int:
    """Write the plain stream to `pipe`. Return the stream offset in bytes after the last written slice.

    - `resumption`: write only the rest of the stream, or raise NotResumableError.
    - `expected`: the required BEGIN record. The last chunk is written only if it ends with the END record.
    - `ciphers`: the ciphers, keyed by key id. If a needed cipher is missing, ConfigError is raised before anything is
      fetched.
    - `memory`: memory that several streams use one after the other.
    - `widens`: whether more chunks are fetched simultaneously if the network is slow.

    Raises DamagedError if a chunk is missing or altered, or has a record that zsnapdb never sends. The error names the
    first such chunk by `name(index)`, and no byte of this chunk is written. Raises BrokenPipeError if the process that
    reads the pipe has ended. While the store is unreachable, the pipe stays open and its reader waits.
    """
    in_flight = InFlight(concurrency, waiting=0, most_bytes=_MOST_IN_FLIGHT, widens=widens)
    fetcher = _Fetcher(
        store, chunks, codec, name, dict(ciphers or {}), memory or TransferMemory(), len(chunks), in_flight
    )
    passage: Passage = WholeStream(expected)
    total, written = 0, 0
    if resumption is not None:
        passage, total, written = resumption.stream, resumption.before, resumption.first - 1
    elif not chunks:
        WholeStream(expected).finish()
    pending, asked = deque[Future[_Fetched]](), written
    pool = ThreadPoolExecutor(in_flight.most_workers, thread_name_prefix="fetch")
    try:
        while written < len(chunks):
            while asked < len(chunks) and in_flight.try_take(chunks[asked].plain_size):
                asked += 1
                pending.append(pool.submit(fetcher.fetch, asked))
            fetched = pending.popleft().result()
            plain = _writable(fetched.plain)
            written += 1
            total += len(plain)
            for piece in _passed(passage, plain, name(written), last=written == len(chunks)):
                _write_all(pipe, piece)
            fetcher.memory.plain.give(fetched.slot)
            in_flight.give(chunks[written - 1].plain_size)
            on_bytes(total)
    except BaseException:
        store.give_up()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return total


def first_bytes(
    store: ChunkSource,
    chunks: Sequence[Chunk],
    codec: Codec,
    count: int,
    *,
    name: Callable[[int], str],
    ciphers: Mapping[str, ChunkCipher],
    expected: ExpectedStream,
) -> bytes:
    """Return at most `count` bytes from the start of the stream. The first chunk is fetched and verified.

    This function raises the same errors as `download`.
    """
    fetcher = _Fetcher(store, chunks[:1], codec, name, dict(ciphers), TransferMemory(), len(chunks))
    plain = memoryview(fetcher.fetch(1).plain)
    for _ in _passed(WholeStream(expected), plain, name(1), last=len(chunks) == 1):
        pass
    return bytes(plain[:count])


def resume_at(
    store: ChunkSource,
    chunks: Sequence[Chunk],
    codec: Codec,
    point: ResumePoint,
    *,
    name: Callable[[int], str],
    ciphers: Mapping[str, ChunkCipher],
    expected: ExpectedStream,
) -> Resumption:
    """Find the chunk in which an interrupted receive resumes. The first chunk and about one other chunk are fetched.

    Raises NotResumableError if the resume point is not found, and otherwise the same errors as `download`.
    """
    fetcher = _Fetcher(store, chunks, codec, name, dict(ciphers), TransferMemory(), len(chunks))
    first = bytes(fetcher.fetch(1).plain)
    stream = ResumedStream(first[: RECORD_BYTES + parse_begin(first).payload_size], point, expected)
    ends = list(itertools.accumulate(chunk.plain_size for chunk in chunks))
    # The number of received bytes is approximate. It is too small by at most the first record.
    index = next((at for at, end in enumerate(ends, 1) if point.received < end), len(chunks))
    for candidate in range(index, max(1, index - _MOST_STEPS_BACK), -1):
        place = first_place(memoryview(fetcher.fetch(candidate).plain), point.to_guid)
        if place is not None and place < point.key:
            return Resumption(stream, candidate, ends[candidate - 2])
    if index - _MOST_STEPS_BACK > 1:
        raise NotResumableError(
            f"the {_MOST_STEPS_BACK} chunks before {name(index)} have no record before the one that was received last"
        )
    stream.begin_with_the_whole()
    return Resumption(stream, 1, 0)


def _write_all(pipe: BinaryIO, rest: memoryview) -> None:
    while rest:
        rest = rest[pipe.write(rest) :]


def _writable(plain: Body) -> memoryview:
    view = memoryview(plain)
    return memoryview(bytearray(view)) if view.readonly else view


def _passed(passage: Passage, plain: memoryview, name: str, *, last: bool) -> Iterator[memoryview]:
    """Yield the bytes to write for a slice.

    Raises DamagedError with the name of the chunk that contains the first rejected record.
    """
    try:
        yield from passage.feed(plain, last=last)
    except DamagedError as error:
        raise DamagedError(f"{name}: {error.message}", hint=error.hint) from error


@dataclass(frozen=True)
class _Fetched:
    """A slice of the stream, and the memory slot that may contain it.

    The slot must not be reused until the slice is written.
    """

    plain: Body
    slot: memoryview


@dataclass(frozen=True)
class _Fetcher:
    """The shared state of all workers. `length` is the number of chunks in the stream."""

    store: ChunkSource
    chunks: Sequence[Chunk]
    codec: Codec
    name: Callable[[int], str]
    keys: Mapping[str, ChunkCipher]
    memory: TransferMemory
    length: int
    in_flight: InFlight | None = None
    workspace: Workspace = field(default_factory=Workspace)

    def __post_init__(self) -> None:
        """Raise ConfigError if a data key that the chunks need is missing."""
        missing = {chunk.key_id for chunk in self.chunks} - {None} - set(self.keys)
        if missing:
            raise ConfigError(
                f"{self.name(1)} and others are encrypted with key {', '.join(sorted(map(str, missing)))}, which is not"
                " available",
                hint="set identity_file to an age identity that the backup is encrypted to",
            )

    def fetch(self, index: int) -> _Fetched:
        """Return the slice. A damaged chunk is read a second time, because the damage may come from the transfer."""
        chunk = self.chunks[index - 1]
        cipher = self.keys[chunk.key_id] if chunk.key_id is not None else None
        associated = self.store.associated(index, last=index == self.length)
        # An uncompressed slice is decrypted in place, in the slot of its stored form.
        is_plain = self.codec is Codec.NONE
        slots = self.memory.plain if is_plain else self.memory.stored
        stored = slots.take(max(chunk.plain_size, chunk.stored_size), filled=chunk.stored_size)
        slot = stored
        try:
            began = time.monotonic()
            size = self.store.read_chunk(index, stored)
            if self.in_flight is not None:
                self.in_flight.transferred(size, time.monotonic() - began)
            if not is_plain:
                slot = self.memory.plain.take(chunk.plain_size, filled=chunk.plain_size)
            try:
                if size <= len(stored):
                    plain = unseal_in_place(stored[:size], chunk, self.codec, cipher, associated, self.workspace, slot)
                    return _Fetched(plain, slot)
            except DamagedError:
                pass
            body = self.store.get_chunk(index)
        except NotFound as error:
            raise DamagedError(
                f"{self.name(index)} is missing",
                hint="the object was removed after it was written; restore another backup, see `zsnapdb list`",
            ) from error
        finally:
            if slot is not stored:
                self.memory.stored.give(stored)
        # The second attempt makes all checks, and its error shows which check failed.
        proved = unseal(
            body,
            chunk,
            self.codec,
            cipher,
            associated,
            self.name(index),
            workspace=self.workspace,
            memory=self.memory.stored,
            into=slot,
        )
        return _Fetched(proved, slot)

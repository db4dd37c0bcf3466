"""Fetches, proves and decompresses chunks ahead of the reader, and writes them to a pipe in order.

Memory: `concurrency` slices, each plain or in its stored form, and for each worker that decompresses both forms. More
slices are on their way at once where one connection of the store is slow, within the memory that `InFlight` allows. The
length of the stream does not matter.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from zsnapdb.base.errors import ConfigError, DamagedError, NotThere
from zsnapdb.stream.chunks import Body, Chunk, ChunkSource, Codec, Workspace, unseal, unseal_in_place
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.memory import InFlight, TransferMemory
from zsnapdb.stream.records import RECORD_BYTES, ExpectedStream, Walker, parse_begin
from zsnapdb.stream.resuming import NotResumableError, ResumedStream, ResumePoint, first_place

_MOST_IN_FLIGHT = 96 << 20
"""The most bytes of slices at once where the line is what the download waits for: their plain size.

Their stored forms come to that. Those of a slice that is read stay until it is written.
"""

_MOST_STEPS_BACK = 8
"""How many chunks are tried before the one that ZFS was in, for one that begins before the point."""


class Passage(Protocol):
    """What the slices of a stream go through on their way to the pipe."""

    def feed(self, slice_: memoryview, *, last: bool) -> Iterator[memoryview]:
        """Yield what is to be written for a slice. DamagedError, before anything is yielded, if it is not accepted."""


class WholeStream:
    """Passes a whole stream on as it is, and walks over its records."""

    def __init__(self, expected: ExpectedStream | None) -> None:
        self._walker = Walker(expected)

    def feed(self, slice_: memoryview, *, last: bool) -> Iterator[memoryview]:
        """Yield the slice."""
        self._walker.feed(slice_)
        if last:
            self._walker.finish()
        yield slice_

    def finish(self) -> None:
        """DamagedError unless the stream has ended."""
        self._walker.finish()


@dataclass(frozen=True)
class Resumption:
    """The rest of a stream that an interrupted receive still needs: it is in the chunks from `first` on (from 1).

    `before` is the size of the chunks before it, in plain bytes.
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
    """Write the plain stream to `pipe`. Return the number of bytes of it that are behind the reader.

    With a `resumption` only the rest of the stream is fetched and written, and NotResumableError may end it.

    DamagedError names (by `name(index)`) the first chunk that is missing or altered, or with a record that our own
    sends never make; no byte of that chunk is written. `expected` is what the stream's BEGIN record must say. The last
    chunk is written only if it ends with the END record.
    `ciphers` has the ciphers by key id. ConfigError, before anything is fetched, if a chunk needs another one.
    `memory` is what several streams use one after the other. `widens`: more chunks may be fetched at once where the
    line is slow.
    BrokenPipeError if the pipe's reader has ended. While a call of the store waits, the reader waits too; it sees no
    end of the stream.
    """
    in_flight = InFlight(concurrency, waiting=0, most_bytes=_MOST_IN_FLIGHT, widens=widens)
    fetcher = _Fetcher(
        store, chunks, codec, name, dict(ciphers or {}), memory or TransferMemory(), len(chunks), in_flight
    )
    fetcher.refuse_missing_keys()
    passage: Passage = WholeStream(expected)
    total, written = 0, 0
    if resumption is not None:
        passage, total, written = resumption.stream, resumption.before, resumption.first - 1
    elif not chunks:
        WholeStream(expected).finish()
    pending: deque[Future[_Fetched]] = deque()
    asked = written
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
    """Return at most so many bytes of the beginning of the stream. Its first chunk is fetched, proved and walked over.

    The errors are those of `download`.
    """
    fetcher = _Fetcher(store, chunks[:1], codec, name, dict(ciphers), TransferMemory(), len(chunks))
    fetcher.refuse_missing_keys()
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
    """Find the chunk in which an interrupted receive goes on. The first chunk and about one other are fetched.

    NotResumableError if the point is not found. The other errors are those of `download`.
    """
    fetcher = _Fetcher(store, chunks, codec, name, dict(ciphers), TransferMemory(), len(chunks))
    fetcher.refuse_missing_keys()
    first = bytes(fetcher.fetch(1).plain)
    stream = ResumedStream(first[: RECORD_BYTES + parse_begin(first).payload_size], point, expected)
    ends = list(itertools.accumulate(chunk.plain_size for chunk in chunks))
    # The number is not exact, and never too small by more than the first record.
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
    """Yield what is to be written for a slice. DamagedError names the chunk with the first record not accepted."""
    try:
        yield from passage.feed(plain, last=last)
    except DamagedError as error:
        raise DamagedError(f"{name}: {error.message}", hint=error.hint) from error


@dataclass(frozen=True)
class _Fetched:
    """A slice of the stream and its slot. The slice may lie in the slot: reuse the slot after the slice is written."""

    plain: Body
    slot: memoryview


@dataclass(frozen=True)
class _Fetcher:
    """The state that the workers share. `length` is the number of chunks of the stream."""

    store: ChunkSource
    chunks: Sequence[Chunk]
    codec: Codec
    name: Callable[[int], str]
    keys: Mapping[str, ChunkCipher]
    memory: TransferMemory
    length: int
    in_flight: InFlight | None = None
    workspace: Workspace = field(default_factory=Workspace)

    def refuse_missing_keys(self) -> None:
        """ConfigError if a data key is missing."""
        missing = {chunk.key_id for chunk in self.chunks} - {None} - set(self.keys)
        if missing:
            raise ConfigError(
                f"{self.name(1)} and others are encrypted with key {', '.join(sorted(map(str, missing)))}, which is not"
                " available",
                hint="set identity_file to an age identity that the backup is encrypted to",
            )

    def fetch(self, index: int) -> _Fetched:
        """Return the slice. A damaged chunk is read a second time: it may have been damaged in transfer."""
        chunk = self.chunks[index - 1]
        cipher = self.keys[chunk.key_id] if chunk.key_id is not None else None
        associated = self.store.associated(index, last=index == self.length)
        # An uncompressed slice is decrypted in the memory that its stored form was read to.
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
        except NotThere as error:
            raise DamagedError(
                f"{self.name(index)} is missing",
                hint="the object was removed after it was written; restore another backup, see `zsnapdb list`",
            ) from error
        finally:
            if slot is not stored:
                self.memory.stored.give(stored)
        # The second time every proof is checked, and the error says which one failed.
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

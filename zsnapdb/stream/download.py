"""Fetches, proves and decompresses chunks ahead of the reader, and writes them to a pipe in order.

Memory: `concurrency` slices, each plain or in its stored form, and for each worker that decompresses both forms. The
length of the stream does not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

from zsnapdb.base.errors import ConfigError, DamagedError, NotThere
from zsnapdb.stream.chunks import Body, Chunk, ChunkSource, Codec, Workspace, unseal, unseal_in_place
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.expected import ExpectedStream
from zsnapdb.stream.memory import TransferMemory
from zsnapdb.stream.records import Walker


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
) -> int:
    """Write the plain stream to `pipe`. Return the number of bytes.

    DamagedError names (by `name(index)`) the first chunk that is missing or altered, or with a record that our own
    sends never make; no byte of that chunk is written. `expected` is what the stream's BEGIN record must say. The last
    chunk is written only if it ends with the END record.
    `ciphers` has the ciphers by key id. ConfigError, before anything is fetched, if a chunk needs another one.
    `memory` is what several streams use one after the other.
    BrokenPipeError if the pipe's reader has ended. While a call of the store waits, the reader waits too; it sees no
    end of the stream.
    """
    fetcher = _Fetcher(store, chunks, codec, name, dict(ciphers or {}), memory or TransferMemory(), len(chunks))
    fetcher.refuse_missing_keys()
    total, written = 0, 0
    walker = Walker(expected)
    if not chunks:
        walker.finish()
    pending: deque[Future[_Fetched]] = deque()
    following = iter(range(1, len(chunks) + 1))
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="fetch")
    try:
        for index in following:
            pending.append(pool.submit(fetcher.fetch, index))
            if len(pending) == concurrency:
                break
        while pending:
            fetched = pending.popleft().result()
            rest = memoryview(fetched.plain)
            written += 1
            total += len(rest)
            _walk(walker, rest, name(written), last=written == len(chunks))
            while rest:
                rest = rest[pipe.write(rest) :]
            fetcher.memory.plain.give(fetched.slot)
            for index in following:
                pending.append(pool.submit(fetcher.fetch, index))
                break
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
    _walk(Walker(expected), plain, name(1), last=len(chunks) == 1)
    return bytes(plain[:count])


def _walk(walker: Walker, plain: memoryview, name: str, *, last: bool) -> None:
    """Walk over the records of a slice. DamagedError names the chunk with the first record that is not accepted."""
    try:
        walker.feed(plain)
        if last:
            walker.finish()
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
            size = self.store.read_chunk(index, stored)
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

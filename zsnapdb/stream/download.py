"""Fetches, proves and decompresses chunks ahead of the reader, and writes them to a pipe in order.

Memory: `concurrency` slots of one chunk, and for each worker the stored form of its chunk. The length of the stream
does not matter.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

from zsnapdb.errors import ConfigError, DamagedError, NotThere
from zsnapdb.stream.chunks import Body, Chunk, ChunkSource, Codec, Workspace, new_slot, unseal, unseal_in_place
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.expected import ExpectedStream
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
) -> int:
    """Write the plain stream to `pipe`. Return the number of bytes.

    DamagedError names (by `name(index)`) the first chunk that is missing or altered, or with a record that our own
    sends never make; no byte of that chunk is written. `expected` is what the stream's BEGIN record must say. The last
    chunk is written only if it ends with the END record.
    `ciphers` has the ciphers by key id. ConfigError, before anything is fetched, if a chunk needs another one.
    BrokenPipeError if the pipe's reader has ended. While a call of the store waits, the reader waits too; it sees no
    end of the stream.
    """
    fetcher = _Fetcher(store, chunks, codec, name, dict(ciphers or {}))
    fetcher.prepare(concurrency)
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
            fetcher.slots.put(fetched.slot)
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
    """The state that the workers share."""

    store: ChunkSource
    chunks: Sequence[Chunk]
    codec: Codec
    name: Callable[[int], str]
    keys: Mapping[str, ChunkCipher]
    workspace: Workspace = field(default_factory=Workspace)
    slots: queue.SimpleQueue[memoryview] = field(default_factory=queue.SimpleQueue)

    def prepare(self, count: int) -> None:
        """Make the slots. ConfigError if a data key is missing."""
        missing = {chunk.key_id for chunk in self.chunks} - {None} - set(self.keys)
        if missing:
            raise ConfigError(
                f"{self.name(1)} and others are encrypted with key {', '.join(sorted(map(str, missing)))}, which is not"
                " available",
                hint="set identity_file to an age identity that the backup is encrypted to",
            )
        # An uncompressed slice is decrypted in the memory that its stored form was read to.
        size = max(
            (max(chunk.plain_size, chunk.stored_size if self.codec is Codec.NONE else 0) for chunk in self.chunks),
            default=0,
        )
        for _ in range(count):
            self.slots.put(new_slot(size))

    def fetch(self, index: int) -> _Fetched:
        """Return the slice. A damaged chunk is read a second time: it may have been damaged in transfer."""
        chunk = self.chunks[index - 1]
        cipher = self.keys[chunk.key_id] if chunk.key_id is not None else None
        associated = self.store.associated(index, last=index == len(self.chunks))
        # There are as many slots as running fetches, so no fetch waits here forever.
        slot = self.slots.get()
        try:
            target = slot if self.codec is Codec.NONE else self.workspace.scratch(chunk.stored_size)
            size = self.store.read_chunk(index, target)
            try:
                if size <= len(target):
                    return _Fetched(
                        unseal_in_place(target[:size], chunk, self.codec, cipher, associated, self.workspace, slot),
                        slot,
                    )
            except DamagedError:
                pass
            body = self.store.get_chunk(index)
        except NotThere as error:
            raise DamagedError(
                f"{self.name(index)} is missing",
                hint="the object was removed after it was written; restore another backup, see `zsnapdb list`",
            ) from error
        # The second time every proof is checked, and the error says which one failed.
        return _Fetched(
            unseal(body, chunk, self.codec, cipher, associated, self.name(index), workspace=self.workspace, into=slot),
            slot,
        )

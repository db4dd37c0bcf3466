"""Fetches, proves and decompresses chunks ahead of the reader, and writes them to a pipe in order.

Memory: `concurrency` slots of one chunk, and for each worker the stored form of its chunk, whatever the stream's length.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from zsnapdb.errors import ConfigError, DamagedError, NotThere
from zsnapdb.stream.chunks import Body, Chunk, ChunkStore, Codec, Workspace, new_slot, unseal
from zsnapdb.stream.crypto import ChunkCipher


def download(
    store: ChunkStore,
    chunks: Sequence[Chunk],
    codec: Codec,
    pipe: BinaryIO,
    *,
    concurrency: int,
    name: Callable[[int], str],
    on_bytes: Callable[[int], None],
    ciphers: Mapping[str, ChunkCipher] | None = None,
) -> int:
    """Write the plain stream to `pipe`; return its bytes.

    DamagedError names (by `name(index)`) the first chunk that is missing or altered; nothing of it is written.
    `ciphers` has the data keys by key id; ConfigError before anything is fetched if one that is needed is not among them.
    A pipe whose reader has gone raises BrokenPipeError. While the store keeps a call waiting, so is the reader; it sees no end.
    """
    keys = dict(ciphers or {})
    missing = {chunk.key_id for chunk in chunks} - {None} - set(keys)
    if missing:
        raise ConfigError(
            f"{name(1)} and others are encrypted with key {', '.join(sorted(map(str, missing)))}, which is not at hand",
            hint="name the file of an age identity that the backup is encrypted to: identity_file",
        )
    workspace = Workspace()
    slots: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    for _ in range(concurrency):
        slots.put(new_slot(max((chunk.plain_size for chunk in chunks), default=0)))

    def fetch(index: int) -> tuple[Body, memoryview]:
        try:
            body = store.get_chunk(index)
        except NotThere as error:
            raise DamagedError(
                f"{name(index)} is missing", hint="the object was removed after it was written; restore another backup, see `zsnapdb list`"
            ) from error
        chunk = chunks[index - 1]
        cipher = keys[chunk.key_id] if chunk.key_id is not None else None
        associated = store.associated(index, last=index == len(chunks))
        # As many are under way as there are slots, so none waits here for one that waits for it.
        slot = slots.get()
        return unseal(body, chunk, codec, cipher, associated, name(index), workspace=workspace, into=slot), slot

    total = 0
    pending: deque[Future[tuple[Body, memoryview]]] = deque()
    following = iter(range(1, len(chunks) + 1))
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="fetch")
    try:
        for index in following:
            pending.append(pool.submit(fetch, index))
            if len(pending) == concurrency:
                break
        while pending:
            plain, slot = pending.popleft().result()
            rest = memoryview(plain)
            total += len(rest)
            while rest:
                rest = rest[pipe.write(rest) :]
            slots.put(slot)
            for index in following:
                pending.append(pool.submit(fetch, index))
                break
            on_bytes(total)
    except BaseException:
        store.give_up()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return total

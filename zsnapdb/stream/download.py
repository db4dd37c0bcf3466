"""Fetches, proves and decompresses chunks ahead of the reader, and writes them to a pipe in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from zsnapdb.errors import DamagedError, NotThere
from zsnapdb.stream.chunks import Chunk, ChunkStore, Codec, unseal


def download(
    store: ChunkStore,
    chunks: Sequence[Chunk],
    codec: Codec,
    pipe: BinaryIO,
    *,
    concurrency: int,
    name: Callable[[int], str],
    on_bytes: Callable[[int], None],
) -> int:
    """Write the plain stream to `pipe`; return its bytes. At most `concurrency + 1` chunks are in memory.

    DamagedError names (by `name(index)`) the first chunk that is missing or altered; nothing of it is written.
    A pipe whose reader has gone raises BrokenPipeError.
    """

    def fetch(index: int) -> bytes:
        try:
            body = store.get_chunk(index)
        except NotThere as error:
            raise DamagedError(
                f"{name(index)} is missing", hint="the object was removed after it was written; restore another backup, see `zsnapdb list`"
            ) from error
        return unseal(body, chunks[index - 1], codec, name(index))

    total = 0
    pending: deque[Future[bytes]] = deque()
    following = iter(range(1, len(chunks) + 1))
    with ThreadPoolExecutor(concurrency, thread_name_prefix="fetch") as pool:
        try:
            for index in following:
                pending.append(pool.submit(fetch, index))
                if len(pending) > concurrency:
                    break
            while pending:
                plain = memoryview(pending.popleft().result())
                for index in following:
                    pending.append(pool.submit(fetch, index))
                    break
                total += len(plain)
                while plain:
                    plain = plain[pipe.write(plain) :]
                on_bytes(total)
        finally:
            for future in pending:
                future.cancel()
    return total

"""Fetches, proves and decompresses chunks ahead of the reader, and writes them to a pipe in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from zsnapdb.errors import ConfigError, DamagedError, NotThere
from zsnapdb.stream.chunks import Body, Chunk, ChunkStore, Codec, unseal
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
    """Write the plain stream to `pipe`; return its bytes. At most `concurrency + 1` chunks are in memory.

    DamagedError names (by `name(index)`) the first chunk that is missing or altered; nothing of it is written.
    `ciphers` has the data keys by key id; ConfigError before anything is fetched if one that is needed is not among them.
    A pipe whose reader has gone raises BrokenPipeError.
    """
    keys = dict(ciphers or {})
    missing = {chunk.key_id for chunk in chunks} - {None} - set(keys)
    if missing:
        raise ConfigError(
            f"{name(1)} and others are encrypted with key {', '.join(sorted(map(str, missing)))}, which is not at hand",
            hint="name the file of an age identity that the backup is encrypted to: identity_file",
        )

    def fetch(index: int) -> Body:
        try:
            body = store.get_chunk(index)
        except NotThere as error:
            raise DamagedError(
                f"{name(index)} is missing", hint="the object was removed after it was written; restore another backup, see `zsnapdb list`"
            ) from error
        chunk = chunks[index - 1]
        cipher = keys[chunk.key_id] if chunk.key_id is not None else None
        return unseal(body, chunk, codec, cipher, store.associated(index, last=index == len(chunks)), name(index))

    total = 0
    pending: deque[Future[Body]] = deque()
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

"""The chunk size of a backup that would have too many chunks with the configured one. Pure.

A manifest has a row for each chunk, and no host reads a manifest of more than 128 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.errors import ConfigError

MOST_ROWS = 780_000
"""Chunks whose rows fit into 128 MiB: a row has at most 170 bytes."""
WANTED_ROWS = 650_000
"""Chunks of a backup with a chosen chunk size. Estimates of streams are some percent too low."""
WINDOW = 224 << 20
"""Plain bytes of all chunks that are in memory at once, with a chosen chunk size."""
_MIB = 1 << 20
_LARGEST = 1 << 30


def decide_chunk_size(configured: int, sizes: Sequence[int]) -> int:
    """Return the maximum chunk size for a backup with streams of these estimated sizes, in bytes.

    It is the configured size, or the smallest larger one with at most WANTED_ROWS chunks.
    """
    if sum(sizes) <= configured * WANTED_ROWS:
        return configured
    mebibytes = -(-sum(sizes) // (WANTED_ROWS * _MIB))
    return max(configured, min(_LARGEST, mebibytes * _MIB))


def decide_workers(configured: int, chunk_size: int, configured_size: int) -> int:
    """Return the number of parallel workers for chunks of this size in bytes.

    It is the configured number, unless the chunks are larger than the configured size. Then all chunks in memory have
    at most WINDOW bytes, or those of the configured size and number.
    """
    if chunk_size <= configured_size:
        return configured
    window = max(WINDOW, (configured + 1) * configured_size)
    return max(1, min(configured, window // chunk_size - 1))


def check_rows(stream: str, size: int | None, chunk_size: int) -> None:
    """Check that the manifest of a stream of this estimated size in bytes (None: unknown) can be read.

    Raises:
        ConfigError: the stream has too many chunks of this size
    """
    if size is not None and size // chunk_size > MOST_ROWS:
        raise ConfigError(
            f"the stream of {stream} has about {size} bytes: {size // chunk_size} chunks of {chunk_size} bytes, and a"
            f" manifest has at most {MOST_ROWS}",
            hint="raise stream.chunk_size of the repository; `zsnapdb backup --fresh` gives up a backup that was"
            " started with the old size",
        )

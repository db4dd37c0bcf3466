"""A backup of any size has a manifest that can be read, and needs no more memory than its window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import ConfigError
from zsnapdb.planning.backup.send_form import (
    MOST_ROWS,
    WANTED_ROWS,
    WINDOW,
    check_rows,
    decide_chunk_size,
    decide_first_chunk,
    decide_workers,
)
from zsnapdb.store.base import most_bytes
from zsnapdb.stream.buffer_pool import FIRST_CHUNK, chunk_size
from zsnapdb.stream.chunks import Chunk

MIB = 1 << 20
TB = 10**12
CONFIGURED = st.integers(MIB, 1 << 30)
SIZES = st.lists(st.integers(0, 200 * TB), max_size=4)


@given(SIZES)
def test_large_stream_has_fewer_chunks_and_at_least_32(sizes: list[int]) -> None:
    most = 32 * MIB
    first = decide_first_chunk(FIRST_CHUNK, most, sizes)
    assert FIRST_CHUNK <= first <= most
    largest = max(sizes, default=0)
    if first > FIRST_CHUNK:
        assert largest >= 32 * first
    if largest >= 32 * most:
        assert first == most


@pytest.mark.parametrize(("mebibytes", "first"), [(0, 8), (511, 8), (512, 16), (1023, 16), (1024, 32), (10**6, 32)])
def test_first_chunk_grows_with_the_stream(mebibytes: int, first: int) -> None:
    assert decide_first_chunk(8 * MIB, 32 * MIB, [mebibytes * MIB, 0]) == first * MIB


def rows(size: int, most: int) -> int:
    """Return the number of chunks of a stream: the first ones are small."""
    count = done = 0
    while done < size and chunk_size(count + 1, min(FIRST_CHUNK, most), most) < most:
        done, count = done + chunk_size(count + 1, min(FIRST_CHUNK, most), most), count + 1
    return count + -(-max(0, size - done) // most)


@given(CONFIGURED, SIZES)
def test_chosen_chunk_size_keeps_the_manifest_readable(configured: int, sizes: list[int]) -> None:
    chosen = decide_chunk_size(configured, sizes)
    assert configured <= chosen <= 1 << 30
    if sum(sizes) <= 600 * TB:
        # An estimate may be a tenth too low.
        assert sum(rows(size + size // 10, chosen) for size in sizes) <= MOST_ROWS
    if sum(sizes) // configured < WANTED_ROWS:
        assert chosen == configured


@given(st.integers(1, 64), CONFIGURED, SIZES)
def test_chosen_workers_stay_within_the_window(workers: int, configured: int, sizes: list[int]) -> None:
    chosen = decide_chunk_size(configured, sizes)
    fitting = decide_workers(workers, chosen, configured)
    assert 1 <= fitting <= workers
    if chosen == configured:
        assert fitting == workers
    assert (fitting + 1) * chosen <= max(WINDOW, (workers + 1) * configured, 2 * chosen)


@pytest.mark.parametrize(("terabytes", "mebibytes", "workers"), [(2, 32, 3), (20, 32, 3), (50, 74, 2), (200, 294, 1)])
def test_large_server_has_larger_chunks_and_fewer_workers(terabytes: int, mebibytes: int, workers: int) -> None:
    chosen = decide_chunk_size(32 * MIB, [terabytes * TB])
    assert (chosen, decide_workers(3, chosen, 32 * MIB)) == (mebibytes * MIB, workers)


def test_stream_with_too_many_chunks_is_refused() -> None:
    check_rows("tank/data@s", None, MIB)
    check_rows("tank/data@s", MOST_ROWS * MIB, MIB)
    with pytest.raises(ConfigError, match="tank/data@s has about"):
        check_rows("tank/data@s", (MOST_ROWS + 1) * MIB, MIB)


def test_rows_of_a_whole_manifest_fit_into_a_document() -> None:
    """The longest row is that of a large incompressible chunk with a key."""
    row = Chunk((1 << 30) + 1, "0" * 64, (1 << 30) + 1, "0" * 64, "99")
    text = f'[{row[0]},"{row[1]}",{row[2]},"{row[3]}","{row[4]}"],'
    assert len(text) * MOST_ROWS <= most_bytes("main/manifests/x.json")

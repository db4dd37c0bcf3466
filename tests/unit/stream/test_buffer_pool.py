"""The memory of transfers: few slots, used often."""

from __future__ import annotations

import io
import mmap

import pytest

from tests.unit.stream.test_stream import MemoryChunks
from tests.unit.support.streams import stream_of
from zsnapdb.stream.buffer_pool import SlotPool, TransferMemory
from zsnapdb.stream.chunks import Codec, room_for
from zsnapdb.stream.download import download
from zsnapdb.stream.upload import UploadSettings, upload

CHUNK = 4096


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all slots that were made."""
    sizes: list[int] = []
    new = mmap.mmap

    def counted(file: int, size: int) -> mmap.mmap:
        sizes.append(size)
        return new(file, size)

    monkeypatch.setattr("zsnapdb.stream.buffer_pool.mmap.mmap", counted)
    return sizes


def test_the_slot_that_was_used_last_is_used_next() -> None:
    pool = SlotPool()
    first, second = pool.take(10), pool.take(10)
    pool.give(second)
    pool.give(first)
    assert pool.take(5) is first
    assert pool.take(10) is second


def test_a_slot_is_as_large_as_the_largest_that_was_needed(made: list[int]) -> None:
    pool = SlotPool()
    pool.give(pool.take(10))
    pool.give(pool.take(20))
    with pool.lent(1) as slot:
        assert len(slot) == 20
    other = pool.take(1), pool.take(1)
    assert (made, [len(slot) for slot in other]) == ([10, 20, 20], [20, 20])


def test_a_slot_that_is_filled_at_once_is_empty_and_can_be_written() -> None:
    slot = SlotPool().take(3 * CHUNK, filled=2 * CHUNK + 1)
    assert bytes(slot) == bytes(3 * CHUNK)
    slot[:] = b"x" * (3 * CHUNK)


def test_cleared_memory_is_not_used_again(made: list[int]) -> None:
    transfer = TransferMemory()
    transfer.plain.give(transfer.plain.take(10))
    transfer.stored.give(transfer.stored.take(10))
    transfer.clear()
    transfer.plain.take(10)
    transfer.stored.take(10)
    assert made == [10] * 4


@pytest.mark.parametrize("codec", list(Codec))
def test_the_volumes_of_a_run_share_their_memory_and_a_slow_reader_makes_no_more_of_it(
    codec: Codec, made: list[int]
) -> None:
    workers, data, stored = 2, stream_of(CHUNK * 40), []
    shared = TransferMemory()
    settings = UploadSettings(CHUNK, codec, 1, workers)
    for _ in range(3):
        chunks = MemoryChunks()
        done = upload(io.BytesIO(data), chunks, settings, lambda size: None, memory=shared)
        stored.append((chunks, done.chunks))
    # One slice more than workers is in memory, and each worker that compresses has the stored form too.
    assert len(made) <= workers + 1 + (workers if codec is Codec.ZSTD else 0)
    assert set(made) == {room_for(CHUNK)}
    made.clear()
    shared = TransferMemory()
    for chunks, parts in stored:
        out = io.BytesIO()
        download(chunks, parts, codec, out, concurrency=workers, name=str, on_bytes=lambda size: None, memory=shared)
        assert out.getvalue() == data
    # The last chunk is smaller here, so a slot of its size may come first.
    assert len(made) <= workers * (2 if codec is Codec.ZSTD else 1) + 1

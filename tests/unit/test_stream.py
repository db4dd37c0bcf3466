"""Streams survive the way to a store and back byte for byte, or an error names what is wrong."""

from __future__ import annotations

import io
import os
import random
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsnapdb.errors import DamagedError, NotThere, RepositoryError
from zsnapdb.stream.chunks import Chunk, Codec, seal, unseal
from zsnapdb.stream.download import download
from zsnapdb.stream.records import RECORD_BYTES, check_end, parse_begin
from zsnapdb.stream.upload import Uploaded, UploadSettings, upload

GUID = 0x1234567890ABCDEF


def record(kind: int, order: str = "<", guid: int = GUID, base: int = 7) -> bytes:
    """A BEGIN or END record as OpenZFS writes it, its payload reduced to what is read."""
    if kind == 0:
        body = struct.pack(order + "IIQQQIIQQ", 0, 0, 0x2F5BACBAC, 0x4 << 2 | 1, 0, 2, 0, guid, base)
    else:
        body = struct.pack(order + "IIQQQQQ", 5, 0, 1, 2, 3, 4, guid)
    return body.ljust(RECORD_BYTES, b"\0")


def stream_of(size: int, seed: int = 0) -> bytes:
    return record(0) + random.Random(seed).randbytes(size) + record(5)


class MemoryChunks:
    """Chunks in memory; the fault tests change them."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.fail_at: int | None = None

    def put_chunk(self, index: int, body: bytes | memoryview) -> None:
        if index == self.fail_at:
            raise RepositoryError("the store is gone")
        self.bodies[index] = bytes(body)

    def get_chunk(self, index: int) -> bytes:
        if index not in self.bodies:
            raise NotThere("no such chunk")
        return self.bodies[index]


def store(data: bytes, codec: Codec = Codec.ZSTD, chunk_size: int = 4096) -> tuple[MemoryChunks, Uploaded]:
    chunks = MemoryChunks()
    settings = UploadSettings(chunk_size, codec, 1, 3)
    return chunks, upload(io.BytesIO(data), chunks, settings, lambda done: None)


def fetch(chunks: MemoryChunks, stored: Uploaded, codec: Codec = Codec.ZSTD) -> bytes:
    out = io.BytesIO()
    download(chunks, stored.chunks, codec, out, concurrency=3, name=lambda n: f"chunk {n}", on_bytes=lambda done: None)
    return out.getvalue()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 20_000), st.sampled_from(list(Codec)), st.sampled_from([512, 4096, 5000]))
def test_what_was_sent_comes_back_byte_for_byte(size: int, codec: Codec, chunk_size: int) -> None:
    data = stream_of(size, seed=size)
    chunks, stored = store(data, codec, chunk_size)
    assert fetch(chunks, stored, codec) == data
    assert stored.plain_size == len(data)
    assert all(chunk.plain_size == chunk_size for chunk in stored.chunks[:-1])


def test_lineage_is_read_from_the_stream_itself() -> None:
    _, stored = store(stream_of(1000))
    assert (stored.begin.to_guid, stored.begin.from_guid, stored.begin.features) == (GUID, 7, 4)


def test_streams_of_big_endian_hosts_are_understood() -> None:
    first, last = record(0, ">"), record(5, ">")
    assert parse_begin(first).to_guid == GUID
    check_end(last, first)


@pytest.mark.parametrize("cut", [1, 100, RECORD_BYTES, RECORD_BYTES + 1, 5000])
def test_a_stream_cut_anywhere_before_its_end_is_never_complete(cut: int) -> None:
    with pytest.raises(DamagedError, match="END"):
        store(stream_of(9000)[:-cut])


def test_an_end_record_of_another_stream_is_no_end() -> None:
    with pytest.raises(DamagedError, match="END"):
        store(record(0) + bytes(5000) + record(5, guid=GUID + 1))


@pytest.mark.parametrize("data", [b"", b"zfs: cannot send", bytes(5000)])
def test_something_else_than_a_stream_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedError, match="BEGIN"):
        store(data)


def test_a_store_that_fails_ends_the_upload_with_its_own_error() -> None:
    chunks = MemoryChunks()
    chunks.fail_at = 3
    with pytest.raises(RepositoryError, match="the store is gone"):
        upload(io.BytesIO(stream_of(200_000)), chunks, UploadSettings(4096, Codec.NONE, 0, 2), lambda done: None)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_flipped_bit_in_any_chunk_stops_the_restore_with_its_name(codec: Codec) -> None:
    chunks, stored = store(stream_of(20_000), codec)
    body = bytearray(chunks.bodies[3])
    body[len(body) // 2] ^= 1
    chunks.bodies[3] = bytes(body)
    with pytest.raises(DamagedError, match="chunk 3"):
        fetch(chunks, stored, codec)


def test_a_missing_chunk_stops_the_restore_with_its_name() -> None:
    chunks, stored = store(stream_of(20_000))
    del chunks.bodies[2]
    with pytest.raises(DamagedError, match="chunk 2 is missing"):
        fetch(chunks, stored)


def test_two_chunks_swapped_stop_the_restore() -> None:
    chunks, stored = store(stream_of(20_000))
    chunks.bodies[1], chunks.bodies[2] = chunks.bodies[2], chunks.bodies[1]
    with pytest.raises(DamagedError, match="chunk 1"):
        fetch(chunks, stored)


def test_nothing_of_a_damaged_chunk_reaches_the_reader() -> None:
    data = stream_of(20_000)
    chunks, stored = store(data, Codec.NONE)
    chunks.bodies[2] = bytes(4096)
    out = io.BytesIO()
    with pytest.raises(DamagedError):
        download(chunks, stored.chunks, Codec.NONE, out, concurrency=4, name=str, on_bytes=lambda done: None)
    assert out.getvalue() == data[:4096]


def test_a_frame_that_claims_more_than_the_manifest_is_refused() -> None:
    body, chunk = seal(memoryview(bytes(10_000)), Codec.ZSTD, 1)
    wrong = Chunk(100, chunk.plain_sha256, chunk.stored_size, chunk.stored_sha256)
    with pytest.raises(DamagedError):
        unseal(bytes(body), wrong, Codec.ZSTD, "chunk 1")


def test_a_reader_that_went_away_is_a_broken_pipe() -> None:
    chunks, stored = store(stream_of(3_000_000), Codec.NONE, 65536)
    read_end, write_end = os.pipe()
    closer = threading.Timer(0.05, lambda: os.close(read_end))
    closer.start()
    with open(write_end, "wb", buffering=0) as pipe, pytest.raises(BrokenPipeError):
        download(chunks, stored.chunks, Codec.NONE, pipe, concurrency=2, name=str, on_bytes=lambda done: None)
    closer.join()

"""Streams survive the way to a store and back byte for byte, or an error names what is wrong."""

from __future__ import annotations

import hashlib
import io
import os
import threading

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.support.streams import GUID, NAME, RECORD_BYTES, begin, end, record, stream_of, write
from zsnapdb.base.errors import ConfigError, DamagedError, NotFound, RepositoryError
from zsnapdb.stream.buffer_pool import InFlight, chunk_size
from zsnapdb.stream.chunks import Body, Chunk, Codec, Workspace, seal, unseal
from zsnapdb.stream.crypto import ChunkCipher
from zsnapdb.stream.download import download
from zsnapdb.stream.send_stream_checks import DatasetKind, ExpectedStream
from zsnapdb.stream.upload import KnownChunk, Uploaded, UploadSettings, upload


class MemoryChunks:
    """Chunks in memory; the fault tests change them."""

    def __init__(self, place: bytes = b"here") -> None:
        self.bodies: dict[int, bytes] = {}
        self.put: list[int] = []
        self.fail_at: int | None = None
        self.place = place

    def associated(self, index: int, *, last: bool) -> bytes:
        return b"%s %d %d" % (self.place, index, last)

    def give_up(self) -> None:
        self.given_up = True

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        assert hashlib.sha256(body).hexdigest() == sha256
        if index == self.fail_at:
            raise RepositoryError("the store is gone")
        self.put.append(index)
        self.bodies[index] = bytes(body)

    def get_chunk(self, index: int) -> bytes:
        if index not in self.bodies:
            raise NotFound("no such chunk")
        return self.bodies[index]

    def read_chunk(self, index: int, target: memoryview) -> int:
        body = self.get_chunk(index)
        taken = min(len(body), len(target))
        target[:taken] = body[:taken]
        return len(body)


KEY = ChunkCipher(bytes(range(32)), "1")


def store(
    data: bytes, codec: Codec = Codec.ZSTD, chunk_size: int = 4096, cipher: ChunkCipher | None = None
) -> tuple[MemoryChunks, Uploaded]:
    chunks = MemoryChunks()
    settings = UploadSettings(chunk_size, codec, 1, 3)
    return chunks, upload(io.BytesIO(data), chunks, settings, lambda done: None, cipher=cipher)


def fetch(
    chunks: MemoryChunks, stored: Uploaded | tuple[Chunk, ...], codec: Codec = Codec.ZSTD, *ciphers: ChunkCipher
) -> bytes:
    out = io.BytesIO()
    rows = stored.chunks if isinstance(stored, Uploaded) else stored
    keys = {cipher.key_id: cipher for cipher in ciphers}
    download(
        chunks, rows, codec, out, concurrency=3, name=lambda n: f"chunk {n}", on_bytes=lambda done: None, ciphers=keys
    )
    return out.getvalue()


@settings(max_examples=40)
@given(
    st.integers(0, 20_000),
    st.sampled_from(list(Codec)),
    st.sampled_from([512, 4096, 5000]),
    st.sampled_from([None, KEY]),
)
def test_what_was_sent_comes_back_byte_for_byte(
    size: int, codec: Codec, chunk_size: int, cipher: ChunkCipher | None
) -> None:
    data = stream_of(size, seed=size)
    chunks, stored = store(data, codec, chunk_size, cipher)
    assert fetch(chunks, stored, codec, KEY) == data
    assert stored.plain_size == len(data)
    assert {index: len(body) for index, body in chunks.bodies.items()} == {
        n: c.stored_size for n, c in enumerate(stored.chunks, 1)
    }
    assert all(chunk.plain_size == chunk_size for chunk in stored.chunks[:-1])


def test_lineage_is_read_from_the_stream_itself() -> None:
    _, stored = store(stream_of(1000))
    assert (stored.begin.to_guid, stored.begin.from_guid, stored.begin.features) == (GUID, 7, 4)


@pytest.mark.parametrize("cut", [1, 100, RECORD_BYTES, RECORD_BYTES + 1, 5000, 9000 + RECORD_BYTES])
def test_a_stream_cut_anywhere_before_its_end_is_never_complete(cut: int) -> None:
    with pytest.raises(DamagedError, match="END"):
        store(stream_of(9000)[:-cut])


def test_an_end_record_of_another_stream_is_no_end() -> None:
    with pytest.raises(DamagedError, match="END"):
        store(begin() + write(bytes(5000)) + end(guid=GUID + 1))


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


def cut_into_chunks(data: bytes) -> tuple[MemoryChunks, tuple[Chunk, ...]]:
    """Store the stream as somebody who can write a valid manifest does: every hash is right."""
    chunks, rows = MemoryChunks(), []
    slices = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    for index, part in enumerate(slices, 1):
        body, chunk = seal(memoryview(part), Codec.NONE, 0, None, b"")
        chunks.bodies[index] = bytes(body)
        rows.append(chunk)
    return chunks, tuple(rows)


LATE = begin() + write(bytes(6000)) + record(6, object=("Q", 8, 1)) + write(bytes(9000)) + end()
EXPECTED = ExpectedStream(NAME, DatasetKind.FILESYSTEM, GUID, 7, 4)


@pytest.mark.parametrize(
    ("data", "received", "words"),
    [
        (stream_of(9000), 9000 + 3 * RECORD_BYTES, ""),
        (begin(version=0x4 << 2 | 2, payload=bytes(500)) + end() + stream_of(9000) + end(), 0, "chunk 1: .*package"),
        (begin(payload=bytes(500)) + write(bytes(9000)) + end(), 0, "chunk 1: .*payload of 500 bytes"),
        (begin(guid=GUID + 1) + write(bytes(9000), guid=GUID + 1) + end(guid=GUID + 1), 0, "chunk 1: .*leads from"),
        (begin(name="tank/mysql/data@other") + write(bytes(9000)) + end(), 0, "chunk 1: .*is of snapshot"),
        (LATE, 4096, "chunk 2: .*WRITE_BYREF at byte 6624"),
        (stream_of(9000) + stream_of(9000), 8192, "chunk 3: .*continues after its END"),
        (stream_of(9000)[:-RECORD_BYTES], 8192, "chunk 3: .*stops before its END"),
        (b"", 0, "BEGIN"),
    ],
    ids=["ours", "package", "properties", "lineage", "name", "late", "more", "no end", "empty"],
)
def test_nothing_of_a_chunk_with_a_record_that_is_not_accepted_reaches_the_reader(
    data: bytes, received: int, words: str
) -> None:
    chunks, rows = cut_into_chunks(data)
    out = io.BytesIO()

    def receive() -> None:
        download(
            chunks,
            rows,
            Codec.NONE,
            out,
            concurrency=2,
            name=lambda n: f"chunk {n}",
            on_bytes=lambda done: None,
            expected=EXPECTED,
        )

    if words:
        with pytest.raises(DamagedError, match=words):
            receive()
    else:
        receive()
    assert out.getvalue() == data[:received]


@pytest.mark.parametrize("data", [LATE, begin(payload=bytes(8)) + end()])
def test_a_stream_that_no_restore_accepts_is_no_backup(data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"not accepted|payload"):
        store(data)


def test_a_frame_that_needs_more_memory_than_any_of_ours_is_refused() -> None:
    form = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    frame = zstandard.ZstdCompressor(compression_params=form).compressobj()
    whole = frame.compress(b"x" * 1000) + frame.flush()
    with pytest.raises(zstandard.ZstdError):
        Workspace().decompress(whole, memoryview(bytearray(1000)))


def test_a_frame_that_claims_more_than_the_manifest_is_refused() -> None:
    body, chunk = seal(memoryview(bytes(10_000)), Codec.ZSTD, 1, None, b"")
    wrong = Chunk(100, chunk.plain_hash, chunk.stored_size, chunk.stored_sha256, None)
    with pytest.raises(DamagedError):
        unseal(bytes(body), wrong, Codec.ZSTD, None, b"", "chunk 1")


def resealed(chunks: MemoryChunks, stored: Uploaded, index: int, body: bytes) -> tuple[Chunk, ...]:
    """The chunk rows of somebody who can write everything but has no key: the hashes fit the body that was put."""
    chunks.bodies[index] = body
    row = stored.chunks[index - 1]
    forged = Chunk(row.plain_size, row.plain_hash, len(body), hashlib.sha256(body).hexdigest(), row.key_id)
    return (*stored.chunks[: index - 1], forged, *stored.chunks[index:])


def test_a_key_opens_a_chunk_only_where_it_belongs() -> None:
    chunks, stored = store(stream_of(20_000), Codec.NONE, cipher=KEY)
    with pytest.raises(DamagedError, match="chunk 2: the chunk does not decrypt"):
        fetch(chunks, resealed(chunks, stored, 2, chunks.bodies[1]), Codec.NONE, KEY)
    chunks, stored = store(stream_of(20_000), Codec.NONE, cipher=KEY)
    chunks.place = b"elsewhere"
    with pytest.raises(DamagedError, match="chunk 1: the chunk does not decrypt"):
        fetch(chunks, stored, Codec.NONE, KEY)


def test_an_encrypted_stream_cut_after_a_chunk_does_not_open_its_new_end() -> None:
    chunks, stored = store(stream_of(20_000), Codec.NONE, cipher=KEY)
    with pytest.raises(DamagedError, match="chunk 3: the chunk does not decrypt"):
        fetch(chunks, stored.chunks[:3], Codec.NONE, KEY)


def test_another_key_a_flipped_bit_or_too_few_bytes_do_not_open() -> None:
    chunks, stored = store(stream_of(20_000), cipher=KEY)
    with pytest.raises(DamagedError, match="chunk 1: the chunk does not decrypt"):
        fetch(chunks, stored, Codec.ZSTD, ChunkCipher(bytes(32), "1"))
    body = bytearray(chunks.bodies[1])
    body[20] ^= 1
    for wrong in (bytes(body), b"short"):
        with pytest.raises(DamagedError, match="chunk 1"):
            fetch(chunks, resealed(chunks, stored, 1, wrong), Codec.ZSTD, KEY)


def test_what_is_encrypted_shows_nothing_and_is_never_the_same_twice() -> None:
    data = begin() + write(bytes(3000)) + end()
    first, second = (store(data, Codec.NONE, cipher=KEY)[0].bodies[1] for _ in range(2))
    assert bytes(100) not in first
    assert first[:12] != second[:12]
    assert first[12:] != second[12:]


# The oldest library that is allowed has only one of them.
@pytest.mark.parametrize("in_place", sorted({False, hasattr(AESGCM, "encrypt_into")}))
def test_both_ways_into_the_cryptographic_library_are_the_same(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    body = KEY.encrypt(b"data", b"here")
    monkeypatch.setattr(KEY, "_is_in_place", in_place)
    assert KEY.decrypt(body, b"here") == b"data"
    assert AESGCM(bytes(range(32))).decrypt(bytes(body[:12]), bytes(body[12:]), b"here") == b"data"
    assert KEY.decrypt(KEY.encrypt(b"data", b"here"), b"here") == b"data"


def test_a_missing_key_is_named_before_anything_is_fetched() -> None:
    chunks, stored = store(stream_of(20_000), cipher=KEY)
    chunks.bodies.clear()
    with pytest.raises(ConfigError, match="encrypted with key 1"):
        fetch(chunks, stored)


def test_a_stream_that_ends_with_a_full_chunk_marks_that_one_as_last() -> None:
    rows: dict[int, KnownChunk] = {}
    data = stream_of(4096 * 3 - 3 * RECORD_BYTES)
    upload(
        io.BytesIO(data),
        MemoryChunks(),
        UploadSettings(4096, Codec.NONE, 0, 2),
        lambda done: None,
        on_stored=rows.__setitem__,
    )
    assert [rows[n].last for n in sorted(rows)] == [False, False, True]


def test_only_what_an_earlier_run_did_not_store_is_stored() -> None:
    data = stream_of(40_000)
    rows: dict[int, KnownChunk] = {}
    settings = UploadSettings(4096, Codec.ZSTD, 1, 1)
    chunks = MemoryChunks()
    chunks.fail_at = 5
    with pytest.raises(RepositoryError):
        upload(io.BytesIO(data), chunks, settings, lambda done: None, cipher=KEY, on_stored=rows.__setitem__)
    earlier = set(rows)
    # How many are on their way beside the one that fails depends on how fast the store is.
    assert earlier
    assert 5 not in earlier
    chunks.fail_at, chunks.put = None, []
    again = ChunkCipher(bytes(32), "2")
    stored = upload(
        io.BytesIO(data), chunks, settings, lambda done: None, cipher=again, known=rows, on_stored=rows.__setitem__
    )
    assert set(chunks.put) == set(range(1, len(stored.chunks) + 1)) - earlier
    keys = ["1" if index in earlier else "2" for index in range(1, len(stored.chunks) + 1)]
    assert [chunk.key_id for chunk in stored.chunks] == keys
    assert fetch(chunks, stored, Codec.ZSTD, KEY, again) == data


def test_a_slice_that_changed_or_is_not_the_last_any_more_is_stored_again() -> None:
    rows: dict[int, KnownChunk] = {}
    settings = UploadSettings(4096, Codec.NONE, 0, 1)
    chunks = MemoryChunks()
    short = stream_of(4096 - 3 * RECORD_BYTES)
    upload(io.BytesIO(short), chunks, settings, lambda done: None, on_stored=rows.__setitem__)
    longer = short + bytes(100)
    chunks.put = []
    with pytest.raises(DamagedError):
        upload(io.BytesIO(longer), chunks, settings, lambda done: None, known=rows)
    assert 1 in chunks.put
    other = stream_of(4096 - 3 * RECORD_BYTES, seed=1)
    chunks.put = []
    stored = upload(io.BytesIO(other), chunks, settings, lambda done: None, known=rows)
    assert chunks.put == [1]
    assert fetch(chunks, stored, Codec.NONE) == other


def test_an_upload_that_cannot_be_noted_fails() -> None:
    def full(index: int, stored: KnownChunk) -> None:
        raise RepositoryError("the journal's disk is full")

    with pytest.raises(RepositoryError, match="disk is full"):
        upload(
            io.BytesIO(stream_of(9000)),
            MemoryChunks(),
            UploadSettings(4096, Codec.NONE, 0, 2),
            lambda done: None,
            on_stored=full,
        )


def test_a_reader_that_went_away_is_a_broken_pipe() -> None:
    chunks, stored = store(stream_of(3_000_000), Codec.NONE, 65536)
    read_end, write_end = os.pipe()
    closer = threading.Timer(0.05, lambda: os.close(read_end))
    closer.start()
    with open(write_end, "wb", buffering=0) as pipe, pytest.raises(BrokenPipeError):
        download(chunks, stored.chunks, Codec.NONE, pipe, concurrency=2, name=str, on_bytes=lambda done: None)
    closer.join()


MIB = 1 << 20


class SlowLine(MemoryChunks):
    """A store whose transfers are slow until as many as it wants were under way at once."""

    def __init__(self, wants: int) -> None:
        super().__init__()
        self.wants, self.under_way, self.most = wants, 0, 0
        self.changed = threading.Condition()

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        with self.changed:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.changed.notify_all()
            # A transfer of this size that takes longer is a slow one.
            self.changed.wait_for(lambda: self.most >= self.wants, timeout=0.05)
            self.under_way -= 1
        super().put_chunk(index, body, sha256)


def test_where_the_line_is_slow_more_chunks_are_on_their_way_than_workers_compress() -> None:
    data = stream_of(40 * MIB, seed=3)
    chunks = SlowLine(wants=9)
    stored = upload(io.BytesIO(data), chunks, UploadSettings(MIB, Codec.NONE, 1, 3), lambda done: None)
    assert 9 <= chunks.most <= 16
    assert fetch(chunks, stored, Codec.NONE) == data


@given(
    st.lists(st.integers(1, 256 * MIB), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(0, 1),
    st.lists(st.tuples(st.integers(0, 64 * MIB), st.floats(0.001, 9))),
)
def test_what_is_on_its_way_at_once_stays_within_its_memory(
    sizes: list[int], concurrency: int, waiting: int, transfers: list[tuple[int, float]]
) -> None:
    in_flight = InFlight(concurrency, waiting=waiting, most_bytes=128 * MIB, widens=True)
    for size, seconds in transfers:
        in_flight.transferred(size, seconds)
    slow = sum(1 for size, seconds in transfers if size >= MIB and size / seconds < 60e6)
    assert in_flight.workers == min(concurrency + slow, max(16, concurrency))
    taken: list[int] = []
    for size in sizes:
        if in_flight.try_take(size):
            taken.append(size)
        assert len(taken) >= min(concurrency + waiting, sizes.index(size) + 1)
        assert len(taken) <= in_flight.workers + waiting
        assert len(taken) <= concurrency + waiting or sum(taken) <= 128 * MIB
    for size in taken:
        in_flight.give(size)
    assert in_flight.try_take(512 * MIB)
    limited = InFlight(concurrency, waiting=waiting, most_bytes=128 * MIB, widens=False)
    limited.transferred(64 * MIB, 9.0)
    assert limited.workers == concurrency


@given(st.integers(1, 1 << 22), st.integers(0, 30), st.integers(1, 1 << 30))
def test_chunks_grow_with_their_stream_and_no_further_than_they_may(index: int, shift: int, most: int) -> None:
    first = min(1 << shift, most)
    assert first <= chunk_size(index, first, most) <= chunk_size(index + 1, first, most) <= most
    assert chunk_size(index + 1, first, most) <= 2 * chunk_size(index, first, most)
    assert chunk_size(64, first, most) == first
    assert chunk_size(65, first, most) == min(2 * first, most)
    assert chunk_size(1 << 22, first, most) == most


@pytest.mark.parametrize("codec", list(Codec))
def test_a_stream_whose_chunks_grow_comes_back_as_it_was(codec: Codec) -> None:
    data, chunks = stream_of(1 << 20, seed=5), MemoryChunks()
    settings = UploadSettings(16384, codec, 1, 3, first_chunk=4096)
    stored = upload(io.BytesIO(data), chunks, settings, lambda done: None)
    sizes = [chunk.plain_size for chunk in stored.chunks]
    assert (sizes[:64], sizes[64:128]) == ([4096] * 64, [8192] * 64)
    assert set(sizes[128:-1]) == {16384}
    assert fetch(chunks, stored, codec) == data


def test_after_a_chunk_that_failed_none_that_waits_for_its_turn_is_stored() -> None:
    chunks = MemoryChunks()
    chunks.fail_at = 1
    with pytest.raises(RepositoryError, match="the store is gone"):
        upload(io.BytesIO(stream_of(20_000)), chunks, UploadSettings(4096, Codec.NONE, 0, 1), lambda done: None)
    assert chunks.put == []

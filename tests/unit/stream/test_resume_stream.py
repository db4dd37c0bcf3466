"""The rest of a stored stream is a stream that `zfs receive` proves as it would have proved the whole one.

The lab receives such streams: tests/faults/test_interrupted_restore.py. The tokens here are of OpenZFS 2.3.
"""

from __future__ import annotations

import io
import random
import struct
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.unit.stream.test_stream import MemoryChunks
from tests.unit.support.streams import GUID, NAME, RECORD_BYTES, begin, record
from zsnapdb.base.errors import DamagedError
from zsnapdb.stream import resume_stream
from zsnapdb.stream.chunks import Chunk, Codec, seal
from zsnapdb.stream.download import download, resume_at
from zsnapdb.stream.resume_stream import NotResumableError, ResumedStream, ResumePoint, parse_token, resuming_begin
from zsnapdb.stream.send_stream_checks import DatasetKind, ExpectedStream, payload_size

EXPECTED = ExpectedStream(NAME, DatasetKind.FILESYSTEM, GUID, 7)
SUM = struct.Struct("<4Q")
FULL = (
    "1-d23cd1d99-d8-789c636064000310a500c4ec50360710e72765a52697303008439460caa7a515a702e5191a98e1f26c48f2499525a9c54"
    "07a83732756fd25f9e9a599290c0c26a7e49ecd5da454a68124cf0996cf4bcc4d05d28979d9fac545c90ef979a93073b81910ee4ececf2d"
    "284a2d2ececf66800300a8241c34"
)


def fletcher(data: bytes, sums: tuple[int, ...] = (0, 0, 0, 0)) -> tuple[int, ...]:
    """Compute fletcher-4 word by word, as zfs_fletcher.c says it."""
    a, b, c, d = sums
    for (word,) in struct.iter_unpack("<I", data):
        a += word
        b += a
        c += b
        d += c
    return tuple(value % (1 << 64) for value in (a, b, c, d))


def parts_of(stream: bytes) -> list[bytes]:
    """Return the records of a stream with their payloads, the BEGIN record first."""
    parts: list[bytes] = []
    at = 0
    while at < len(stream):
        head = stream[at : at + RECORD_BYTES]
        size = RECORD_BYTES + (struct.unpack_from("<I", head, 4)[0] if not parts else payload_size(head, "<"))
        parts.append(stream[at : at + size])
        at += size
    assert at == len(stream)
    return parts


def proved(stream: bytes) -> list[bytes]:
    """Return the records behind BEGIN without their checksums, all of which were compared, as the kernel does it."""
    first, *others = parts_of(stream)
    sums, bare = fletcher(first), []
    for part in others:
        if part[:4] == b"\5\0\0\0":
            assert SUM.unpack_from(part, 8) == sums
            assert SUM.unpack_from(part, 280) == fletcher(part[:280], sums)
            bare.append(part[:8] + part[40:280])
        else:
            sums = fletcher(part[:280], sums)
            assert SUM.unpack_from(part, 280) == sums, part[:4]
            sums = fletcher(part[280:], sums)
            bare.append(part[:280] + part[RECORD_BYTES:])
    return bare


def summed(parts: list[bytes]) -> bytes:
    """Return the stream of these records and an END record, with the checksums of `zfs send`."""
    done, sums = [begin()], fletcher(begin())
    for part in [*parts, b""]:
        made = part or struct.pack("<II4QQ", 5, 0, *sums, GUID).ljust(RECORD_BYTES, b"\0")
        own = SUM.pack(*fletcher(made[:280], sums))
        done.append(made[:280] + own + made[RECORD_BYTES:])
        sums = fletcher(done[-1], sums)
    return b"".join(done)


def object_(number: int) -> bytes:
    return record(1, bytes(range(168)), number=("Q", 8, number), bonus=("I", 28, 168))


def write(number: int, offset: int, payload: bytes) -> bytes:
    return record(
        3, payload, number=("Q", 8, number), offset=("Q", 24, offset), logical=("Q", 32, 1 << 14),
        compression=("B", 50, 15), compressed=("Q", 96, len(payload)),
    )  # fmt: skip


def freed(number: int, offset: int) -> bytes:
    return record(4, number=("Q", 8, number), offset=("Q", 16, offset))


def records(chance: random.Random) -> list[bytes]:
    """Return records as a sender makes them: an object, what is free behind its end, its blocks, its spill block."""
    parts = []
    for number in sorted(chance.sample(range(1, 300), chance.randint(1, 12))):
        parts += [object_(number), freed(number, 1 << 20)]
        parts += [
            write(number, at << 14, chance.randbytes(512 * chance.randint(1, 12))) for at in range(chance.randint(0, 6))
        ]
        if chance.random() < 0.2:
            parts.append(record(7, chance.randbytes(512), number=("Q", 8, number), size=("Q", 16, 512)))
        if chance.random() < 0.3:
            parts.append(record(2, first=("Q", 8, number + 1), count=("Q", 16, 5)))
    return parts


def places(parts: list[bytes]) -> dict[tuple[int, int], int]:
    """Return the index of the first record of each place that the kernel may name."""
    known: dict[tuple[int, int], int] = {}
    for index, part in enumerate(parts):
        kind, number, offset = part[0], *struct.unpack_from("<Q8xQ", part, 8)
        if kind in (1, 3):
            known.setdefault((number, 0 if kind == 1 else offset), index)
    return known


class Stored(MemoryChunks):
    """A stream in chunks of a size that no real one has, so that records are cut everywhere."""

    def __init__(self, stream: bytes, size: int, codec: Codec) -> None:
        super().__init__()
        self.codec, self.chunks = codec, list[Chunk]()
        for index, at in enumerate(range(0, len(stream), size), 1):
            body, chunk = seal(memoryview(stream[at : at + size]), codec, 1, None, b"")
            self.bodies[index] = bytes(body)
            self.chunks.append(chunk)

    def resumed(self, point: ResumePoint) -> tuple[bytes, int]:
        """Return what is written to `zfs receive`, and the first chunk that is fetched for it."""
        pipe, name = io.BytesIO(), "chunk {}".format
        found = resume_at(self, self.chunks, self.codec, point, name=name, ciphers={}, expected=EXPECTED)
        download(
            self,
            self.chunks,
            self.codec,
            pipe,
            concurrency=2,
            name=name,
            on_bytes=lambda _: None,
            expected=EXPECTED,
            resumption=found,
        )
        return pipe.getvalue(), found.first


@settings(phases=(Phase.generate,))
@given(st.integers(0, 1 << 32), st.integers(16_000, 40_000), st.sampled_from(list(Codec)), st.data())
def test_from_every_point_the_rest_is_a_stream_that_zfs_proves(
    seed: int, size: int, codec: Codec, data: st.DataObject
) -> None:
    parts = records(random.Random(seed))
    stream = summed(parts)
    assert proved(stream)
    (number, offset), index = data.draw(st.sampled_from(sorted(places(parts).items())))
    received = len(begin()) + sum(map(len, parts[: index + 1])) + data.draw(st.integers(0, 9000))
    store = Stored(stream, size, codec)
    rest, first = store.resumed(ResumePoint(number, offset, received, GUID, 7))
    assert proved(rest) == proved(stream)[index:]
    head = parts_of(rest)[0]
    assert resume_stream.read_nvlist(head[RECORD_BYTES:]) == {"resume_object": number, "resume_offset": offset}
    assert struct.unpack_from("<Q", head, 16)[0] == struct.unpack_from("<Q", stream, 16)[0] | 1 << 22
    assert (head[:4] + head[8:16] + head[24:RECORD_BYTES]) == stream[:4] + stream[8:16] + stream[24:RECORD_BYTES]
    # A chunk is at most skipped if records lie between it and the point.
    assert first == 1 or sum(chunk.plain_size for chunk in store.chunks[: first - 1]) < received


def test_what_is_damaged_in_the_stored_stream_zfs_still_finds_in_the_rest() -> None:
    parts = [object_(5), write(5, 0, b"a" * 512), write(5, 1 << 14, b"b" * 512), write(5, 2 << 14, b"c" * 512)]
    stream = bytearray(summed(parts))
    stream[stream.index(b"c" * 512) + 7] ^= 1
    rest, _ = Stored(bytes(stream), 1000, Codec.ZSTD).resumed(ResumePoint(5, 0, 900, GUID, 7))
    with pytest.raises(AssertionError):
        proved(rest)


def test_a_large_stream_is_not_fetched_from_its_beginning() -> None:
    chance = random.Random(1)
    parts = [object_(5), *(write(5, at << 14, chance.randbytes(4096)) for at in range(200))]
    store = Stored(summed(parts), 32 << 10, Codec.NONE)
    received = len(begin()) + sum(map(len, parts[:152]))
    rest, first = store.resumed(ResumePoint(5, 150 << 14, received, GUID, 7))
    assert (len(store.chunks), first) == (27, 21)
    assert len(proved(rest)) == 51


@pytest.mark.parametrize("key", [(5, 99 << 14), (4, 0), (77, 0)])
def test_a_record_that_the_stream_does_not_have_is_refused(key: tuple[int, int]) -> None:
    stream = summed([object_(5), write(5, 0, b"a" * 512), object_(6), write(6, 0, b"b" * 512)])
    with pytest.raises(NotResumableError, match=f"no record of object {key[0]} at {key[1]}"):
        Stored(stream, 1000, Codec.ZSTD).resumed(ResumePoint(*key, 900, GUID, 7))


def test_another_stream_big_endian_hosts_and_streams_without_checksums_are_refused() -> None:
    with pytest.raises(NotResumableError, match="the interrupted stream led from GUID 8 to"):
        resuming_begin(begin(), ResumePoint(5, 0, 900, GUID, 8))
    with pytest.raises(NotResumableError, match="big-endian"):
        resuming_begin(begin(">"), ResumePoint(5, 0, 900, GUID, 7))
    bare = [part[:280] + bytes(32) + part[RECORD_BYTES:] for part in parts_of(summed([object_(5), object_(6)]))]
    with pytest.raises(NotResumableError, match="no checksums"):
        Stored(b"".join(bare), 2000, Codec.ZSTD).resumed(ResumePoint(5, 0, 900, GUID, 7))
    with pytest.raises(DamagedError, match="expected from 8 to"):
        ResumedStream(begin(), ResumePoint(5, 0, 900, GUID, 7), ExpectedStream(NAME, DatasetKind.FILESYSTEM, GUID, 8))


def test_a_token_of_zfs_is_read() -> None:
    point = parse_token(FULL)
    assert (point.object, point.offset, point.received, point.from_guid) == (19, 229376, 8995760, 0)


def test_what_is_no_token_is_refused() -> None:
    cut = [FULL[:at] for at in range(len(FULL))]
    altered = [before[:-1] + "g" for before in cut[1:]] + ["1-0-0-00", "2" + FULL[1:]]
    for text in [*cut, *altered]:
        with pytest.raises(DamagedError, match="resume token"):
            parse_token(text)


def test_a_list_with_more_numbers_has_all_of_them() -> None:
    one = resume_stream.with_nvlist_numbers(b"", {"a": 1, "resume_object": 1 << 63})
    assert resume_stream.read_nvlist(resume_stream.with_nvlist_numbers(one, {"b": 2})) == {
        "a": 1,
        "resume_object": 1 << 63,
        "b": 2,
    }
    assert all(len(resume_stream.with_nvlist_numbers(b"", {"n" * size: 1})) % 8 == 0 for size, _ in pairwise(range(20)))
    with pytest.raises(ValueError, match="little-endian"):
        resume_stream.with_nvlist_numbers(b"\1\0" + one[2:], {"b": 2})

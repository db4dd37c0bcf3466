"""A stream is complete when every record from BEGIN to END was seen, wherever it was cut into slices."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.support.streams import (
    GUID,
    NAME,
    RECORD_BYTES,
    begin,
    compressed_write,
    end,
    record,
    stream_of,
    write,
)
from zsnapdb.base.errors import DamagedError
from zsnapdb.stream.send_stream_checks import BeginRecord, DatasetKind, ExpectedStream, Senders, Walker


def walk(data: bytes, *cuts: int, senders: Senders = Senders.ANY) -> Walker:
    walker = Walker(senders=senders)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, stop in pairwise(places):
        walker.feed(memoryview(data)[start:stop])
    return walker


def pieces(order: str) -> list[bytes]:
    """One record of each type that has a payload in one of its ways, and of each that has none."""
    junk = random.Random(1).randbytes
    return [
        record(1, junk(168), order, bonus=("I", 28, 162)),
        record(1, junk(320), order, bonus=("I", 28, 162), raw=("I", 36, 320)),
        record(1, b"", order),
        record(2, b"", order),
        write(junk(16384), order),
        compressed_write(junk(512), order),
        record(4, b"", order, object=("Q", 8, 5), length=("Q", 24, 1 << 40)),
        record(6, b"", order, length=("Q", 24, 131072)),
        record(7, junk(512), order, length=("Q", 16, 512)),
        record(7, junk(256), order, length=("Q", 16, 512), compressed=("Q", 40, 256)),
        record(8, junk(56), order, length=("Q", 24, 4096), size=("I", 52, 53)),
        record(9, b"", order),
        record(10, b"", order),
    ]


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 12)),
    st.sampled_from("<>"),
    st.lists(st.integers(1, 60_000), max_size=8),
    st.integers(0, 40),
)
def test_every_record_is_seen_however_the_stream_is_cut_into_slices(
    kinds: list[int], order: str, cuts: list[int], payload: int
) -> None:
    known = pieces(order)
    data = begin(order, payload=bytes(payload)) + b"".join(known[kind] for kind in kinds) + end(order)
    walker = walk(data, *cuts)
    assert walker.finish() == BeginRecord(
        features=4, to_guid=GUID, from_guid=7, name=NAME, kind=2, payload_size=payload
    )
    assert walker.records == len(kinds) + 2


def test_slices_may_be_shorter_than_a_record() -> None:
    data = begin() + write(bytes(1000)) + record(4) + end()
    assert walk(data, *range(0, len(data), 7)).records == 4


@given(st.integers(1, 3 * RECORD_BYTES + 8999), st.lists(st.integers(1, 10_000), max_size=3))
def test_a_stream_cut_anywhere_is_never_complete(cut: int, cuts: list[int]) -> None:
    data = stream_of(9000)[:-cut]
    with pytest.raises(DamagedError):
        walk(data, *cuts).finish()


def test_a_payload_that_looks_like_an_end_is_none() -> None:
    data = begin() + write(end())
    with pytest.raises(DamagedError, match="before its END"):
        walk(data).finish()


def test_nothing_may_follow_the_end() -> None:
    for more in (b"x", end(), begin() + end()):
        for cuts in ((), (len(stream_of(10)),)):
            with pytest.raises(DamagedError, match=rf"after its END record, at byte {len(stream_of(10))}"):
                walk(stream_of(10) + more, *cuts)


def test_an_unknown_record_type_is_named_with_its_place() -> None:
    with pytest.raises(DamagedError, match=r"at byte 1312 of the stream has the unknown type 11"):
        walk(begin() + write(bytes(688)) + record(11) + end())


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 6, 7, 8, 9, 10])
def test_a_record_of_another_snapshot_is_refused(kind: int) -> None:
    with pytest.raises(DamagedError, match=f"has GUID {GUID + 1}, the BEGIN record has {GUID}"):
        walk(begin() + record(kind, guid=GUID + 1) + end())


def test_the_end_of_another_snapshot_is_no_end() -> None:
    with pytest.raises(DamagedError, match="END record at byte 312"):
        walk(begin() + end(guid=GUID + 1))


def test_a_second_begin_is_refused() -> None:
    with pytest.raises(DamagedError, match="second BEGIN"):
        walk(begin() + begin() + end())


def test_a_package_of_streams_is_refused() -> None:
    with pytest.raises(DamagedError, match="not the stream of one snapshot"):
        walk(begin(version=2) + end())


@pytest.mark.parametrize("at", [8, 20, 100, 280, 311])
def test_an_end_record_that_was_altered_is_noticed(at: int) -> None:
    last = bytearray(end())
    last[at] ^= 4
    with pytest.raises(DamagedError, match="checksums in the stream's END"):
        walk(begin() + bytes(last))


def test_an_end_record_without_a_checksum_of_its_own_is_accepted() -> None:
    last = end()[:280] + bytes(32)
    assert walk(begin() + last).finish().to_guid == GUID


@pytest.mark.parametrize(
    "data", [b"", b"zfs: cannot send", bytes(5000), struct.pack("<IIQ", 1, 0, 0x2F5BACBAC).ljust(400)]
)
def test_something_else_than_a_stream_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedError, match="BEGIN"):
        walk(data).finish()


OURS = ExpectedStream(NAME, DatasetKind.FILESYSTEM, GUID, 7, 4)


@pytest.mark.parametrize("order", "<>")
def test_the_streams_of_our_own_sends_are_accepted(order: str) -> None:
    known = pieces(order)
    data = begin(order) + b"".join(known[kind] for kind in (0, 2, 3, 4, 5, 6, 8, 9)) + end(order)
    walker = Walker(OURS)
    walker.feed(memoryview(data))
    assert walker.finish().to_guid == GUID


@pytest.mark.parametrize("kind", [6, 8, 9, 10])
@pytest.mark.parametrize("cut", [0, 700])
def test_a_record_that_our_sends_never_make_is_refused_with_its_place(kind: int, cut: int) -> None:
    with pytest.raises(DamagedError, match=r"at byte 624, which is not accepted"):
        walk(begin() + write(b"") + record(kind) + end(), cut, senders=Senders.OURS)


@pytest.mark.parametrize("bit", [0, 1, 16, 20, 21, 24, 26])
def test_a_stream_with_a_feature_that_our_sends_never_have_is_refused(bit: int) -> None:
    with pytest.raises(DamagedError, match="a feature that is not accepted"):
        walk(begin(version=(4 | 1 << bit) << 2 | 1), senders=Senders.OURS)


@pytest.mark.parametrize("bit", [2, 17, 19, 22, 23, 25, 27, 28, 29])
def test_a_stream_with_a_feature_of_the_pool_is_accepted(bit: int) -> None:
    assert walk(begin(version=(1 << bit) << 2 | 1) + end(), senders=Senders.OURS).finish().features == 1 << bit


RAW = ExpectedStream(NAME, DatasetKind.FILESYSTEM, GUID, 7, is_raw=True)
RAW_VERSION = (4 | 1 << 24) << 2 | 1


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("keys", [1, 700, 1 << 16])
def test_a_raw_stream_is_accepted_where_one_is_expected(order: str, keys: int) -> None:
    known = pieces(order)
    records = b"".join(known[kind] for kind in (0, 1, 2, 3, 4, 5, 6, 8, 9, 11))
    data = begin(order, version=RAW_VERSION, payload=bytes(keys)) + records + end(order)
    walker = Walker(RAW)
    walker.feed(memoryview(data))
    assert walker.finish().features == 4 | 1 << 24
    with pytest.raises(DamagedError, match="such as properties"):
        Walker(OURS).feed(memoryview(data))


@pytest.mark.parametrize(
    "first",
    [
        begin(payload=bytes(700)),
        begin(version=RAW_VERSION),
        begin(version=RAW_VERSION, payload=bytes((1 << 16) + 1)),
        begin(version=RAW_VERSION, payload=bytes(1 << 20)),
    ],
)
def test_a_stream_that_is_not_raw_or_whose_keys_are_too_many_is_refused_where_a_raw_one_is_expected(
    first: bytes,
) -> None:
    with pytest.raises(DamagedError, match="not the raw stream of an encrypted dataset"):
        Walker(RAW).feed(memoryview(first))


@pytest.mark.parametrize("bit", [0, 1, 16, 20, 21, 26])
def test_a_raw_stream_has_no_other_feature_that_our_sends_never_have(bit: int) -> None:
    with pytest.raises(DamagedError, match="a feature that is not accepted"):
        Walker(RAW).feed(memoryview(begin(version=RAW_VERSION | 1 << bit << 2, payload=bytes(700))))


@pytest.mark.parametrize("kind", [6, 8, 10])
def test_a_raw_stream_has_no_other_record_that_our_sends_never_make(kind: int) -> None:
    data = begin(version=RAW_VERSION, payload=bytes(700)) + record(kind) + end()
    with pytest.raises(DamagedError, match="which is not accepted"):
        Walker(RAW).feed(memoryview(data))


def test_a_payload_of_the_first_record_is_refused_as_it_may_set_properties() -> None:
    with pytest.raises(DamagedError, match="payload of 24 bytes, such as properties"):
        walk(begin(payload=bytes(24)) + end(), senders=Senders.OURS)


def test_the_stream_of_a_clone_is_refused() -> None:
    with pytest.raises(DamagedError, match="clone of another dataset"):
        walk(begin(flags=1) + end(), senders=Senders.OURS)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (begin(guid=GUID - 1), "leads from GUID 7 to"),
        (begin(base=8), "leads from GUID 8 to"),
        (begin(base=0), "leads from GUID 0 to"),
        (begin(name="tank/mysql/data@other"), "is of snapshot 'tank/mysql/data@other', expected"),
        (begin(name=""), "is of snapshot '', expected"),
        (begin(kind=3), "of type 3, expected 2"),
        (begin(version=5 << 2 | 1), "feature"),
        (begin(version=(4 | 1 << 17) << 2 | 1), "has the features 0x20004, expected 0x4"),
    ],
)
def test_a_stream_that_is_not_the_expected_one_is_refused_at_its_first_record(first: bytes, words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        Walker(OURS).feed(memoryview(first))

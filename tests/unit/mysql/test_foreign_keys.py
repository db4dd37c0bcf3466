"""Row events of MySQL are changed so that an applier follows no foreign keys; nothing else is changed."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_file import PAYLOAD, QUERY, XID, File
from zsnapdb.base.errors import DamagedError
from zsnapdb.mysql.binlog import foreign_keys
from zsnapdb.mysql.binlog.event_bytes import EventBytes, inner_events, payload
from zsnapdb.mysql.binlog.events import HEADER, MAGIC, decisive_events

WRITE, UPDATE, DELETE, PARTIAL = 30, 31, 32, 39
NO_CHECKS, IN_SERVER = 2, 16


@dataclass(frozen=True, repr=False)
class Event:
    """An event of a binlog; `inner` are the events of a compressed transaction."""

    kind: int
    body: bytes
    inner: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        return f"Event({self.kind}, {len(self.body)} bytes, {self.body[6:8].hex()}, {self.inner})"

    def applied(self) -> Event:
        """Return the event that makes exactly the logged change."""
        if self.kind == PAYLOAD:
            return replace(self, inner=tuple(event.applied() for event in self.inner))
        if self.kind in (UPDATE, DELETE, PARTIAL) and self.body[6] & IN_SERVER:
            return replace(self, body=self.body[:6] + bytes([self.body[6] | NO_CHECKS]) + self.body[7:])
        return self


def rows(kind: int, flags: int, size: int = 0) -> Event:
    return Event(kind, bytes(6) + bytes([flags, 0]) + bytes(range(256)) * (size // 256) + bytes(size % 256))


def packed(events: tuple[Event, ...], level: int | None) -> bytes:
    plain = b"".join(HEADER.pack(0, e.kind, 1, HEADER.size + len(e.body), 0, 0) + e.body for e in events)
    data = plain if level is None else zstandard.ZstdCompressor(level=level).compress(plain)
    size = b"\xfe" + struct.pack("<Q", len(data))
    if level is None:
        return b"\x02\x03\xfc\xff\x00\x01" + bytes([len(size)]) + size + b"\0" + data
    return b"\x02\x01\x00\x01" + bytes([len(size)]) + size + b"\0" + data


def written(events: list[Event], level: int | None, *, checksums: bool = True) -> tuple[bytes, list[int]]:
    """Return a binlog with the events, and the offset of each."""
    file, places = File(), []
    for event in events:
        places.append(len(file.data))
        file.add(event.kind, packed(event.inner, level) if event.kind == PAYLOAD else event.body)
    return (bytes(file.data), places) if checksums else without_checksums(bytes(file.data))


def without_checksums(data: bytes) -> tuple[bytes, list[int]]:
    (length,) = struct.unpack_from("<I", data, len(MAGIC) + 9)
    at = len(MAGIC) + length
    out, places = bytearray(data[:at]), []
    out[at - 5] = 0
    out[at - 4 :] = struct.pack(
        "<I", zlib.crc32(out[len(MAGIC) : len(MAGIC) + 17] + bytes(2) + out[len(MAGIC) + HEADER.size : -4])
    )
    while at < len(data):
        when, kind, server, length, following, flags = HEADER.unpack_from(data, at)
        places.append(len(out))
        out += HEADER.pack(when, kind, server, length - 4, following, flags) + data[at + HEADER.size : at + length - 4]
        at += length
    return bytes(out), places


def read(data: bytes, start: int = 0) -> list[Event]:
    """Return the events of a binlog, whose checksums are checked."""
    kinds = (WRITE, UPDATE, DELETE, PARTIAL)
    found = []
    checksum = 4 if data[len(MAGIC) + HEADER.unpack_from(data, len(MAGIC))[3] - 5] else 0
    for event in list(decisive_events(io.BytesIO(data), "b", len(data), others=kinds))[1:]:
        inner: tuple[Event, ...] = ()
        whole = data[event.start + HEADER.size : event.end - checksum]
        if event.kind == PAYLOAD:
            events = inner_events(payload(EventBytes([whole])))
            inner = tuple(Event(kind, b"".join(body.rest())) for _, kind, body in events)
        found.append(Event(event.kind, b"" if inner else whole, inner))
    return found


def changed(data: bytes, start: int, places: list[int]) -> tuple[bytes, dict[int, int]] | None:
    out = io.BytesIO()
    moved = foreign_keys.write_changed(io.BytesIO(data), "b", start, places, lambda: out)
    return None if moved is None else (out.getvalue(), dict(moved))


SIZES = st.sampled_from([0, 1, 5, 300, 40_000, (1 << 20) - 60, (1 << 20) - 27, 1 << 20, (1 << 21) + 7])
ROWS = st.builds(rows, st.sampled_from([WRITE, UPDATE, DELETE, PARTIAL]), st.integers(0, 31), SIZES)
OTHERS = st.builds(Event, st.sampled_from([QUERY, XID]), st.binary(max_size=40))
PAYLOADS = st.builds(Event, st.just(PAYLOAD), st.just(b""), st.lists(ROWS | OTHERS, min_size=1, max_size=5).map(tuple))


@given(
    st.lists(ROWS | OTHERS | PAYLOADS, min_size=1, max_size=8),
    st.sampled_from([None, 1, 3, 19]),
    st.integers(0, 7),
    st.booleans(),
)
def test_exactly_the_changes_that_follow_foreign_keys_are_changed(
    events: list[Event], level: int | None, first: int, checksums: bool
) -> None:
    first = min(first, len(events) - 1)
    data, places = written(events, level, checksums=checksums)
    expected = [*events[:first], *(event.applied() for event in events[first:])]
    result = changed(data, places[first], places)
    if expected == events:
        assert result is None
        return
    assert result is not None
    out, moved = result
    assert read(out) == read(written(expected, level, checksums=checksums)[0])
    kinds = {place: HEADER.unpack_from(data, place)[1:3] for place in places}
    assert {place: HEADER.unpack_from(out, moved[place])[1:3] for place in places} == kinds
    assert out[: places[first]] == data[: places[first]]
    assert changed(out, moved[places[first]], []) is None, "nothing is left to change"


def test_an_encrypted_file_is_left_alone() -> None:
    assert changed(b"\xfdbin" + bytes(600), 4, []) is None


@pytest.mark.parametrize("length", [0, 18])
def test_a_wrong_length_is_named(length: int) -> None:
    data, (place, _) = written([rows(DELETE, IN_SERVER), rows(DELETE, IN_SERVER)], None)
    broken = data[: place + 9] + struct.pack("<I", length) + data[place + 13 :]
    with pytest.raises(DamagedError, match=f"the event at {place} is malformed: it has {length} bytes"):
        changed(broken, place, [])


@pytest.mark.parametrize("kept", [1, 18, 19, 24, 25, 26, 40])
def test_an_incomplete_last_event_is_copied(kept: int) -> None:
    """The archive may end inside a transaction that is longer than a chunk."""
    event = rows(DELETE, IN_SERVER, 100)
    data, (first, last) = written([event, event], None)
    result = changed(data[: last + kept], first, [])
    assert result is not None
    assert result[0] == written([event.applied()], None)[0] + data[last : last + kept]


def test_a_malformed_compressed_transaction_is_named() -> None:
    data, (place,) = written([Event(PAYLOAD, b"", (rows(DELETE, IN_SERVER, 300),))], 3)
    broken = bytearray(data)
    broken[place + 40 : place + 60] = bytes(20)
    with pytest.raises(DamagedError, match=f"the event at {place} is malformed"):
        changed(bytes(broken), place, [])

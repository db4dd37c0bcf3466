"""The position is the end of the last complete transaction, whatever follows it."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import pytest

from tests.unit.support.binlog_file import (
    ANONYMOUS,
    FOREIGN,
    FORMAT,
    GTID,
    INCIDENT,
    M_ENCRYPTION,
    M_LIST,
    OWN,
    PAYLOAD,
    PREVIOUS,
    ROTATE,
    ROWS,
    TAGGED,
    TAGGED_EVENTS,
    UNKNOWN,
    UUID,
    XID,
    File,
    read_tail,
)
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.errors import ConsistencyError, DamagedError, PreflightError
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.mysql.binlog.events import MAGIC, fingerprint
from zsnapdb.mysql.binlog.tail import Tail, find_position, tail_of


def mysql() -> File:
    return File().previous(5).transaction(6).transaction(7).mark("two")


def tail(file: File) -> tuple[int, str]:
    end = tail_of(io.BytesIO(bytes(file.data)), "binlog.000001")
    return end.offset, str(end.gtids)


def test_gtids_are_those_before_the_file_and_those_in_it() -> None:
    file = mysql()
    assert tail(file) == (file.marks["two"], f"{UUID}:1-7")


def test_every_cut_ends_at_the_last_complete_transaction() -> None:
    file = mysql().transaction(8).mark("three")
    for cut in range(file.marks["two"], file.marks["three"]):
        end = tail_of(io.BytesIO(bytes(file.data[:cut])), "b")
        assert (end.offset, str(end.gtids), end.unfinished) == (
            file.marks["two"],
            f"{UUID}:1-7",
            cut - file.marks["two"],
        )


def test_an_unfinished_transaction_does_not_count() -> None:
    file = mysql()
    file.gtid(8).query(b"BEGIN").add(ROWS, bytes(200))
    assert tail(file) == (file.marks["two"], f"{UUID}:1-7")


def test_a_statement_of_its_own_is_a_transaction() -> None:
    file = mysql().gtid(8).query(b"CREATE TABLE t (id INT)").mark("ddl")
    assert tail(file) == (file.marks["ddl"], f"{UUID}:1-8")


def test_a_statement_inside_a_transaction_is_not_its_end() -> None:
    file = mysql().gtid(8).query(b"BEGIN").query(b"INSERT INTO t VALUES (1)").query(b"SAVEPOINT a")
    assert tail(file)[0] == file.marks["two"]
    file.query(b"COMMIT").mark("end")
    assert tail(file) == (file.marks["end"], f"{UUID}:1-8")


def test_a_compressed_transaction_is_one_event() -> None:
    file = mysql().gtid(8).add(PAYLOAD, bytes(300)).mark("payload")
    assert tail(file) == (file.marks["payload"], f"{UUID}:1-8")


def test_a_change_that_could_not_be_logged_is_a_transaction() -> None:
    """A server of MySQL 9.7 gives it a GTID, which it then counts as executed."""
    file = mysql().gtid(8).add(INCIDENT, b"\x01\x00\x04lost").mark("incident")
    assert tail(file) == (file.marks["incident"], f"{UUID}:1-8")


def test_unknown_events_are_skipped_by_their_size() -> None:
    file = mysql().gtid(8).query(b"BEGIN").add(UNKNOWN, bytes(77)).add(XID, bytes(8)).mark("end")
    assert tail(file) == (file.marks["end"], f"{UUID}:1-8")


def test_the_end_of_a_rotated_file_is_behind_its_rotation() -> None:
    file = mysql().add(ROTATE, struct.pack("<Q", 4) + b"binlog.000002").mark("rotated")
    assert tail(file)[0] == file.marks["rotated"]


def test_anonymous_transactions_end_too() -> None:
    file = (
        File()
        .add(PREVIOUS, struct.pack("<Q", 0))
        .add(ANONYMOUS, bytes(42))
        .query(b"BEGIN")
        .add(XID, bytes(8))
        .mark("end")
    )
    assert tail(file)[0] == file.marks["end"]


def test_previous_gtids_with_tags_are_read() -> None:
    file = File().previous(5, tag="blue")
    assert tail(file)[1] == f"{UUID}:blue:1-5"


# Events of a MySQL 9.7.4 server, without header and checksum.
PREVIOUS_WITH_TAGS = (
    "01040000000000013b539809e55b11f188224e3318db0587000100000000000000010000000000000009000000000000003b539809e55b11f188224e3318db0587"
    "08626c7565010000000000000001000000000000000300000000000000aaaaaaaa0000000000000000000000ff00010000000000000000f2052a0100000001f2052a01000000"
    "aaaaaaaa0000000000000000000000ff0e677265656e5f39010000000000000070110100000000007111010000000000"
)


@pytest.mark.parametrize("gtid", TAGGED_EVENTS)
def test_a_recorded_gtid_with_a_tag_is_read(gtid: str) -> None:
    file = (
        File()
        .add(PREVIOUS, bytes(8))
        .add(TAGGED, bytes.fromhex(TAGGED_EVENTS[gtid]))
        .query(b"CREATE TABLE t (id INT)")
        .mark("end")
    )
    assert tail(file) == (file.marks["end"], gtid)


def test_recorded_previous_gtids_with_tags_are_read() -> None:
    file = File().add(PREVIOUS, bytes.fromhex(PREVIOUS_WITH_TAGS))
    assert tail(file)[1] == str(GtidSet.parse(f"{OWN}:1-8:blue:1-2,{FOREIGN}:5000000000:green_9:70000"))


def test_a_mariadb_position_is_the_head_of_each_domain() -> None:
    entries = [(0, 1, 40), (0, 2, 41), (5, 1, 3)]
    file = File().add(
        M_LIST, struct.pack("<I", len(entries)) + b"".join(struct.pack("<IIQ", d, s, n) for d, s, n in entries)
    )
    assert tail(file)[1] == "0-2-41,5-1-3"
    file.mariadb(42).add(ROWS, bytes(50)).add(XID, bytes(8)).mariadb(4, domain=5, standalone=True).query(
        b"CREATE TABLE t (id INT)"
    ).mark("end")
    assert tail(file) == (file.marks["end"], "0-1-42,5-1-4")


def test_a_mariadb_transaction_without_its_end_does_not_count() -> None:
    file = File().add(M_LIST, struct.pack("<I", 0)).mariadb(1).add(ROWS, bytes(50)).add(XID, bytes(8)).mark("one")
    file.mariadb(2).query(b"INSERT INTO t VALUES (1)")
    assert tail(file) == (file.marks["one"], "0-1-1")


def test_a_wrong_checksum_in_the_middle_is_damage_and_at_the_end_a_cut() -> None:
    file = mysql()
    middle = bytearray(file.data)
    middle[file.marks["two"] - 200] ^= 1
    with pytest.raises(DamagedError, match="checksum"):
        tail_of(io.BytesIO(bytes(middle)), "b")
    last = bytearray(file.data)
    last[-6] ^= 1
    assert str(tail_of(io.BytesIO(bytes(last)), "b").gtids) == f"{UUID}:1-6"


def test_a_wrong_size_is_damage_and_not_a_cut() -> None:
    """It would hide all that follows it, and the position would be too early."""
    file = mysql()
    for size in (18, 1 << 30, 0xFFFFFFFF):
        data = bytearray(file.data)
        struct.pack_into("<I", data, file.marks["two"] - 31 + 9, size)
        with pytest.raises(DamagedError, match="size"):
            tail_of(io.BytesIO(bytes(data)), "b")


def test_a_size_that_happens_to_end_with_the_file_is_damage() -> None:
    file = mysql()
    data = bytearray(file.data)
    at = file.marks["two"] - 31 - 103
    struct.pack_into("<I", data, at + 9, len(data) - at)
    with pytest.raises(DamagedError, match="checksum"):
        tail_of(io.BytesIO(bytes(data)), "b")


def test_zeros_behind_the_last_event_are_a_cut() -> None:
    file = mysql()
    end = tail_of(io.BytesIO(bytes(file.data) + bytes(50)), "b")
    assert (end.offset, end.unfinished) == (file.marks["two"], 50)


@pytest.mark.parametrize("place", [4 + 4, 4 + 19, 4 + 19 + 57 + 42])
def test_damage_to_the_description_of_the_format_is_seen(place: int) -> None:
    """Its kind, its version, and its word on checksums: without it nothing of the file would be checked."""
    data = bytearray(mysql().data)
    data[place] ^= 1
    with pytest.raises(DamagedError, match="the event at 4"):
        tail_of(io.BytesIO(bytes(data)), "b")


def test_a_file_without_checksums_is_read() -> None:
    data = bytearray(MAGIC)
    body = struct.pack("<H50sIB", 4, b"9.7.4", 0, 19) + bytes(42) + b"\x00"
    head = struct.pack("<IBIIIH", 0, FORMAT, 1, 19 + len(body) + 4, 4 + 19 + len(body) + 4, 0)
    data += head + body + struct.pack("<I", zlib.crc32(head + body))
    for kind, content in ((PREVIOUS, bytes(8)), (GTID, b"\x01" + UUID.bytes + struct.pack("<q", 1)), (XID, bytes(8))):
        data += struct.pack("<IBIIIH", 0, kind, 1, 19 + len(content), len(data) + 19 + len(content), 0) + content
    end = tail_of(io.BytesIO(bytes(data)), "b")
    assert (end.offset, str(end.gtids)) == (len(data), f"{UUID}:1")


def test_a_file_that_has_just_been_created_has_no_end_yet() -> None:
    for size in range(4):
        assert tail_of(io.BytesIO(MAGIC[:size]), "b") == Tail(0, None, size)


def test_encrypted_binlogs_are_named_as_such() -> None:
    with pytest.raises(PreflightError, match="encrypted"):
        tail_of(io.BytesIO(b"\xfdbin" + bytes(508)), "b")
    with pytest.raises(PreflightError, match="encrypted"):
        tail_of(io.BytesIO(bytes(File().add(M_ENCRYPTION, bytes(17)).data)), "b")


def test_something_else_is_not_a_binlog() -> None:
    with pytest.raises(DamagedError, match="not a binlog"):
        tail_of(io.BytesIO(b"# comment"), "b")


def write(folder: Path, **files: File | None) -> Path:
    index = folder / "binlog.index"
    index.write_text("".join(f"/var/lib/mysql/{name.replace('_', '.')}\n" for name in files))
    for name, file in files.items():
        (folder / name.replace("_", ".")).write_bytes(bytes(file.data) if file else b"")
    return index


def test_the_newest_file_of_the_index_counts(tmp_path: Path) -> None:
    newest = File().previous(7).mark("head").transaction(8).mark("end")
    index = write(tmp_path, binlog_000001=mysql(), binlog_000002=newest)
    position = find_position(index, tmp_path, Flavour.MYSQL, None, has_gtids=True).position
    assert position.coordinates == BinlogCoordinates("binlog.000002", newest.marks["end"])
    assert position.gtids == GtidSet.parse(f"{UUID}:1-8")
    assert position.last_gtid == f"{UUID}:8"
    assert position.fingerprint == fingerprint(io.BytesIO(newest.data), newest.marks["head"])


def test_a_newest_file_still_empty_stands_for_the_end_of_the_one_before(tmp_path: Path) -> None:
    before = mysql()
    index = write(tmp_path, binlog_000001=before, binlog_000002=None)
    assert find_position(
        index, tmp_path, Flavour.MYSQL, None, has_gtids=True
    ).position.coordinates == BinlogCoordinates("binlog.000001", before.marks["two"])


def test_a_file_the_index_names_must_be_there(tmp_path: Path) -> None:
    index = write(tmp_path, binlog_000001=mysql())
    (tmp_path / "binlog.000001").unlink()
    with pytest.raises(ConsistencyError, match=r"names binlog\.000001"):
        find_position(index, tmp_path, Flavour.MYSQL, None, has_gtids=True)


def test_an_empty_mariadb_binlog_has_an_empty_position(tmp_path: Path) -> None:
    index = write(tmp_path, binlog_000001=File().add(M_LIST, struct.pack("<I", 0)))
    assert find_position(index, tmp_path, Flavour.MARIADB, None, has_gtids=True).position.gtids == GtidPosition()
    assert read_tail(tmp_path / "binlog.000001").unfinished == 0


def test_an_error_while_reading_is_the_error_that_is_raised_and_the_file_is_closed(tmp_path: Path) -> None:
    """With a mapped file the open views turned every such error into a BufferError and kept the snapshot busy."""
    file = mysql()
    damaged = bytearray(file.data)
    damaged[file.marks["two"] - 200] ^= 1
    path = tmp_path / "binlog.000001"
    path.write_bytes(bytes(damaged))
    with pytest.raises(DamagedError, match="checksum"):
        read_tail(path)
    assert not [n for n in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{n}") == str(path)]


def test_an_event_of_another_form_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "binlog.000001"
    path.write_bytes(bytes(File().add(PREVIOUS, b"short").add(XID, bytes(8)).data))
    with pytest.raises(DamagedError, match="form"):
        read_tail(path)


def test_while_the_index_is_replaced_the_crash_safe_one_stands_for_it(tmp_path: Path) -> None:
    index = write(tmp_path, binlog_000001=mysql())
    expected = find_position(index, tmp_path, Flavour.MYSQL, None, has_gtids=True).position
    index.rename(index.with_suffix(".index_crash_safe"))
    assert find_position(index, tmp_path, Flavour.MYSQL, None, has_gtids=True).position == expected

"""The transactions of a binlog are read one by one, with the GTID and commit time of the server."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_file import (
    FOREIGN,
    M_ENCRYPTION,
    OWN,
    PREVIOUS,
    QUERY,
    ROTATE,
    TAGGED,
    TAGGED_EVENTS,
    UUID,
    XID,
    File,
)
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.gtid import GtidPosition, GtidSet, joined
from zsnapdb.mysql.binlog.tail import tail_of
from zsnapdb.mysql.binlog.transactions import BinlogTransaction, read_head, transactions

NOON = 1_795_262_400_000_000


def of(file: File, start: int | None = None) -> tuple[list[BinlogTransaction], int]:
    complete = []
    walk = transactions(io.BytesIO(bytes(file.data)), "b", start)
    while True:
        try:
            complete.append(next(walk))
        except StopIteration as end:
            return complete, end.value


def test_a_transaction_has_its_bytes_its_gtid_and_its_commit_time() -> None:
    file = (
        File()
        .previous(5)
        .mark("one")
        .transaction(6, committed=NOON + 1)
        .mark("two")
        .transaction(7, committed=NOON + 2)
        .mark("end")
    )
    complete, end = of(file)
    assert [(t.start, t.end, t.gtid, t.committed, t.is_exact) for t in complete] == [
        (file.marks["one"], file.marks["two"], f"{UUID}:6", NOON + 1, True),
        (file.marks["two"], file.marks["end"], f"{UUID}:7", NOON + 2, True),
    ]
    assert end == file.marks["end"]


def test_of_a_replicated_transaction_the_commit_time_is_that_of_this_server() -> None:
    file = File().previous(5).gtid(6, committed=NOON + 9, original=NOON).query(b"CREATE TABLE t (id INT)")
    assert [(t.committed, t.is_exact) for t in of(file)[0]] == [(NOON + 9, True)]


@pytest.mark.parametrize("gtid", TAGGED_EVENTS)
def test_a_recorded_gtid_with_a_tag_has_its_commit_time(gtid: str) -> None:
    """The server wrote these on 20 November 2026, about 17:40 UTC."""
    file = (
        File().add(PREVIOUS, bytes(8)).add(TAGGED, bytes.fromhex(TAGGED_EVENTS[gtid])).query(b"CREATE TABLE t (id INT)")
    )
    (transaction,) = of(file)[0]
    assert (transaction.gtid, transaction.is_exact) == (gtid, True)
    assert NOON - 2 * 86400_000_000 < transaction.committed < NOON


def test_where_the_server_gives_no_commit_time_it_is_the_second_of_the_latest_header() -> None:
    file = File(version=b"11.8.8-MariaDB-log").gtid_list((0, 1, 40))
    file.when = 1_800_000_000
    file.mariadb(41).add(30, bytes(50))
    file.when += 3
    file.add(XID, bytes(8))
    assert [(t.gtid, t.committed, t.is_exact) for t in of(file)[0]] == [("0-1-41", 1_800_000_003_000_000, False)]


def test_what_is_not_complete_is_not_told_and_the_end_is_before_it() -> None:
    file = File().previous(5).transaction(6).mark("one").transaction(7).mark("two")
    for cut in range(file.marks["one"], file.marks["two"]):
        short = File()
        short.data = file.data[:cut]
        complete, end = of(short)
        assert ([t.gtid for t in complete], end) == ([f"{UUID}:6"], file.marks["one"])


def test_a_reading_may_go_on_where_an_earlier_one_ended() -> None:
    file = (
        File()
        .previous(5)
        .mark("start")
        .transaction(6)
        .mark("one")
        .transaction(7)
        .transaction(8)
        .add(ROTATE, bytes(20))
        .mark("end")
    )
    complete, end = of(file, file.marks["one"])
    assert ([t.gtid for t in complete], end) == ([f"{UUID}:7", f"{UUID}:8"], file.marks["end"])
    assert of(file, file.marks["start"]) == of(file)
    assert of(file, file.marks["end"]) == ([], file.marks["end"])


def test_the_end_is_that_of_the_tail_for_every_cut() -> None:
    file = (
        File()
        .previous(5)
        .transaction(6)
        .gtid(7)
        .query(b"CREATE TABLE t (id INT)")
        .transaction(8, size=300)
        .add(ROTATE, bytes(20))
    )
    for cut in range(len(file.data)):
        short = File()
        short.data = file.data[:cut]
        complete, end = of(short)
        tail = tail_of(io.BytesIO(bytes(short.data)), "b")
        assert end == tail.offset
        if tail.gtids is not None:
            assert tail.gtids == joined(
                GtidSet.parse(f"{UUID}:1-5"), GtidSet.parse(",".join(str(t.gtid) for t in complete))
            )


@pytest.mark.parametrize(
    ("file", "flavour", "version", "previous"),
    [
        (File().previous(5), Flavour.MYSQL, "9.7.4", f"{UUID}:1-5"),
        (
            File(version=b"11.8.8-MariaDB-log").gtid_list((0, 1, 40), (0, 2, 41), (5, 1, 3)),
            Flavour.MARIADB,
            "11.8.8-MariaDB-log",
            "0-2-41,5-1-3",
        ),
    ],
)
def test_the_head_says_what_came_before(file: File, flavour: Flavour, version: str, previous: str) -> None:
    file.mark("head").transaction(6)
    head = read_head(io.BytesIO(bytes(file.data)), "b")
    assert head is not None
    assert (head.flavour, head.version, str(head.previous), head.end) == (
        flavour,
        version,
        previous,
        file.marks["head"],
    )


def test_a_head_that_is_not_whole_has_no_end() -> None:
    file = File().mark("format").previous(5)
    for cut in range(len(file.data)):
        head = read_head(io.BytesIO(bytes(file.data[:cut])), "b")
        assert head is None or (head.end is None and cut >= file.marks["format"])


def test_an_encrypted_file_is_named_as_such() -> None:
    with pytest.raises(PreflightError, match="encrypted"):
        read_head(io.BytesIO(bytes(File().add(M_ENCRYPTION, bytes(17)).data)), "b")


def test_an_anonymous_transaction_has_no_gtid() -> None:
    file = (
        File()
        .previous(5)
        .add(34, bytes(42))
        .add(QUERY, struct.pack("<IIBHH", 1, 0, 3, 0, 0) + b"app\0" + b"CREATE TABLE t (id INT)")
    )
    assert [t.gtid for t in of(file)[0]] == [None]


numbers = st.integers(1, 30)
sets = st.lists(st.tuples(st.sampled_from([OWN, FOREIGN]), numbers), max_size=6).map(
    lambda pairs: GtidSet.of((s, (n, n)) for s, n in pairs)
)
positions = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 3), numbers), max_size=3).map(
    lambda heads: GtidPosition(dict(sorted(heads.items())))
)


@given(st.one_of(st.tuples(sets, sets, sets), st.tuples(positions, positions, positions)))
def test_joining_stretches_does_not_depend_on_where_they_are_cut(parts: tuple[GtidSet, GtidSet, GtidSet]) -> None:
    one, two, three = parts
    assert joined(joined(one, two), three) == joined(one, joined(two, three))
    assert joined(None, one) == joined(one, None) == one

"""A walk that begins at a known tail of a binlog finds what a walk of the whole binlog finds."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_file import M_LIST, PREVIOUS, ROTATE, ROWS, XID, File
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError
from zsnapdb.mysql.binlog.tail import FoundPosition, KnownTail, digest_of, find_position, tail_near_end, tail_of

NAME = "binlog.000001"
HEAD = {
    "mysql": lambda: File().previous(5),
    "mysql without earlier transactions": lambda: File().add(PREVIOUS, struct.pack("<Q", 0)),
    "mariadb": lambda: File().gtid_list((0, 1, 4), (7, 2, 9)),
    "mariadb without earlier transactions": lambda: File().add(M_LIST, struct.pack("<I", 0)),
}
STEPS: dict[str, tuple[Callable[[File, int], object], ...]] = {
    "mysql": (
        lambda file, number: file.transaction(number),
        lambda file, number: file.transaction(number + 3),
        lambda file, number: file.anonymous(),
        lambda file, number: file.gtid(number).query(b"CREATE TABLE t (id INT)"),
        lambda file, number: file.add(ROTATE, bytes(12)),
    ),
    "mariadb": (
        lambda file, number: file.mariadb_transaction(number),
        lambda file, number: file.mariadb_transaction(number, domain=7, server=2),
        lambda file, number: file.mariadb(number, standalone=True).query(b"CREATE TABLE t (id INT)"),
        lambda file, number: file.add(ROTATE, bytes(12)),
    ),
}


def grown(head: str, steps: Sequence[int]) -> File:
    file = HEAD[head]()
    known = STEPS[head.split()[0]]
    for number, step in enumerate(steps, 10):
        known[step % len(known)](file, number)
    return file


def opened(data: bytes | bytearray) -> io.BytesIO:
    return io.BytesIO(bytes(data))


def known_tail(data: bytes | bytearray) -> KnownTail:
    tail = tail_of(opened(data), NAME)
    assert tail.gtids is not None
    return KnownTail(NAME, tail.offset, tail.gtids, tail.last_gtid, digest_of(opened(data), tail.offset))


@given(
    st.sampled_from(sorted(HEAD)),
    st.lists(st.integers(0, 4), max_size=6),
    st.lists(st.integers(0, 4), max_size=6),
    st.integers(0, 60),
    st.integers(0, 200),
)
def test_a_walk_from_a_known_tail_ends_like_a_walk_of_the_whole_file(
    head: str, before: list[int], after: list[int], cut_before: int, cut_after: int
) -> None:
    whole = grown(head, before + after).data
    least = len(HEAD[head]().data)
    earlier = whole[: max(least, len(grown(head, before).data) - cut_before)]
    later = whole[: max(len(earlier), len(whole) - cut_after)]
    assert tail_of(opened(later), NAME, known_tail(earlier)) == tail_of(opened(later), NAME)


def test_only_what_follows_the_known_tail_is_read() -> None:
    file = File().previous(5)
    for number in range(6, 80):
        file.transaction(number, size=200)
    known = known_tail(file.data)
    file.transaction(80)
    file.data[len(file.data) // 2] ^= 1
    with pytest.raises(DamagedError):
        tail_of(opened(file.data), NAME)
    assert str(tail_of(opened(file.data), NAME, known).gtids).endswith(":1-80")


@pytest.mark.parametrize(
    "other",
    [
        File(when=1).previous(5).transaction(6).transaction(7).transaction(8),
        File().previous(5).transaction(6).gtid(70).query(b"BEGIN").add(ROWS, bytes(80)).add(XID, bytes(8)),
        File().previous(5).transaction(6),
        File().previous(5),
    ],
    ids=["begun at another time", "other transactions", "shorter", "empty"],
)
def test_the_tail_of_another_file_is_not_used(other: File) -> None:
    known = known_tail(File().previous(5).transaction(6).transaction(7).data)
    assert tail_of(opened(other.data), NAME, known) == tail_of(opened(other.data), NAME)


def test_the_tail_of_a_file_of_another_name_is_not_used() -> None:
    file = File().previous(5).transaction(6)
    known = known_tail(file.data)
    file.data[len(file.data) - 60] ^= 1
    file.transaction(7)
    with pytest.raises(DamagedError):
        tail_of(opened(file.data), "binlog.000002", known)


def test_a_position_is_found_from_the_tail_that_was_found_before(tmp_path: Path) -> None:
    index, binlog = tmp_path / "binlog.index", tmp_path / NAME
    index.write_text(f"/var/lib/mysql/{NAME}\n")
    file = File().previous(5).transaction(6)
    binlog.write_bytes(bytes(file.data))
    first = find_position(index, tmp_path, Flavour.MYSQL, None, has_gtids=True)
    again = find_position(index, tmp_path, Flavour.MYSQL, first.tail, has_gtids=True)
    assert again == first
    binlog.write_bytes(bytes(file.transaction(7).transaction(8).data))
    later = find_position(index, tmp_path, Flavour.MYSQL, first.tail, has_gtids=True)
    assert later.position == find_position(index, tmp_path, Flavour.MYSQL, None, has_gtids=True).position
    assert later.tail == known_tail(file.data)


class Folder:
    """A folder with a binlog and its index, as a server has them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, folder / "binlog.index"
        self.index.write_text(f"/var/lib/mysql/{NAME}\n")

    def has(self, data: bytes | bytearray) -> None:
        (self.folder / NAME).write_bytes(bytes(data))

    def found(self, known: KnownTail | None) -> FoundPosition:
        return find_position(self.index, self.folder, Flavour.MYSQL, known, has_gtids=True)

    def near(self, known: KnownTail | None) -> KnownTail | None:
        return tail_near_end(self.index, self.folder, known, Flavour.MYSQL, has_gtids=True)


def test_a_running_server_is_walked_to_its_end_only_where_the_known_tail_is_far_from_it(tmp_path: Path) -> None:
    place, file = Folder(tmp_path), File().previous(5)
    place.has(file.transaction(6).data)
    assert place.near(None) is None
    recorded = place.found(None).tail
    place.has(file.transaction(7, size=200 << 10).data)
    assert place.near(recorded) == recorded
    place.has(file.transaction(8, size=100 << 10).data)
    near = place.near(recorded)
    assert near == place.found(None).tail != recorded


def test_the_set_is_read_from_the_tail_that_the_running_server_had(tmp_path: Path) -> None:
    place, file = Folder(tmp_path), File().previous(5)
    place.has(file.transaction(6, size=300 << 10).gtid(7).query(b"BEGIN").data)
    near = place.near(None)
    file.add(ROWS, bytes(80)).add(XID, bytes(8)).transaction(8)
    place.has(file.data)
    whole = place.found(None)
    assert place.found(near) == whole
    file.data[200] ^= 1
    place.has(file.data)
    with pytest.raises(DamagedError):
        place.found(near)
    file.data[200] ^= 1
    file.data[100 << 10] ^= 1
    place.has(file.data)
    assert place.found(near) == whole


def test_a_tail_that_the_set_does_not_have_is_not_used(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    place.has(File().previous(5).transaction(6, size=300 << 10).data)
    near = place.near(None)
    place.has(File().previous(5).transaction(7, size=300 << 10).transaction(8).data)
    assert place.found(near) == place.found(None)

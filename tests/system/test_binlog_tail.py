"""The binlog reader and the server agree on the newest binlog after every kind of statement."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.lab.inside import ledger
from tests.unit.support.binlog_file import read_tail
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, parse_gtids
from zsnapdb.base.errors import DamagedError
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains
from zsnapdb.mysql.binlog.events import HEADER, MAGIC
from zsnapdb.mysql.binlog.tail import KnownTail, find_position

from .binlog_flavours import EVERYTHING, FLAVOUR, KINDS, WORDS
from .in_guest import SOCKET, Lab, run

FOLDER = Path("/var/lib/mysql")
INDEX = FOLDER / "binlog.index"


@dataclass
class Server:
    """The server with the database of these tests: two connections for statements, one for the status."""

    lab: Lab
    lines: Path
    open: dict[str, pymysql.Connection[Any]] = field(default_factory=dict)
    known: KnownTail | None = None

    def connection(self, name: str) -> pymysql.Connection[Any]:
        if name not in self.open:
            self.open[name] = ledger.connect(SOCKET, "root", "", "tail")
        return self.open[name]

    def rows(self, statement: str, name: str = "truth") -> list[tuple[Any, ...]]:
        with self.connection(name).cursor() as cursor:
            cursor.execute(statement.replace("{lines}", str(self.lines)))
            return list(cursor.fetchall())

    def step(self, step: str) -> None:
        match = re.fullmatch(r"(?:(b): )?(fails: )?(.*)", step, re.DOTALL)
        assert match is not None
        name, fails, statement = match.group(1) or "a", match.group(2), match.group(3)
        if statement == "leaves":
            self.leave(name)
        elif fails:
            with pytest.raises(pymysql.MySQLError):
                self.rows(statement, name)
        else:
            self.rows(statement, name)

    def leave(self, name: str) -> None:
        """Close a connection and wait until the server has removed it.

        Only then other connections can end its prepared transactions.
        """
        ((number,),) = self.rows("SELECT CONNECTION_ID()", name)
        self.open.pop(name).close()
        deadline = time.monotonic() + 300
        while self.rows(f"SELECT id FROM information_schema.processlist WHERE id = {number}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def leave_all(self) -> None:
        for name in sorted(self.open.keys() - {"truth"}):
            self.leave(name)

    def says(self) -> tuple[BinlogCoordinates, Gtids]:
        """Return the end of the newest binlog and the executed GTIDs, as the server reports them."""
        status, variable = (
            ("BINARY LOG", "gtid_executed") if FLAVOUR is Flavour.MYSQL else ("MASTER", "gtid_binlog_pos")
        )
        (row,) = self.rows(f"SHOW {status} STATUS")
        ((gtids,),) = self.rows(f"SELECT @@GLOBAL.{variable}")
        return BinlogCoordinates(row[0], row[1]), parse_gtids(FLAVOUR, gtids)

    def compare(self, after: str) -> None:
        """Check that the tail of the newest binlog is what the server reports.

        MariaDB adds checkpoints by itself, so the server is asked before and after the read.
        """
        deadline = time.monotonic() + 300
        while True:
            said = self.says()
            position = find_position(INDEX, FOLDER, FLAVOUR, None, has_gtids=True).position
            from_known = find_position(INDEX, FOLDER, FLAVOUR, self.known, has_gtids=True)
            if self.says() == said:
                break
            assert time.monotonic() < deadline
        assert (position.coordinates, str(position.gtids)) == (said[0], str(said[1])), f"after {after}"
        assert from_known.position == position, f"after {after}, from {self.known}"
        self.known = from_known.tail

    def live(self) -> Path:
        return FOLDER / self.says()[0].file


@pytest.fixture(scope="module")
def server(lab: Lab) -> Iterator[Server]:
    allowed = lab.sql("SELECT @@secure_file_priv")[0][0]
    lines = Path(allowed or "/tmp") / "zsnapdb-tail.txt"
    lines.parent.mkdir(exist_ok=True)
    lines.write_text("".join(f"line {n}\n" for n in range(50)))
    lines.chmod(0o644)
    lab.sql("CREATE DATABASE tail")
    server_of_lab = Server(lab, lines)
    try:
        server_of_lab.rows("CREATE TABLE i (id INT PRIMARY KEY AUTO_INCREMENT, b LONGTEXT) ENGINE=InnoDB")
        server_of_lab.rows("CREATE TABLE j LIKE i")
        server_of_lab.rows("CREATE TABLE m (id INT PRIMARY KEY AUTO_INCREMENT, b LONGTEXT) ENGINE=MyISAM")
        # The rows that every system test begins with are large; without them a file is read in no time.
        server_of_lab.rows("FLUSH BINARY LOGS")
        yield server_of_lab
    finally:
        server_of_lab.leave_all()
        for _, length, branch, data in server_of_lab.rows("XA RECOVER"):
            server_of_lab.rows(f"XA ROLLBACK '{data[:length]}', '{data[length : length + branch]}'")
        lab.sql("DROP DATABASE tail")
        server_of_lab.open["truth"].close()
        lines.unlink()


@pytest.mark.parametrize("name", KINDS)
def test_the_tail_is_where_the_server_says_it_is_after_each_statement(server: Server, name: str) -> None:
    kind = KINDS[name]
    start, _ = server.says()
    try:
        for statement in kind.before:
            server.step(statement)
            server.compare(statement)
        server.leave_all()
        for statement in kind.steps:
            server.step(statement)
            server.compare(statement)
    finally:
        server.leave_all()
        for statement in kind.after:
            server.step(statement)
    server.compare("all was set back")
    assert types_since(start) >= kind.writes


def types_since(start: BinlogCoordinates) -> set[int]:
    """Return the types of the events after a position, from their headers."""
    names = [Path(line).name for line in INDEX.read_text().splitlines()]
    types: set[int] = set()
    for name in names[names.index(start.file) :]:
        data, at = (FOLDER / name).read_bytes(), start.offset if name == start.file else len(MAGIC)
        while at < len(data):
            _, kind, _, length, _, _ = HEADER.unpack_from(data, at)
            types.add(kind)
            at += length
    return types


def header_of(path: Path, folder: Path) -> Path:
    """A copy of a file's first two events: its format, and the GTIDs before it."""
    data, end = path.read_bytes(), len(MAGIC)
    for _ in range(2):
        end += HEADER.unpack_from(data, end)[3]
    copy = folder / path.name
    copy.write_bytes(data[:end])
    return copy


def test_each_file_is_complete_and_ends_with_the_gtids_the_next_begins_with(server: Server, tmp_path: Path) -> None:
    files = [FOLDER / Path(line).name for line in INDEX.read_text().splitlines()]
    assert len(files) > 2
    for file, following in pairwise(files):
        tail = read_tail(file)
        assert (tail.offset, tail.unfinished) == (file.stat().st_size, 0), file.name
        assert str(tail.gtids) == str(read_tail(header_of(following, tmp_path)).gtids), file.name


@dataclass(frozen=True)
class Truth:
    """A binlog as the server's own tool shows it.

    The starts of the events, and for each complete transaction its end and the GTIDs up to the end.
    """

    data: bytes
    starts: list[int]
    ends: list[tuple[int, Gtids]]


_EVENT = re.compile(r"#\d{6} .* end_log_pos \d+ (?:CRC32 0x[0-9a-f]{8} )?\t(.*)")
_BETWEEN = ("Start: ", "Previous-GTIDs", "Gtid list ", "Binlog checkpoint ", "Rotate to ", "Stop")


def truth_of(path: Path, tool: str, before: Gtids) -> Truth:
    """Read a file with the server's tool.

    A transaction lasts until the next transaction starts, or an event outside of transactions.
    """
    text = run(tool, str(path)).stdout
    assert [word for word in WORDS[FLAVOUR] if word not in text] == []
    starts: list[int] = []
    marks: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"# at (\d+)", line):
            starts.append(int(match.group(1)))
        elif match := _EVENT.fullmatch(line):
            what = match.group(1)
            if what.startswith(("GTID", *_BETWEEN)):
                gtid = re.match(r"GTID (\d+-\d+-\d+) ", what)
                marks.append((starts[-1], gtid.group(1) if gtid else ""))
        elif match := re.match(r"SET @@SESSION.GTID_NEXT= '(\S+:\d+)'", line):
            marks[-1] = (marks[-1][0], match.group(1))
    data, gtids, ends = path.read_bytes(), before, []
    for (_, name), end in zip(marks, [*[start for start, _ in marks[1:]], len(data)], strict=True):
        if name and isinstance(gtids, GtidSet):
            gtids = gtids.union(GtidSet.parse(name))
        elif name and isinstance(gtids, GtidPosition):
            domain, number, sequence = (int(word) for word in name.split("-"))
            gtids = GtidPosition(dict(sorted({**gtids.heads, domain: (number, sequence)}.items())))
        ends.append((end, gtids))
    return Truth(data, sorted(set(starts)), ends)


@pytest.fixture(scope="module")
def truth(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A copy of a live file with transactions of nearly all kinds."""
    server.step("FLUSH BINARY LOGS")
    server.compare("FLUSH BINARY LOGS")
    before = server.says()[1]
    try:
        for statement in EVERYTHING:
            server.step(statement)
    finally:
        server.leave_all()
    server.compare("everything")
    position, gtids = server.says()
    copy = tmp_path_factory.mktemp("binlog") / position.file
    copy.write_bytes((FOLDER / position.file).read_bytes())
    truth_of_copy = truth_of(copy, server.lab.binlog_tool, before)
    assert len(truth_of_copy.ends) > 80
    assert (truth_of_copy.ends[-1][0], str(truth_of_copy.ends[-1][1])) == (position.offset, str(gtids))
    return truth_of_copy


def test_a_file_cut_anywhere_ends_at_the_last_transaction_complete_before_the_cut(truth: Truth, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(truth.data)
    whole = [*truth.starts, len(truth.data)]
    cuts = {0, 1, 2, 3, *whole}
    for start, end in pairwise(whole):
        cuts |= {start + 1, start + HEADER.size - 1, start + HEADER.size, (start + end) // 2, end - 1}
    headers = truth.ends[1][0]
    ends = [(0, None), (len(MAGIC), None), *truth.ends]
    previous: Gtids = truth.ends[0][1]
    for cut in sorted(cuts, reverse=True):
        os.truncate(path, cut)
        tail = read_tail(path)
        while ends[-1][0] > cut:
            ends.pop()
        offset, gtids = ends[-1]
        assert (tail.offset, tail.unfinished) == (offset, cut - offset), f"cut at {cut}"
        if offset < headers:
            continue
        assert str(tail.gtids) == str(gtids), f"cut at {cut}"
        assert tail.gtids is not None
        assert cut == len(truth.data) or contains(previous, tail.gtids), f"cut at {cut}"
        previous = tail.gtids


def test_a_wrong_bit_before_the_last_event_is_damage(truth: Truth, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    for start, end in list(pairwise(truth.starts))[:60]:
        has_next = HEADER.unpack_from(truth.data, start)[4] != 0
        # Inside of transactions MariaDB 11 does not say where the next event starts; a size beyond the end of the file
        # looks like a cut.
        places = [n for n in range(HEADER.size) if has_next or n not in range(9, 13)]
        for at in (
            *(start + n for n in places),
            start + HEADER.size,
            (start + HEADER.size + end) // 2,
            end - 5,
            end - 4,
            end - 1,
        ):
            data = bytearray(truth.data)
            data[at] ^= 0x40
            path.write_bytes(data)
            with pytest.raises(DamagedError, match="the event at"):
                read_tail(path)


def test_while_a_rotation_is_under_way_the_position_is_the_end_of_one_file_or_the_start_of_the_next(
    server: Server, tmp_path: Path
) -> None:
    server.step("INSERT INTO i (b) VALUES ('the last of its file')")
    gtids = server.says()[1]
    server.step("FLUSH BINARY LOGS")
    server.compare("FLUSH BINARY LOGS")
    (tmp_path / "binlog.index").write_text("".join(f"{line}\n" for line in INDEX.read_text().splitlines()[-2:]))
    old, new = (Path(line).name for line in INDEX.read_text().splitlines()[-2:])
    (tmp_path / old).write_bytes((FOLDER / old).read_bytes())
    end = BinlogCoordinates(old, (FOLDER / old).stat().st_size)
    data = header_of(FOLDER / new, tmp_path).read_bytes()
    for size in range(len(data), -1, -3):
        os.truncate(tmp_path / new, size)
        position = find_position(tmp_path / "binlog.index", tmp_path, FLAVOUR, None, has_gtids=True).position
        assert position.coordinates == (end if size < len(data) else BinlogCoordinates(new, size)), f"{size} bytes"
        assert str(position.gtids) == str(gtids), f"{size} bytes"

"""What the binlog reader says of a server's newest binlog is what the server itself says of it, after every kind of statement."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import ledger
import pymysql
import pytest

from zsnapdb.errors import DamagedError, PreflightError
from zsnapdb.gtid import GtidPosition, Gtids, GtidSet, contains
from zsnapdb.model import BinlogCoordinates, Flavour, parse_gtids
from zsnapdb.mysql.binlog import position_in, read_tail
from zsnapdb.mysql.binlog_events import HEADER, MAGIC

from .conftest import SOCKET, Lab, run

FOLDER = Path("/var/lib/mysql")
INDEX = FOLDER / "binlog.index"
FLAVOUR = Flavour(os.environ.get("LAB_FLAVOUR", "mysql"))
FOREIGN = "aaaaaaaa-0000-0000-0000-0000000000ff"


@dataclass(frozen=True)
class Kind:
    """Statements of one kind. `b: …` runs on a second connection, `fails: …` must be refused, `b: leaves` closes the connection.

    `before` and `after` change settings of the whole server and change them back. `writes` are the types of the events that the
    kind is here for: without them it would prove nothing.
    """

    steps: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    writes: frozenset[int] = frozenset()


def setting(name: str, value: str, usual: str, *steps: str, writes: frozenset[int] = frozenset()) -> Kind:
    """A kind under a setting of the whole server."""
    return Kind(steps, (f"SET GLOBAL {name} = {value}",), (f"SET GLOBAL {name} = {usual}",), writes)


ROTATE, INTVAR, RAND, USER_VAR, BEGIN_LOAD, EXECUTE_LOAD, INCIDENT, ROWS_QUERY = 4, 5, 13, 14, 17, 18, 26, 29
ANONYMOUS_GTID, XA_PREPARE, PAYLOAD, TAGGED_GTID, QUERY_COMPRESSED, ROWS_COMPRESSED = 34, 38, 40, 42, 165, 166


PLAIN = (
    "INSERT INTO i (b) VALUES ('autocommit')",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('one'), ('two')",
    "UPDATE i SET b = 'COMMIT' WHERE b = 'one'",
    "commit",
    "START TRANSACTION",
    "INSERT INTO i (b) VALUES ('gone')",
    "rollback",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('kept')",
    "SAVEPOINT here",
    "INSERT INTO i (b) VALUES ('not kept')",
    "ROLLBACK TO here",
    "RELEASE SAVEPOINT here",
    "COMMIT",
    "UPDATE i SET b = 'nothing' WHERE id < 0",
    "/* COMMIT */ INSERT INTO i (b) VALUES ('ROLLBACK')",
    "INSERT INTO i (b) SELECT b FROM i LIMIT 3",
    "DELETE FROM i LIMIT 1",
    "fails: INSERT INTO i (id) VALUES (99999), (99999)",
    "BEGIN",
    "COMMIT",
)
EMPTY = ("BEGIN", "SELECT 1", "COMMIT")
DEFINITIONS = (
    "CREATE TABLE d (id INT PRIMARY KEY) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS d (id INT PRIMARY KEY)",
    "fails: CREATE TABLE d (id INT PRIMARY KEY)",
    "/* BEGIN */ create table e like d",
    "-- COMMIT\ncreate table g (id int) engine=myisam",
    "ALTER TABLE d ADD COLUMN c INT",
    "ALTER TABLE d ENGINE=InnoDB",
    "CREATE INDEX c ON d (c)",
    "RENAME TABLE e TO f",
    "TRUNCATE TABLE d",
    "TRUNCATE TABLE g",
    "CREATE VIEW v AS SELECT * FROM d",
    "CREATE TRIGGER r BEFORE INSERT ON d FOR EACH ROW SET NEW.c = 1",
    "INSERT INTO d (id) VALUES (1)",
    "CREATE PROCEDURE p () BEGIN INSERT INTO d (id) VALUES (2); INSERT INTO i (b) VALUES ('p'); COMMIT; END",
    "CALL p()",
    "CREATE FUNCTION n () RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO i (b) VALUES ('f'); RETURN 1; END",
    "SELECT n()",
    "CREATE EVENT later ON SCHEDULE AT '2037-01-01 00:00:00' DISABLE DO SET @x = 1",
    "DROP EVENT later",
    "CREATE USER tail_user@localhost IDENTIFIED BY 'x'",
    "GRANT SELECT ON tail.* TO tail_user@localhost",
    "ALTER USER tail_user@localhost IDENTIFIED BY 'y'",
    "DROP USER tail_user@localhost",
    "CREATE TEMPORARY TABLE y (id INT)",
    "INSERT INTO y VALUES (1)",
    "INSERT INTO i (b) SELECT id FROM y",
    "DROP TEMPORARY TABLE y",
    "DROP TABLE IF EXISTS nothing",
    "ANALYZE TABLE d",
    "OPTIMIZE TABLE d",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('committed by the next statement')",
    "CREATE DATABASE tail2",
    "CREATE TABLE tail2.t (id INT)",
    "DROP DATABASE tail2",
    "DROP VIEW v",
    "DROP PROCEDURE p",
    "DROP FUNCTION n",
    "DROP TABLE d, f, g",
    "FLUSH TABLES",
)
COPIED = ("CREATE TABLE s SELECT * FROM i", "CREATE TABLE s2 SELECT * FROM i WHERE id < 0", "DROP TABLE s, s2")
# MySQL refuses this where it gives GTIDs.
COPIED_WITHOUT_TRANSACTIONS = ("CREATE TABLE s3 ENGINE=MyISAM SELECT * FROM i LIMIT 2", "DROP TABLE s3")
NO_TRANSACTIONS = (
    "INSERT INTO m (b) VALUES ('one')",
    "UPDATE m SET b = 'two'",
    "BEGIN",
    "INSERT INTO m (b) VALUES ('kept, whatever follows')",
    "ROLLBACK",
    "BEGIN",
    "INSERT INTO m (b) VALUES ('kept')",
    "COMMIT",
    "fails: INSERT INTO m (id) VALUES (99999), (99999)",
    "DELETE FROM m LIMIT 2",
)
MIXED_ENGINES = (
    "BEGIN",
    "INSERT INTO i (b) VALUES ('one')",
    "INSERT INTO m (b) VALUES ('one')",
    "COMMIT",
    "BEGIN",
    "INSERT INTO m (b) VALUES ('one')",
    "INSERT INTO i (b) VALUES ('one')",
    "rollback",
    "BEGIN",
    "INSERT INTO i (b) VALUES ('one')",
    "INSERT INTO m (b) VALUES ('one')",
    "SAVEPOINT here",
    "INSERT INTO m (b) VALUES ('two')",
    "INSERT INTO i (b) VALUES ('two')",
    "ROLLBACK TO SAVEPOINT here",
    "Rollback",
    "UPDATE i, m SET i.b = 'both', m.b = 'both' WHERE i.id = m.id",
    *COPIED_WITHOUT_TRANSACTIONS,
)
ALL_MIXED_ENGINES = (
    *MIXED_ENGINES,
    "SET SESSION binlog_format = STATEMENT",
    *MIXED_ENGINES,
    "SET SESSION binlog_direct_non_transactional_updates = ON",
    *MIXED_ENGINES,
)
STATEMENTS = (
    *PLAIN,
    *NO_TRANSACTIONS,
    "SET @b = 'variable'",
    "INSERT INTO i (b) VALUES (@b)",
    "INSERT INTO m (b) VALUES (@b)",
    "INSERT INTO i (b) VALUES (RAND())",
    "INSERT INTO m (b) VALUES (LAST_INSERT_ID())",
    "LOAD DATA INFILE '{lines}' INTO TABLE i (b)",
    "LOAD DATA INFILE '{lines}' INTO TABLE m (b)",
    "CREATE PROCEDURE p2 () BEGIN INSERT INTO i (b) VALUES ('p'); INSERT INTO m (b) VALUES ('p'); END",
    "CALL p2()",
    "DROP PROCEDURE p2",
    "CREATE FUNCTION n2 () RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO j (b) VALUES ('f'); RETURN 1; END",
    "SELECT n2()",
    "INSERT INTO i (b) VALUES (n2())",
    "DROP FUNCTION n2",
    "CREATE TEMPORARY TABLE y2 (id INT) ENGINE=MyISAM",
    "INSERT INTO y2 VALUES (1)",
    "INSERT INTO i (b) SELECT id FROM y2",
    "DROP TEMPORARY TABLE y2",
    "CREATE TABLE s4 (id INT)",
    "DROP TABLE s4",
)
ROTATION = ("FLUSH BINARY LOGS", "INSERT INTO i (b) VALUES ('new file')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
LARGE = (
    "BEGIN",
    "INSERT INTO i (b) VALUES (REPEAT('x', 1000000))",
    "INSERT INTO i (b) VALUES (REPEAT('y', 1000000))",
    "INSERT INTO i (b) SELECT b FROM i WHERE LENGTH(b) = 1000000",
    "COMMIT",
    "DELETE FROM i WHERE LENGTH(b) = 1000000",
    "FLUSH BINARY LOGS",
)
# A change that cannot be rolled back and does not fit the cache: the server notes an incident in its binlog, and rotates.
NOT_LOGGED = setting(
    "max_binlog_stmt_cache_size",
    "4096",
    "DEFAULT",
    "INSERT INTO i (b) VALUES ('before')",
    "fails: INSERT INTO m (b) SELECT REPEAT('x', 9000) FROM (SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6) six",
    "INSERT INTO i (b) VALUES ('after')",
    writes=frozenset({INCIDENT}),
)
XA = (
    "XA START 'one'",
    "INSERT INTO i (b) VALUES ('one')",
    "XA END 'one'",
    "XA PREPARE 'one'",
    "leaves",
    "b: INSERT INTO i (b) VALUES ('meanwhile')",
    "b: XA COMMIT 'one'",
    "XA START 'two', 'branch', 5",
    "INSERT INTO i (b) VALUES ('two')",
    "XA END 'two', 'branch', 5",
    "XA PREPARE 'two', 'branch', 5",
    "b: INSERT INTO i (b) VALUES ('meanwhile')",
    "leaves",
    "b: XA ROLLBACK 'two', 'branch', 5",
    "XA START 'three'",
    "INSERT INTO i (b) VALUES ('three')",
    "XA END 'three'",
    "XA COMMIT 'three' ONE PHASE",
    "XA START 'four'",
    "INSERT INTO i (b) VALUES ('four')",
    "XA END 'four'",
    "XA ROLLBACK 'four'",
    "XA START 'five'",
    "INSERT INTO i (b) VALUES ('five')",
    "XA END 'five'",
    "XA PREPARE 'five'",
    "XA COMMIT 'five'",
    "XA START 'six'",
    "XA END 'six'",
    "XA PREPARE 'six'",
    "XA COMMIT 'six'",
)


def tags(tag: str, other: str, number: int) -> tuple[str, ...]:
    """Transactions with tags; those with a number of their own can be made only once."""
    return (
        f"SET gtid_next = 'AUTOMATIC:{tag}'",
        "INSERT INTO i (b) VALUES ('tag')",
        "CREATE TABLE w (id INT)",
        "BEGIN",
        "INSERT INTO i (b) VALUES ('tag')",
        "COMMIT",
        "SET gtid_next = 'AUTOMATIC:_a_tag_of_thirty_two_characters_'",
        "INSERT INTO i (b) VALUES ('long')",
        "DROP TABLE w",
        *[
            step
            for n in (70, 73, 72, 2**31, 5_000_000_000, 2**56 + 1, 2**63 - 2)
            for step in (f"SET gtid_next = '{FOREIGN}:{tag}:{n}'", f"INSERT INTO i (b) VALUES ('{n}')")
        ],
        f"SET gtid_next = '{FOREIGN}:{tag}:75'",
        "INSERT INTO m (b) VALUES ('75')",
        f"SET gtid_next = '{FOREIGN}:{other}:1'",
        "BEGIN",
        "COMMIT",
        f"SET gtid_next = '{FOREIGN}:{other}:2'",
        "CREATE TABLE w (id INT)",
        f"SET gtid_next = '{FOREIGN}:{number}'",
        "DROP TABLE w",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO i (b) VALUES ('no tag')",
    )


def new_files(tag: str) -> tuple[str, ...]:
    """Files whose header has tags."""
    return (
        "FLUSH BINARY LOGS",
        "INSERT INTO i (b) VALUES ('no tag')",
        f"SET gtid_next = 'AUTOMATIC:{tag}'",
        "INSERT INTO i (b) VALUES ('tag')",
        "FLUSH BINARY LOGS",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO i (b) VALUES ('no tag')",
    )


def empty(first: int) -> tuple[str, ...]:
    """Transactions of MySQL with nothing in them, for which it has GTIDs."""
    return (
        f"SET gtid_next = '{FOREIGN}:{first + 1}'",
        "BEGIN",
        "COMMIT",
        f"SET gtid_next = '{FOREIGN}:{first}'",
        "COMMIT",
        f"SET gtid_next = '{FOREIGN}:{first + 4}'",
        "BEGIN",
        "INSERT INTO i (b) VALUES ('gone')",
        "ROLLBACK",
        "SET gtid_next = 'AUTOMATIC'",
    )


CHECKSUMS = (
    "INSERT INTO i (b) VALUES ('before')",
    "SET GLOBAL binlog_checksum = NONE",
    *PLAIN,
    *NO_TRANSACTIONS,
    "CREATE TABLE x (id INT)",
    "DROP TABLE x",
    "FLUSH BINARY LOGS",
    "INSERT INTO i (b) VALUES ('none')",
    "SET GLOBAL binlog_checksum = CRC32",
    "INSERT INTO i (b) VALUES ('after')",
)

BOTH = {
    "transactions": Kind((*PLAIN, *EMPTY)),
    "definitions": Kind(DEFINITIONS),
    "tables made of others": Kind(COPIED),
    "engines without transactions": Kind(NO_TRANSACTIONS),
    "statement format": Kind(("SET SESSION binlog_format = STATEMENT", *STATEMENTS), writes=frozenset({INTVAR, RAND, USER_VAR, BEGIN_LOAD, EXECUTE_LOAD})),
    "mixed format": Kind(("SET SESSION binlog_format = MIXED", *STATEMENTS, "INSERT INTO i (b) VALUES (UUID())")),
    "definitions in statement format": Kind(("SET SESSION binlog_format = STATEMENT", *DEFINITIONS, *COPIED)),
    "rotation": Kind(ROTATION),
    "large transactions": Kind(LARGE),
    "xa": Kind(XA, writes=frozenset({XA_PREPARE})),
    "changes that could not be logged": NOT_LOGGED,
    "checksums off and on": Kind(CHECKSUMS, after=("SET GLOBAL binlog_checksum = CRC32",)),
}
COMPRESSED = "SET SESSION binlog_transaction_compression = ON"
MYSQL = {
    "tags": Kind((*tags("blue", "green", 5), *new_files("blue")), writes=frozenset({TAGGED_GTID})),
    "compressed": Kind((COMPRESSED, *PLAIN, *DEFINITIONS, *COPIED, *NO_TRANSACTIONS, *LARGE), writes=frozenset({PAYLOAD})),
    "compressed xa": Kind((COMPRESSED, *XA), writes=frozenset({XA_PREPARE})),
    "compressed tags": Kind((COMPRESSED, *tags("lime", "rose", 6), *new_files("lime")), writes=frozenset({PAYLOAD, TAGGED_GTID})),
    "empty transactions": Kind(empty(10)),
    "no gtids": Kind(
        (*PLAIN, *ALL_MIXED_ENGINES, "SET SESSION binlog_format = MIXED", *STATEMENTS),
        ("SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = OFF_PERMISSIVE", "SET GLOBAL enforce_gtid_consistency = OFF"),
        ("SET GLOBAL enforce_gtid_consistency = ON", "SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = ON"),
        frozenset({ANONYMOUS_GTID}),
    ),
    "statements beside rows": Kind(("SET SESSION binlog_rows_query_log_events = ON", *PLAIN), writes=frozenset({ROWS_QUERY})),
}
DOMAINS = (
    "SET SESSION gtid_domain_id = 7",
    "INSERT INTO i (b) VALUES ('seven')",
    "SET SESSION server_id = 5",
    "INSERT INTO i (b) VALUES ('seven, five')",
    "SET SESSION server_id = 4",
    "INSERT INTO i (b) VALUES ('seven, four')",
    "SET SESSION server_id = 5",
    "CREATE TABLE w (id INT)",
    "SET SESSION gtid_domain_id = 4294967295",
    "INSERT INTO m (b) VALUES ('the last domain there can be')",
    "SET SESSION gtid_domain_id = 7, server_id = 1",
    "DROP TABLE w",
)
REPLACED = (
    "CREATE OR REPLACE TABLE o (id INT)",
    "CREATE OR REPLACE TABLE o SELECT * FROM i",
    "CREATE OR REPLACE TABLE o (id INT) ENGINE=MyISAM",
    "CREATE OR REPLACE VIEW ov AS SELECT 1",
    "DROP VIEW ov",
    "DROP TABLE o",
)
TWO_PHASES = (
    "SET SESSION binlog_alter_two_phase = ON",
    "ALTER TABLE i ADD COLUMN c INT",
    "ALTER TABLE m ADD COLUMN c INT",
    "INSERT INTO i (c) VALUES (1), (1)",
    "fails: ALTER TABLE i ADD UNIQUE (c)",
    "fails: ALTER TABLE i ADD UNIQUE (c), ALGORITHM=COPY",
    "ALTER TABLE i DROP COLUMN c",
    "ALTER TABLE m DROP COLUMN c",
)
SEQUENCES = (
    "CREATE SEQUENCE q CACHE 2",
    "SELECT NEXTVAL(q)",
    "SELECT NEXTVAL(q)",
    "SELECT NEXTVAL(q)",
    "BEGIN",
    "SELECT NEXTVAL(q), NEXTVAL(q)",
    "INSERT INTO i (b) VALUES (NEXTVAL(q))",
    "COMMIT",
    "SELECT SETVAL(q, 100)",
    "ALTER SEQUENCE q INCREMENT 2",
    "SET SESSION binlog_format = MIXED",
    "INSERT INTO i (b) VALUES (NEXTVAL(q))",
    "DROP SEQUENCE q",
)
MARIADB = {
    "transactions over several engines": Kind(ALL_MIXED_ENGINES),
    "domains and servers": Kind((*DOMAINS, "FLUSH BINARY LOGS", "SET SESSION gtid_domain_id = 0", "INSERT INTO i (b) VALUES ('zero')", "FLUSH BINARY LOGS")),
    "compressed": setting(
        "log_bin_compress", "ON", "OFF", *PLAIN, *DEFINITIONS, *COPIED, *MIXED_ENGINES, *LARGE, *XA, writes=frozenset({ROWS_COMPRESSED, XA_PREPARE})
    ),
    "compressed statements": Kind(
        ("SET SESSION binlog_format = STATEMENT", *STATEMENTS, *DEFINITIONS, *MIXED_ENGINES, *LARGE, *XA),
        ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10"),
        ("SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = DEFAULT"),
        frozenset({QUERY_COMPRESSED, XA_PREPARE}),
    ),
    "aria": Kind(
        (
            "CREATE TABLE a (id INT PRIMARY KEY, b TEXT) ENGINE=Aria TRANSACTIONAL=1",
            "INSERT INTO a VALUES (1, 'one')",
            "BEGIN",
            "INSERT INTO a VALUES (2, 'two')",
            "INSERT INTO i (b) VALUES ('two')",
            "ROLLBACK",
            "DROP TABLE a",
        )
    ),
    "atomic replacement": Kind(REPLACED),
    "alter in two phases": Kind(TWO_PHASES),
    "sequences": Kind(SEQUENCES),
    "compound statements": Kind(("BEGIN NOT ATOMIC START TRANSACTION; INSERT INTO i (b) VALUES ('c'); COMMIT; INSERT INTO m (b) VALUES ('c'); END",)),
    "xa in statement format": Kind(("SET SESSION binlog_format = STATEMENT", *XA)),
    "commits by rename": setting(
        "binlog_large_commit_threshold",
        "10485760",
        "DEFAULT",
        "INSERT INTO i (b) VALUES (REPEAT('x', 1000000))",
        "BEGIN",
        "INSERT INTO i (b) SELECT x.b FROM i AS x, seq_1_to_12 WHERE LENGTH(x.b) = 1000000",
        "COMMIT",
        "INSERT INTO i (b) VALUES ('after')",
        "DELETE FROM i WHERE LENGTH(b) = 1000000",
        # The file of the transaction's cache becomes the next binlog.
        writes=frozenset({ROTATE}),
    ),
}
KINDS = {**BOTH, **(MYSQL if FLAVOUR is Flavour.MYSQL else MARIADB)}
# One file with a little of everything, to be cut and damaged. MySQL is given GTIDs of its own again, as they can be made only once.
ALSO = {
    Flavour.MYSQL: (*tags("cut", "cut_too", 7), *empty(20), COMPRESSED, *PLAIN, *COPIED, *NO_TRANSACTIONS),
    Flavour.MARIADB: (*DOMAINS, *REPLACED, *TWO_PHASES, *SEQUENCES, *ALL_MIXED_ENGINES),
}
WORDS = {
    Flavour.MYSQL: ("Transaction_Payload", "XA PREPARE", "XA COMMIT", "XA ROLLBACK", "START TRANSACTION", ":cut_too:1'", ":cut:9223372036854775806'"),
    Flavour.MARIADB: (" START ALTER ", " COMMIT ALTER ", " ROLLBACK ALTER ", "XA PREPARE", "XA COMMIT", "XA ROLLBACK", "4294967295-5-"),
}
EVERYTHING = (*PLAIN, *NO_TRANSACTIONS, *COPIED, *XA, *ALSO[FLAVOUR], "SET SESSION binlog_format = STATEMENT", *STATEMENTS)


@dataclass
class Server:
    """The server with the database of these tests, by two connections for statements and one for what it says of itself."""

    lab: Lab
    lines: Path
    open: dict[str, pymysql.Connection[Any]] = field(default_factory=dict)

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
        """Close a connection and wait until the server has parted with it: only then others may end its prepared transactions."""
        number = self.connection(name).thread_id()
        self.open.pop(name).close()
        deadline = time.monotonic() + 300
        while self.rows(f"SELECT id FROM information_schema.processlist WHERE id = {number}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def leave_all(self) -> None:
        for name in sorted(self.open.keys() - {"truth"}):
            self.leave(name)

    def says(self) -> tuple[BinlogCoordinates, Gtids]:
        """Where the server says its newest binlog ends, and which GTIDs it has executed."""
        status, variable = ("BINARY LOG", "gtid_executed") if FLAVOUR is Flavour.MYSQL else ("MASTER", "gtid_binlog_pos")
        (row,) = self.rows(f"SHOW {status} STATUS")
        ((gtids,),) = self.rows(f"SELECT @@GLOBAL.{variable}")
        return BinlogCoordinates(row[0], row[1]), parse_gtids(FLAVOUR, gtids)

    def compare(self, after: str) -> None:
        """The tail of the newest binlog is what the server says. MariaDB adds checkpoints of its own, so it is asked before and behind."""
        deadline = time.monotonic() + 300
        while True:
            said = self.says()
            position = position_in(INDEX, FOLDER, FLAVOUR, has_gtids=True)
            if self.says() == said:
                break
            assert time.monotonic() < deadline
        assert (position.coordinates, str(position.gtids)) == (said[0], str(said[1])), f"after {after}"

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
    found = Server(lab, lines)
    try:
        found.rows("CREATE TABLE i (id INT PRIMARY KEY AUTO_INCREMENT, b LONGTEXT) ENGINE=InnoDB")
        found.rows("CREATE TABLE j LIKE i")
        found.rows("CREATE TABLE m (id INT PRIMARY KEY AUTO_INCREMENT, b LONGTEXT) ENGINE=MyISAM")
        # The rows that every system test begins with are large; without them a file is read in no time.
        found.rows("FLUSH BINARY LOGS")
        yield found
    finally:
        found.leave_all()
        for _, length, branch, data in found.rows("XA RECOVER"):
            found.rows(f"XA ROLLBACK '{data[:length]}', '{data[length : length + branch]}'")
        lab.sql("DROP DATABASE tail")
        found.open["truth"].close()
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
    """The types of the events behind a position, headers only."""
    names = [Path(line).name for line in INDEX.read_text().splitlines()]
    found: set[int] = set()
    for name in names[names.index(start.file) :]:
        data, at = (FOLDER / name).read_bytes(), start.offset if name == start.file else len(MAGIC)
        while at < len(data):
            _, kind, _, length, _, _ = HEADER.unpack_from(data, at)
            found.add(kind)
            at += length
    return found


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
    """A file as the server's own tool tells it: where its events start, and per complete transaction its end and the GTIDs up to there."""

    data: bytes
    starts: list[int]
    ends: list[tuple[int, Gtids]]


_EVENT = re.compile(r"#\d{6} .* end_log_pos \d+ (?:CRC32 0x[0-9a-f]{8} )?\t(.*)")
_BETWEEN = ("Start: ", "Previous-GTIDs", "Gtid list ", "Binlog checkpoint ", "Rotate to ", "Stop")


def truth_of(path: Path, tool: str, before: Gtids) -> Truth:
    """Read a file with the server's tool. A transaction lasts until the next one, or until an event that is in none, starts."""
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
                name = re.match(r"GTID (\d+-\d+-\d+) ", what)
                marks.append((starts[-1], name.group(1) if name else ""))
        elif match := re.match(r"SET @@SESSION.GTID_NEXT= '(\S+:\d+)'", line):
            marks[-1] = (marks[-1][0], match.group(1))
    data, gtids, ends = path.read_bytes(), before, []
    for (_, name), end in zip(marks, [*[start for start, _ in marks[1:]], len(data)], strict=True):
        if name and isinstance(gtids, GtidSet):
            gtids = gtids.union(GtidSet.parse(name))
        elif name and isinstance(gtids, GtidPosition):
            domain, number, sequence = (int(word) for word in name.split("-"))
            gtids = gtids.advance(domain, number, sequence)
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
    found = truth_of(copy, server.lab.binlog_tool, before)
    assert len(found.ends) > 80
    assert (found.ends[-1][0], str(found.ends[-1][1])) == (position.offset, str(gtids))
    return found


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
        # Inside of transactions MariaDB 11 does not say where the next event starts; a size beyond the end of the file looks like a cut.
        places = [n for n in range(HEADER.size) if has_next or n not in range(9, 13)]
        for at in (*(start + n for n in places), start + HEADER.size, (start + HEADER.size + end) // 2, end - 5, end - 4, end - 1):
            data = bytearray(truth.data)
            data[at] ^= 0x40
            path.write_bytes(data)
            with pytest.raises(DamagedError, match="the event at"):
                read_tail(path)


def test_while_a_rotation_is_under_way_the_position_is_the_end_of_one_file_or_the_start_of_the_next(server: Server, tmp_path: Path) -> None:
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
        position = position_in(tmp_path / "binlog.index", tmp_path, FLAVOUR, has_gtids=True)
        assert position.coordinates == (end if size < len(data) else BinlogCoordinates(new, size)), f"{size} bytes"
        assert str(position.gtids) == str(gtids), f"{size} bytes"


@pytest.mark.skipif(FLAVOUR is Flavour.MYSQL, reason="the lab's MySQL has no keyring component, and without one it encrypts no binlog")
def test_a_binlog_that_a_server_encrypted_is_named_as_such(lab: Lab, tmp_path: Path) -> None:
    key, log = tmp_path / "key", tmp_path / "log.err"
    key.write_text(f"1;{'5a' * 32}\n")
    files = {"datadir": ".", "socket": "socket", "pid-file": "pid", "log-bin": "enc", "file-key-management-filename": "key", "log-error": "log.err"}
    options = [f"--{option}={tmp_path / file}" for option, file in files.items()]
    flags = ["--user=root", "--server-id=9", "--skip-grant-tables", "--skip-networking", "--skip-innodb", "--default-storage-engine=Aria"]
    process = subprocess.Popen(["mariadbd", "--no-defaults", *flags, *options, "--plugin-load-add=file_key_management", "--encrypt-binlog"])
    try:
        deadline = time.monotonic() + 300
        while not (log.exists() and "ready for connections" in log.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(PreflightError, match="encrypted"):
        read_tail(tmp_path / "enc.000001")

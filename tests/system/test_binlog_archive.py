"""The binlog archive holds what the server wrote, under load, with rotations, and after kills of the archiver."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.gtid import contains
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile

from .in_guest import CONFIG, SOCKET, Lab

FOLDER = Path("/var/lib/mysql")
INTERVAL = 3.0
FLAGS = 21


@pytest.fixture(scope="module")
def config(lab: Lab) -> Path:
    return lab.changed(('repository = "s3"', f'repository = "s3"\nbinlog = {{ interval = "{INTERVAL:g}s" }}'))


@pytest.fixture
def archived(lab: Lab, first: dict[str, Any], load_running: ledger.Load, config: Path) -> tuple[ArchivedFile, ...]:
    """The archive after load with rotations, during which the archiver was killed many times and terminated once."""
    chance = random.Random(3)
    for _ in range(4):
        archiver = start(config)
        time.sleep(chance.uniform(1.0, 4.0))
        lab.sql("FLUSH BINARY LOGS")
        load_running.wait_for(10)
        time.sleep(chance.uniform(0.0, 1.0))
        archiver.send_signal(signal.SIGKILL)
        archiver.communicate()
    before, deadline = set(lab.objects()), time.monotonic() + 300
    archiver = start(config)
    while set(lab.objects()) == before:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    load_running.wait_for(60)
    load_running.stop()
    once = lab.zsnapdb("binlog", "archive", "main", "--once", "--wait", "280s", config=config)
    assert (once.code, "waiting until it has archived" in once.stderr) == (0, True), once.stderr
    assert "by        the archiver that is running" in once.stdout
    archiver.send_signal(signal.SIGTERM)
    out, err = archiver.communicate(timeout=300)
    assert archiver.returncode == 0, err
    assert "GAP" not in err, err
    assert out.startswith("binlogs of main are archived to "), out
    return archive().load().files


def start(config: Path) -> subprocess.Popen[str]:
    argv = ["zsnapdb", "binlog", "archive", "main"]
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ZSNAPDB_CONFIG": str(config)},
    )


def archive() -> BinlogArchive:
    return BinlogArchive(Instance.of(load(CONFIG), "main").open_repository(), "main")


def plain(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[FLAGS] &= ~1
    return bytes(data)


def test_what_is_archived_is_what_the_server_wrote(
    lab: Lab, archived: tuple[ArchivedFile, ...], config: Path, tmp_path: Path
) -> None:
    """To the byte, to the last commit, in one incarnation without gaps.

    Times and GTIDs are those of the server and of its own tool.
    """
    names = [Path(line).name for line in (FOLDER / "binlog.index").read_text().split()]
    assert [file.name for file in archived] == names
    assert [file.is_rotated for file in archived] == [True] * (len(names) - 1) + [False]
    for file in archived:
        archive().fetch(file, tmp_path / file.name)
        assert (tmp_path / file.name).read_bytes() == plain(FOLDER / file.name)
    reached = parse_gtids(
        Flavour(lab.flavour),
        str(lab.sql(f"SELECT @@GLOBAL.{'gtid_executed' if lab.flavour == 'mysql' else 'gtid_binlog_pos'}")[0][0]),
    )
    assert archived[-1].reached is not None
    assert contains(archived[-1].reached, reached)
    assert contains(reached, archived[-1].reached)
    leftovers = [
        key for key in lab.objects() if re.search(r"/(active|segments)/", key) and archived[-1].name not in key
    ]
    assert leftovers == []
    check_times(lab, tmp_path / archived[-2].name)
    check_status(lab, archived)
    again = lab.zsnapdb("binlog", "archive", "--once", "--json", config=config).json
    assert (again["transactions"], again["begun"], again["gaps"]) == (0, None, [])


def check_times(lab: Lab, file: Path) -> None:
    """Commit times of a file are those the server's own tool prints."""
    done = subprocess.run(
        [lab.binlog_tool, str(file)],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "TZ": "UTC"},
        check=True,
    )
    with file.open("rb") as opened:
        archived = list(transactions(opened, file.name))
    assert len(archived) > 10
    if lab.flavour == "mysql":
        stamps = re.findall(r"^# immediate_commit_timestamp=(\d+)", done.stdout, re.MULTILINE)
        assert [t.committed for t in archived] == [int(number) for number in stamps]
        assert all(t.is_exact for t in archived)
        return
    printed: dict[str, float] = {}
    for when, gtid in re.findall(r"^#(\d{6} +[\d:]+) server id \d+ .*\tGTID ([\d-]+)", done.stdout, re.MULTILINE):
        printed[gtid] = datetime.strptime(f"{' '.join(when.split())} +0000", "%y%m%d %H:%M:%S %z").timestamp()
    assert set(printed) == {t.gtid for t in archived}
    assert all(0 <= t.committed / 1e6 - printed[str(t.gtid)] <= 1 for t in archived)


def check_status(lab: Lab, archived: tuple[ArchivedFile, ...]) -> None:
    """From the first backup to the last commit everything can be recovered, and the status says so."""
    # What other tests left in the repository may be worth a warning, which is an exit code of its own.
    status = json.loads(lab.zsnapdb("status", "main", "--json").stdout)
    assert status["gaps"] == []
    assert [part["backups"] != [] for part in status["recoverable"]] == [True]
    assert status["recoverable"][0]["to"] == status["binlog"]["complete_until"] >= status["binlog"]["last_commit"]
    assert (status["binlog"]["file"], status["binlog"]["offset"]) == (archived[-1].name, archived[-1].end)
    assert 0 <= status["binlog"]["lag_seconds"] < 300
    rows = lab.zsnapdb("binlog", "status", "main", "--json").json["incarnations"]
    assert [[file["name"] for file in row["files"]] for row in rows] == [[file.name for file in archived]]
    assert all(file["gap"] is None for row in rows for file in row["files"])


def test_a_commit_is_dated_when_it_was_made_and_not_when_it_was_begun(lab: Lab, tmp_path: Path) -> None:
    """Of a transaction that took seconds, of a statement that took seconds."""
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("CREATE TABLE IF NOT EXISTS ledger.dated (id INT PRIMARY KEY)")
        cursor.execute("BEGIN")
        cursor.execute("REPLACE INTO ledger.dated VALUES (1)")
        time.sleep(2.5)
        before = time.time()
        cursor.execute("COMMIT")
        after = time.time()
        cursor.execute("SELECT id FROM ledger.dated")
    name = Path((FOLDER / "binlog.index").read_text().split()[-1]).name
    with (FOLDER / name).open("rb") as file:
        transaction = list(transactions(file, name))[-1]
    slack = 0.0 if transaction.is_exact else 1.0
    assert before - slack <= transaction.committed / 1e6 <= after


def test_the_archive_is_not_called_complete_for_a_time_that_a_running_statement_may_get(lab: Lab) -> None:
    """MariaDB dates a transaction of one statement by the start of the statement, MySQL by its commit."""
    lab.sql("CREATE TABLE IF NOT EXISTS ledger.dated (id INT PRIMARY KEY)")
    running = "SELECT COALESCE(MAX(time), 0) FROM information_schema.processlist WHERE info LIKE 'REPLACE %'"

    def write() -> None:
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            cursor.execute("REPLACE INTO ledger.dated SELECT 1 + GET_LOCK('archived', 600)")

    thread, started = threading.Thread(target=write), time.time()
    with ledger.connect(SOCKET, "root", "", None) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('archived', 10)")
        thread.start()
        deadline = time.monotonic() + 120
        while lab.sql(running)[0][0] < 4:
            assert time.monotonic() < deadline
        archived = lab.zsnapdb("binlog", "archive", "main", "--once", "--json").json
    # The connection is closed, so the statement goes on.
    thread.join()
    name = Path((FOLDER / "binlog.index").read_text().split()[-1]).name
    with (FOLDER / name).open("rb") as file:
        transaction = list(transactions(file, name))[-1]
    until = datetime.fromisoformat(archived["complete_until"]).timestamp()
    assert until < transaction.committed / 1e6
    assert until > started or not transaction.is_exact


MODES = {
    "mysql": {
        "plain": (),
        "compressed": ("SET SESSION binlog_transaction_compression = ON",),
        "minimal": ("SET SESSION binlog_transaction_compression = OFF", "SET SESSION binlog_row_image = MINIMAL"),
        "partial": ("SET SESSION binlog_row_value_options = PARTIAL_JSON",),
    },
    "mariadb": {
        "plain": (),
        "compressed": ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10"),
        "minimal": (
            "SET GLOBAL log_bin_compress = OFF",
            "SET GLOBAL log_bin_compress_min_len = DEFAULT",
            "SET SESSION binlog_row_image = MINIMAL",
        ),
    },
}
COLUMNS = (
    "id INT PRIMARY KEY, a TINYINT, b SMALLINT, c MEDIUMINT, d BIGINT UNSIGNED, e DECIMAL(20,6), f FLOAT, g DOUBLE,"
    " h DATE, i TIME(3), j DATETIME(6), k TIMESTAMP(2) NULL, l YEAR, m CHAR(10), n CHAR(200) CHARACTER SET utf8mb4,"
    " o VARCHAR(50), p VARCHAR(2000), q BINARY(16), r VARBINARY(300), s TINYBLOB, t BLOB, u MEDIUMTEXT,"
    " v LONGTEXT, w ENUM('x','y'), x SET('x','y','z'), y BIT(11), z JSON, aa POINT"
)
OWN_COLUMNS = {
    "mysql": ", ab VECTOR(3)",
    "mariadb": ", ab UUID, ac INET6, ad VARCHAR(300) COMPRESSED, ae TEXT COMPRESSED, af VECTOR(3)",
}
VALUES = (
    "1, 2, 3, 18446744073709551615, -12345678901234.567891, 1.5, 2.5, '2026-11-20', '-10:11:12.123',"
    " '2026-11-20 10:11:12.123456', '2026-11-20 10:11:12.12', 2026, 'char', REPEAT('ü', 200), 'text',"
    " REPEAT('x', 2000), REPEAT('b', 16), REPEAT('v', 300), 'tiny', REPEAT('b', 1000), 'medium', {long}, 'y', 'x,z',"
    ' b\'10101010101\', \'{{"a": 1, "b": "{document}"}}\', POINT(1, 2)'
)
OWN_VALUES = {
    "mysql": ", STRING_TO_VECTOR('[1,2,3]')",
    "mariadb": ", UUID(), '::1', REPEAT('c', 300), REPEAT('c', 900), VEC_FromText('[1,2,3]')",
}


def row(flavour: str, number: int, long: str = "'long'") -> str:
    return f"({number}, {VALUES.format(long=long, document='d' * 200)}{OWN_VALUES[flavour]})"


def steps(flavour: str, schema: str) -> list[tuple[tuple[str, ...], dict[str, tuple[int, int, int]]]]:
    """Transactions, each with the rows that it inserts, updates and deletes by table."""
    wide, slim, rows = f"{schema}.wide", f"{schema}.slim", ", ".join(row(flavour, number) for number in range(1, 41))
    nulls = ", ".join(f"({number})" for number in range(100, 400))
    return [
        ((f"INSERT INTO {wide} VALUES {rows}",), {wide: (40, 0, 0)}),
        ((f"INSERT INTO {wide} (id) VALUES {nulls}",), {wide: (300, 0, 0)}),
        ((f"INSERT INTO {wide} VALUES {row(flavour, 50, chr(39) + 'l' * 3_000_000 + chr(39))}",), {wide: (1, 0, 0)}),
        ((f"UPDATE {wide} SET o = 'changed', u = NULL WHERE id <= 25",), {wide: (0, 25, 0)}),
        ((f"UPDATE {wide} SET z = JSON_REPLACE(z, '$.a', 2) WHERE id <= 20",), {wide: (0, 20, 0)}),
        ((f"UPDATE {wide} SET v = 'short' WHERE id = 50",), {wide: (0, 1, 0)}),
        (
            (
                f"INSERT INTO {slim} SELECT id FROM {wide} WHERE id <= 30",
                f"DELETE FROM {wide} WHERE id BETWEEN 100 AND 349",
            ),
            {wide: (0, 0, 250), slim: (30, 0, 0)},
        ),
        ((f"DELETE FROM {wide}",), {wide: (0, 0, 91)}),
    ]


def gtid_after(lab: Lab, cursor: Any, before: str) -> str:
    """Return the GTID of the transaction that the session committed, the only one since `before`."""
    if lab.flavour == "mysql":
        cursor.execute(f"SELECT GTID_SUBTRACT(@@GLOBAL.gtid_executed, '{before}')")
    else:
        cursor.execute("SELECT @@SESSION.last_gtid")
    return str(cursor.fetchone()[0])


def written(lab: Lab, mode: str, schema: str) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Write the transactions in a mode; return their rows by GTID."""
    by_gtid = {}
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {schema}")
        cursor.execute(f"CREATE TABLE {schema}.wide ({COLUMNS}{OWN_COLUMNS[lab.flavour]}) ENGINE=InnoDB")
        cursor.execute(f"CREATE TABLE {schema}.slim (id INT) ENGINE=InnoDB")
        for setting in MODES[lab.flavour][mode]:
            cursor.execute(setting)
        for statements, rows in steps(lab.flavour, schema):
            before = str(lab.sql("SELECT @@GLOBAL.gtid_executed")[0][0]) if lab.flavour == "mysql" else ""
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")
            by_gtid[gtid_after(lab, cursor, before)] = rows
    return by_gtid


def rows_of(found: dict[str, Any]) -> dict[str, dict[str, tuple[int, int, int]]]:
    return {
        entry["gtid"]: {
            f"{part['schema']}.{part['table']}": (part["inserted"], part["updated"], part["deleted"])
            for part in entry["tables"]
        }
        for entry in found["transactions"]
    }


def test_a_search_finds_each_transaction_with_its_exact_tables_and_rows(lab: Lab, first: dict[str, Any]) -> None:
    """In every form of row events, on the server and in the archive; a restore takes the GTID that is printed."""
    modes = MODES[lab.flavour]
    schemas = {mode: f"find_{mode}" for mode in modes}
    expected = {mode: written(lab, mode, schema) for mode, schema in schemas.items()}
    find = ("binlog", "find", "main", "--json")
    for mode, by_gtid in expected.items():
        entries = lab.zsnapdb(*find, "--table", f"{schemas[mode]}.wide", "--kind", "insert,update,delete").json
        assert rows_of(entries) == by_gtid, mode
        assert all(entry["rows_known"] and entry["match"] == "yes" for entry in entries["transactions"]), mode
        # MariaDB stores an event as it is if that is shorter.
        assert any(entry["compressed"] for entry in entries["transactions"]) == (mode == "compressed"), mode
    largest = lab.zsnapdb(*find, "--table", "find_plain.wide", "--largest", "--limit", "2").json
    assert [entry["rows"] for entry in largest["transactions"]] == [300, 280]
    plain = expected["plain"]
    (deleted,) = (gtid for gtid, rows in plain.items() if rows == {"find_plain.wide": (0, 0, 91)})
    words = (*find, "--table", "find_plain.wide", "--kind", "delete", "--rows-at-least", "91", "--largest")
    live = lab.zsnapdb(*words).json
    assert [entry["gtid"] for entry in live["transactions"]][1:] == [deleted]
    ddl = lab.zsnapdb(*find, "--table", "find_plain.slim", "--kind", "ddl").json["transactions"]
    assert [(entry["statements"][0]["text"][:32], entry["match"]) for entry in ddl] == [
        ("CREATE TABLE find_plain.slim (id", "yes")
    ]
    lab.zsnapdb("binlog", "archive", "main", "--once", "--json")
    words_of_plan = ("restore", "main", "--target", "tank/never", "--to", f"before-{deleted}", "--plan", "--json")
    assert lab.zsnapdb(*words_of_plan).json["point"]["following"]["gtid"] == deleted
    away = lab.changed((f'socket = "{SOCKET}"', 'socket = "/run/mysqld/away.sock"'))
    done = lab.zsnapdb(*words, config=away)
    archived = json.loads(done.stdout)
    assert done.code == 5, done.stderr
    assert rows_of(archived) == rows_of(live)
    assert {entry["history"] for entry in archived["transactions"]} != {None}
    for schema in schemas.values():
        lab.sql(f"DROP DATABASE {schema}")


def test_what_the_server_commits_is_listed_as_it_happens_and_also_in_the_next_binlog(
    lab: Lab, first: dict[str, Any]
) -> None:
    lab.sql("DROP DATABASE IF EXISTS followed")
    lab.sql("CREATE DATABASE followed")
    lab.sql("CREATE TABLE followed.lines (number INT PRIMARY KEY)")
    argv = ["zsnapdb", "binlog", "find", "main", "--follow", "--table", "followed.lines", "--kind", "insert", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        written, deadline = 0, time.monotonic() + 120
        # Whoever follows sees what is committed from now on. The first line says that it has begun.
        while not select.select([following.stdout], [], [], 0.5)[0]:
            assert time.monotonic() < deadline
            lab.sql(f"INSERT INTO followed.lines VALUES ({written})")
            written += 1
        lab.sql("FLUSH BINARY LOGS")
        for number in range(written, written + 3):
            lab.sql(f"INSERT INTO followed.lines VALUES ({number})")
        words = ("binlog", "find", "main", "--json", "--table", "followed.lines", "--kind", "insert", "--limit", "1000")
        expected = [entry["gtid"] for entry in lab.zsnapdb(*words).json["transactions"]]
        seen: list[str] = []
        while expected[-1] not in seen:
            seen.append(json.loads(following.stdout.readline())["gtid"])
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=60) == 0
    assert len(expected) == written + 3
    assert seen == expected[-len(seen) :]
    assert len(seen) >= 4

"""The user of a clone has every privilege in it, and tries to reach production from there."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.system.in_guest import Lab, ask, connect
from tests.system.test_clone_contract import Upstream

pytestmark = pytest.mark.usefixtures("first")

PARENT = Path("/var/lib/mysql")
BINLOG = re.compile(r"binlog\.([0-9]+|index)")


@pytest.fixture(scope="module")
def clone(lab: Lab, first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = lab.zsnapdb("clone", "create", "main", "--name", "hostile", "--json").json
    yield made
    assert lab.zsnapdb("clone", "destroy", "hostile").code == 0


@pytest.fixture
def admin(clone: dict[str, Any]) -> Iterator[pymysql.Connection]:
    """A session with every privilege in the clone."""
    with connect(clone) as connection:
        yield connection


def production_files() -> dict[str, str]:
    """The hash of every binlog of production and of their list, and the name of every other file.

    Production writes other files by itself, MariaDB the indices of its binlogs too.
    """
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if BINLOG.fullmatch(path.name) else ""
        for path in PARENT.rglob("*")
        if path.is_file() and ".zfs" not in path.parts
    }


@pytest.fixture
def untouched() -> Iterator[None]:
    before = production_files()
    yield
    assert production_files() == before


def newest_binlog() -> Path:
    return max(PARENT.glob("binlog.[0-9]*"))


def production_pid() -> int:
    return int(Path("/run/mysqld/mysqld.pid").read_text())


def target_of(name: str) -> str:
    return {
        "the binlog": f"{newest_binlog()}",
        "the list of binlogs": f"{PARENT}/binlog.index",
        "a new file": f"{PARENT}/planted",
        "a new file beside the data": f"{PARENT}/data/planted",
        "a file by production's process": f"/proc/{production_pid()}/cwd/planted",
        "the binlog by production's process": f"/proc/{production_pid()}/root{newest_binlog()}",
    }[name]


@pytest.mark.parametrize(
    "target",
    [
        "the binlog",
        "the list of binlogs",
        "a new file",
        "a new file beside the data",
        "a file by production's process",
        "the binlog by production's process",
    ],
)
@pytest.mark.parametrize("log", ["general_log", "slow_query_log"])
def test_a_log_of_the_clone_is_not_written_to_production(
    admin: pymysql.Connection, untouched: None, log: str, target: str
) -> None:
    with contextlib.suppress(pymysql.MySQLError):
        ask(admin, f"SET GLOBAL {log}_file = '{target_of(target)}'")
        ask(admin, f"SET GLOBAL {log} = ON")
        ask(admin, "SET SESSION long_query_time = 0")
        ask(admin, "SELECT 'this destroys a binlog'")
        ask(admin, "FLUSH LOGS")
    ask(admin, f"SET GLOBAL {log} = OFF")


@pytest.mark.parametrize("statement", ["SELECT 1 INTO OUTFILE '{}'", "SELECT 1 INTO DUMPFILE '{}'"])
@pytest.mark.parametrize("target", ["a new file", "a file by production's process"])
def test_rows_of_the_clone_are_not_written_to_production(
    admin: pymysql.Connection, untouched: None, statement: str, target: str
) -> None:
    with pytest.raises(pymysql.MySQLError):
        ask(admin, statement.format(target_of(target)))


def test_a_table_of_the_clone_holds_no_file_of_production(admin: pymysql.Connection, untouched: None) -> None:
    ask(admin, "CREATE DATABASE IF NOT EXISTS hostile")
    with pytest.raises(pymysql.MySQLError):
        ask(admin, "CREATE TABLE hostile.a (id INT PRIMARY KEY) DATA DIRECTORY = '/var/lib/mysql/data'")


@pytest.mark.parametrize("file", ["/etc/passwd", "/etc/lab.cnf", "/var/lib/mysql/binlog.index"])
def test_the_clone_reads_no_file_of_the_host(admin: pymysql.Connection, file: str) -> None:
    assert ask(admin, f"SELECT LOAD_FILE('{file}')") == [(None,)]
    ask(admin, "CREATE DATABASE IF NOT EXISTS hostile")
    ask(admin, "CREATE TABLE IF NOT EXISTS hostile.lines (line TEXT)")
    with pytest.raises(pymysql.MySQLError):
        ask(admin, f"LOAD DATA INFILE '{file}' INTO TABLE hostile.lines")


def test_the_clone_calls_nobody(lab: Lab, admin: pymysql.Connection) -> None:
    """Not even a neighbour on this host: production listens there too."""
    with Upstream() as upstream:
        if lab.flavour == "mysql":
            ask(
                admin,
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={upstream.port}, SOURCE_USER='a'",
            )
        else:
            ask(admin, f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={upstream.port}, MASTER_USER='a'")
        start, stop, reset, show = (
            ("START REPLICA", "STOP REPLICA", "RESET REPLICA ALL", "SHOW REPLICA STATUS")
            if lab.flavour == "mysql"
            else ("START SLAVE", "STOP SLAVE", "RESET SLAVE ALL", "SHOW SLAVE STATUS")
        )
        ask(admin, start)
        try:
            deadline = time.monotonic() + 20
            while not upstream.calls and not _last_error(admin, show) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert upstream.calls == 0
            assert "connect" in _last_error(admin, show)
        finally:
            ask(admin, stop)
            ask(admin, reset)


def _last_error(connection: pymysql.Connection, show: str) -> str:
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(show)
        (row,) = cursor.fetchall()
    return str(row["Last_IO_Error"])

"""Restores to a point in time have exactly the transactions up to the point.

An unreachable point is refused before anything is changed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.lab.inside import ledger
from zsnapdb.mysql.binlog.transactions import BinlogTransaction, transactions

from . import cascades
from .in_guest import CONFIG, SOCKET, Lab, ask, end_process, everything, remove_datasets, without_bodies, zfs

pytestmark = pytest.mark.usefixtures("history")
PARENT = Path("/var/lib/mysql")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class History:
    """A backup and the archived transactions after it, each with the name of its binlog."""

    backup: dict[str, Any]
    written: tuple[tuple[str, BinlogTransaction], ...]
    ballast: str

    def time(self, index: int) -> str:
        """Return the commit time of a transaction in the form of `--to`."""
        return (EPOCH + timedelta(microseconds=self.written[index][1].committed)).isoformat()


EVENTS = """SELECT event_name, status, definer, originator, character_set_client, collation_connection, created,
    last_altered, event_comment FROM information_schema.events WHERE event_name LIKE 'kept%' ORDER BY event_name"""
DEFAULTED = {"by_myisam": "MyISAM", "by_memory": "MEMORY", "by_innodb": "InnoDB", "by_default": "InnoDB"}
"""Tables whose statements name no engine, and their engines: default_storage_engine is another one for a while."""


def make_defaulted(lab: Lab) -> None:
    """Make these tables, and one whose options the server leaves out of its binlog."""
    for name, engine in DEFAULTED.items():
        lab.sql(f"SET GLOBAL default_storage_engine = {engine}")
        lab.sql(f"CREATE TABLE ledger.{name} (id INT PRIMARY KEY, `engine` VARCHAR(9))")
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = CONCAT('ANSI,', @@sql_mode)")
        cursor.execute("CREATE TEMPORARY TABLE ledger.shape (body VARCHAR(9)) CHARACTER SET latin2")
        cursor.execute("CREATE TABLE ledger.by_ansi LIKE ledger.shape")
    lab.sql("INSERT INTO ledger.by_myisam VALUES (1, 'row')")


def tables_of(cursor: pymysql.cursors.Cursor) -> dict[str, tuple[str, str]]:
    """Return engine and collation of these tables."""
    cursor.execute(
        "SELECT table_name, engine, table_collation FROM information_schema.tables WHERE table_name LIKE 'by|_%' ESCAPE"
        " '|'"
    )
    return {name: (engine, collation) for name, engine, collation in cursor.fetchall()}


def change_kin(lab: Lab) -> None:
    """Change rows that reference each other, on MySQL also in compressed transactions."""
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE kin")
        cursor.execute("USE kin")
        for statement in (cascades.SCHEMA + ";" + cascades.TRIGGERS).split(";"):
            cursor.execute(statement)
        for number, statement in enumerate(cascades.statements(204, 120)):
            if lab.flavour == "mysql" and number in (40, 80):
                cursor.execute(f"SET SESSION binlog_transaction_compression = {'ON' if number == 40 else 'OFF'}")
            with contextlib.suppress(pymysql.Error):
                cursor.execute(statement)
        for compression, key in (("OFF", 101), ("ON", 102)):
            if lab.flavour == "mysql":
                cursor.execute(f"SET SESSION binlog_transaction_compression = {compression}")
            cursor.execute(f"INSERT INTO parent VALUES ({key}, {key}, 1)")
            cursor.execute(f"INSERT INTO child VALUES ({key}, {key}, 1)")
            # MySQL keeps the child, but its binlog contains a deletion of the parent.
            cursor.execute(f"REPLACE INTO parent VALUES ({key}, {key}, 2)")


def kin(connection: pymysql.Connection) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("USE kin")
        return cascades.rows(cursor)


@pytest.fixture(scope="module")
def history(lab: Lab) -> Iterator[History]:
    if lab.flavour == "mysql":
        # As after the load of a dump: transactions that are in no binlog belong to each state too.
        lab.sql("SET GLOBAL gtid_purged = '+cccccccc-cccc-cccc-cccc-cccccccccccc:1-3'")
    lab.sql("CREATE EVENT ledger.kept_off ON SCHEDULE EVERY 1 DAY STARTS '2037-01-01' DISABLE DO DO 1")
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    lab.sql("ALTER EVENT ledger.kept_off COMMENT 'ENABLE'")
    lab.sql("CREATE DEFINER = app@localhost EVENT ledger.kept_on ON SCHEDULE EVERY 1 DAY STARTS '2037-01-01' DO DO 1")
    load = ledger.Load(
        SOCKET,
        rate=60.0,
        first_number={
            row[0]: row[1] for row in lab.sql("SELECT worker, MAX(number) FROM ledger.journal GROUP BY worker")
        },
    )
    load.start()
    load.wait_for(40)
    lab.sql("CREATE USER replayed@localhost IDENTIFIED BY 'Repl-4yed'")
    lab.sql("CREATE TABLE ledger.replayed (id INT PRIMARY KEY, body LONGTEXT)")
    lab.sql(
        "CREATE EVENT ledger.fires ON SCHEDULE EVERY 1 SECOND DO INSERT INTO ledger.replayed VALUES (UNIX_TIMESTAMP(),"
        " 'the event')"
    )
    lab.sql("INSERT INTO ledger.replayed VALUES (1, REPEAT('x', 3000000))")
    lab.sql("FLUSH BINARY LOGS")
    change_kin(lab)
    make_defaulted(lab)
    load.wait_for(40)
    load.stop()
    lab.sql("DROP EVENT ledger.fires")
    assert load.failures == []
    with ledger.connect(SOCKET) as connection:
        ballast = ledger.read_state(connection).ballast
    lab.zsnapdb("binlog", "archive", "main", "--once", "--json").json  # noqa: B018 - asserts success
    names = [Path(line).name for line in (PARENT / "binlog.index").read_text().split()]
    written = []
    for name in names[names.index(backup["position"]["binlog_file"]) :]:
        with (PARENT / name).open("rb") as file:
            written += [(name, transaction) for transaction in transactions(file, name)]
    written = [
        w
        for w in written
        if w[0] != backup["position"]["binlog_file"] or w[1].start >= backup["position"]["binlog_offset"]
    ]
    yield History(backup, tuple(written), ballast)
    for name in ("kept_off", "kept_on"):
        lab.sql(f"DROP EVENT ledger.{name}")
    lab.sql(f"DROP TABLE {', '.join(f'ledger.{name}' for name in (*DEFAULTED, 'by_ansi'))}")
    lab.sql("DROP DATABASE kin")


def connected(lab: Lab, restored: Mapping[str, Any]) -> pymysql.Connection:
    return pymysql.connect(
        host="127.0.0.1", port=restored["port"], user="app", password="lab-app", database="ledger", autocommit=True
    )


def end(lab: Lab, restored: Mapping[str, Any]) -> None:
    """End the restored server and remove its datasets."""
    if restored["pid"]:
        end_process(restored["pid"])
    remove_datasets(restored["top"])


def check(lab: Lab, history: History, restored: Mapping[str, Any], last: int) -> None:
    """Check that the restored server has exactly the transactions of the source up to and including `last`."""
    file, transaction = history.written[last]
    truth = ledger.journal_in_binlog(PARENT, PARENT / "binlog.index", lab.binlog_tool, file, transaction.end)
    with connected(lab, restored) as connection:
        checks = ledger.compare("restored", ledger.read_state(connection), truth, history.ballast)
    assert [c for c in checks if not c.ok] == []
    socket = str(Path(restored["option_file"]).parent / "server.sock")
    with pymysql.connect(unix_socket=socket, user="root") as connection:
        if history.written[last][0] != history.written[0][0]:
            with ledger.connect(SOCKET, "root", "", None) as source:
                assert kin(connection) == kin(source)
        # An applier disables what it makes; the source had it enabled.
        assert ask(connection, EVENTS) == lab.sql(EVENTS)
    assert restored["point"]["last"]["gtid"] == transaction.gtid


def middle(history: History) -> int:
    """A transaction in the first of the binlogs, which is followed by others in it."""
    first = history.written[0][0]
    return len([1 for name, _ in history.written if name == first]) // 2


def last_by(history: History, moment: int) -> int:
    """Return the last transaction before the first that was committed after a moment (microseconds UTC)."""
    later = (i for i, (_, other) in enumerate(history.written) if other.committed > moment)
    return next(later, len(history.written)) - 1


@pytest.fixture
def restored(lab: Lab) -> Iterator[Any]:
    made: list[dict[str, Any]] = []

    def restore(to: str, name: str, *words: str, config: Path = CONFIG) -> dict[str, Any]:
        made.append(
            lab.zsnapdb(
                "restore",
                "main",
                "--to",
                to,
                "--target",
                f"tank/{name}",
                "--handover",
                "run",
                "--json",
                *words,
                config=config,
            ).json
        )
        return made[-1]

    yield restore
    for restore_made in made:
        end(lab, restore_made)


# The replay is that of the restores here, which run on both flavours.
@pytest.mark.any_server
def test_a_clone_of_a_time_holds_exactly_the_transactions_up_to_it_and_can_be_cloned_again(
    lab: Lab, history: History
) -> None:
    before = everything()
    index = middle(history)
    # Everything committed by then: where the server dates by the second, that may be more than one.
    file, transaction = history.written[last_by(history, history.written[index][1].committed)]
    truth = ledger.journal_in_binlog(PARENT, PARENT / "binlog.index", lab.binlog_tool, file, transaction.end)
    plan = lab.zsnapdb("clone", "create", "main", "--at", history.time(index), "--plan", "--json").json
    assert (plan["source"], plan["backup_id"]) == ("point", history.backup["backup_id"])
    assert plan["replays"] >= 1
    assert everything() == before
    # The snapshots and the binlogs are on this host.
    with without_bodies(lab):
        made = lab.zsnapdb("clone", "create", "main", "--name", "then", "--at", history.time(index), "--json").json
    with pymysql.connect(
        host="127.0.0.1", port=made["clone"]["port"], user=made["user"], password=made["password"], database="ledger"
    ) as connection:
        checks = ledger.compare("clone", ledger.read_state(connection), truth, history.ballast)
    assert [c for c in checks if not c.ok] == []
    # The point is kept: a next clone of it replays nothing.
    again = lab.zsnapdb("clone", "create", "main", "--from", made["clone"]["backup_id"], "--plan", "--json").json
    assert (again["prepared"], again["replays"]) == (True, 0)
    assert lab.zsnapdb("clone", "destroy", "then").code == 0
    unused = lab.changed(("[repository.s3]", '[clones]\nkeep_unused = "0s"\n\n[repository.s3]'))
    assert lab.zsnapdb("reap", config=unused).code == 0
    assert everything() == before


def test_a_question_is_answered_as_of_any_transaction_in_the_archive(lab: Lab, history: History) -> None:
    last = middle(history)
    file, transaction = history.written[last]
    assert transaction.gtid is not None
    truth = ledger.journal_in_binlog(PARENT, PARENT / "binlog.index", lab.binlog_tool, file, transaction.end)
    answer = lab.zsnapdb(
        "query",
        "main",
        "--at",
        transaction.gtid,
        "--json",
        "SELECT worker, MAX(number), COUNT(*) FROM ledger.journal GROUP BY worker",
    ).json
    expected = {
        worker: [number for owner, number in truth if owner == worker] for worker in {worker for worker, _ in truth}
    }
    assert {row[0]: row[1:] for row in answer["rows"]} == {
        worker: [max(numbers), len(numbers)] for worker, numbers in expected.items()
    }
    assert answer["moment"]["exact"]
    assert [name for name in zfs("list", "-H", "-o", "name") if "/own-" in name] == []


def test_before_a_gtid_it_is_the_first_one_out(lab: Lab, history: History, restored: Any) -> None:
    at = middle(history)
    document = restored(f"before-{history.written[at][1].gtid}", "p-before")
    check(lab, history, document, at - 1)
    assert document["point"]["following"]["gtid"] == history.written[at][1].gtid


def test_a_time_takes_in_what_was_committed_by_then(lab: Lab, history: History, restored: Any) -> None:
    at = len(history.written) - 5
    last = last_by(history, history.written[at][1].committed)
    document = restored(history.time(at), "p-time")
    check(lab, history, document, last)
    with connected(lab, document) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM replayed WHERE LENGTH(body) = 3000000")
        assert cursor.fetchone() == (1,)
        tables = tables_of(cursor)
    assert tables.pop("by_ansi")[1].startswith("latin2_")
    assert {name: engine for name, (engine, _) in tables.items()} == DEFAULTED


def test_a_time_on_a_quiet_server_is_its_last_commit(lab: Lab, history: History) -> None:
    last = history.written[-1][1]
    deadline = time.monotonic() + 60
    until = EPOCH
    while until <= EPOCH + timedelta(microseconds=last.committed, seconds=1):
        assert time.monotonic() < deadline
        archived = lab.zsnapdb("binlog", "archive", "main", "--once", "--json").json
        assert archived["transactions"] == 0
        until = datetime.fromisoformat(archived["complete_until"])
    for words in (("restore", "main", "--target", "tank/never", "--to"), ("clone", "create", "main", "--at")):
        planned = lab.zsnapdb(*words, until.isoformat(), "--plan", "--json").json
        assert planned["backup_id"] == history.backup["backup_id"]
    plan = lab.zsnapdb("restore", "main", "--target", "tank/never", "--to", until.isoformat(), "--plan", "--json").json
    assert (plan["point"]["last"]["gtid"], plan["point"]["following"]) == (last.gtid, None)
    # What other tests left in the repository may be worth a warning, which is an exit code of its own.
    status = json.loads(lab.zsnapdb("status", "main", "--json").stdout)
    assert datetime.fromisoformat(status["recoverable"][-1]["to"]) == until


def test_latest_goes_to_the_end_of_the_archive_through_a_client_too(lab: Lab, history: History, restored: Any) -> None:
    """The applier goes there in the tests of the runbook and of restores from the host."""
    config = lab.changed(("[repository.s3]", '[restore]\nreplay = "client"\n\n[repository.s3]'))
    plan = lab.zsnapdb(
        "restore", "main", "--to", "latest", "--target", "tank/p-client", "--plan", "--json", config=config
    ).json
    assert ["through the client" in step["what"] for step in plan["steps"] if step["kind"] == "replay"] == [True]
    document = restored("latest", "p-client", config=config)
    check(lab, history, document, len(history.written) - 1)
    with connected(lab, document) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM replayed WHERE body = 'the event'")
        fired = cursor.fetchone()
        cursor.execute("SELECT COUNT(*) FROM replayed WHERE LENGTH(body) = 3000000")
        assert cursor.fetchone() == (1,)
        assert {name: engine for name, (engine, _) in tables_of(cursor).items() if name in DEFAULTED} == DEFAULTED
    assert [fired] == lab.sql("SELECT COUNT(*) FROM ledger.replayed WHERE body = 'the event'")


def test_what_cannot_be_reached_is_refused(lab: Lab, history: History) -> None:
    before = everything()
    late = datetime.now(UTC).isoformat()
    for to, code, text in (
        (late, 6, "is after the end of the archive"),
        ("2001-01-01T00:00:00Z", 6, "no backup is older than 2001-01-01 00:00:00 UTC"),
        ("2030-01-01T00:00:00Z", 4, "is in the future"),
        ("2026-01-01 00:00:00", 2, "does not say its zone"),
        ("yesterday", 2, "is not a point in time"),
    ):
        done = lab.zsnapdb("restore", "main", "--to", to, "--target", "tank/never")
        assert (done.code, text in done.stderr, "hint:" in done.stderr) == (code, True, True), done.stderr
    assert everything() == before


def test_no_session_moves_the_stop_of_a_time_or_the_promise_of_status(lab: Lab, history: History) -> None:
    """It is the last test: it writes to the server."""
    lab.sql("INSERT INTO ledger.replayed VALUES (-1, 'kept')")
    assert lab.zsnapdb("binlog", "archive", "main", "--once").code == 0
    at = datetime.now(UTC)
    while datetime.now(UTC) < at.replace(microsecond=0) + timedelta(seconds=1):
        time.sleep(0.02)
    lab.sql("DELETE FROM ledger.replayed WHERE id = -1")
    with ledger.connect(SOCKET) as connection, connection.cursor() as cursor:
        for stamp in (1577836800, 1900000000):
            # Rows of old binlogs are loaded: the output of a binlog tool sets the time.
            cursor.execute(f"SET timestamp = {stamp}")
            cursor.execute(f"INSERT INTO replayed VALUES (-{stamp}, 'loaded')")
    assert lab.zsnapdb("binlog", "archive", "main", "--once").code == 0
    words = ("restore", "main", "--to", at.isoformat(), "--target", "tank/never", "--plan", "--json")
    plan = lab.zsnapdb(*words).json
    deleted = plan["point"]["following"]
    assert datetime.fromisoformat(deleted["committed"]) >= at
    assert plan["point"]["last"]["file"] == deleted["file"]
    status = json.loads(lab.zsnapdb("status", "main", "--json").stdout)
    assert datetime.fromisoformat(status["recoverable"][-1]["to"]) <= datetime.fromisoformat(status["at"])
    assert status["binlog"]["lag_seconds"] >= 0

"""A restore from the snapshots on the host fetches no chunk, and holds exactly what was requested."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pydantic import SecretStr

from tests.lab.inside import ledger
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.mysql.replication.replay import make_durable
from zsnapdb.mysql.session import Address, Session

from .in_guest import SERVER, SOCKET, Lab, end_process, remove, started, without_bodies, zfs

AWAY = ('endpoint = "http://127.0.0.1:7070"', 'endpoint = "http://127.0.0.1:7"')
"""Nobody listens at that port."""

pytestmark = pytest.mark.usefixtures("first")


def restored_state(done: dict[str, Any]) -> ledger.State:
    with ledger.connect(f"{done['mount']}/.zsnapdb/server.sock", "root", "") as connection:
        return ledger.read_state(connection)


def write_without_gtids(lab: Lab) -> None:
    """Turn the GTIDs off, commit, turn them on, commit: binlogs with and without GTIDs."""
    lab.sql("DROP DATABASE IF EXISTS nameless")
    lab.sql("CREATE DATABASE nameless")
    lab.sql("CREATE TABLE nameless.modes (mode VARCHAR(20) PRIMARY KEY)")
    off, on = ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"), ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
    for modes in (off, on):
        for mode in modes:
            lab.sql(f"SET GLOBAL gtid_mode = {mode}")
        lab.sql(f"INSERT INTO nameless.modes VALUES ('{modes[-1]}')")


# The set of a backup and one that was never stored are replayed in the same way: one of them on both servers will do.
@pytest.mark.parametrize("command", ["backup", pytest.param("snapshot", marks=pytest.mark.any_server)])
def test_a_restore_from_the_host_clones_replays_and_is_exactly_at_the_point(
    lab: Lab, load_running: ledger.Load, command: str
) -> None:
    done = lab.zsnapdb(command, "--json").json
    start = done["backup"]["backup_id"] if command == "backup" else done["backup_id"]
    load_running.wait_for(20)
    load_running.stop()
    lab.zsnapdb("binlog", "archive", "main", "--once", "--json")
    with ledger.connect(SOCKET, "root", "") as connection:
        expected = ledger.read_state(connection)
    words = ("restore", "main", "--to", "latest", "--from", "local", "--target", "tank/near", "--handover", "run")
    with without_bodies(lab):
        planned = lab.zsnapdb(*words, "--plan", "--json").json
        done = lab.zsnapdb(*words, "--json").json
    try:
        if lab.flavour == "mysql" and command == "backup":
            write_without_gtids(lab)
            lab.zsnapdb("binlog", "archive", "main", "--once", "--json")
            refused = lab.zsnapdb(*(word.replace("tank/near", "tank/far") for word in words), "--plan")
            assert (refused.code, "with gtid_mode ON, replays none" in refused.stderr) == (4, True), refused.stderr
            # A backup behind the change: the tests after this one begin there.
            assert lab.zsnapdb("backup").code == 0
        assert (planned["target"], planned["chain"]) == (start, [])
        assert {binlog["from"] for binlog in planned["binlogs"]} == {"host"}
        origins = zfs("get", "-H", "-o", "value", "origin", "tank/near", "tank/near/data")
        short = f"@zsnapdb-{start}"
        assert origins == [f"tank/mysql{short}", f"tank/mysql/data{short}"]
        assert restored_state(done) == expected
    finally:
        remove("tank/near")


# What differs from the test before is the store.
@pytest.mark.any_server
def test_while_the_store_is_away_a_restore_takes_what_is_on_the_host_and_the_set_is_stored_later(
    lab: Lab, load_running: ledger.Load
) -> None:
    """No binlog after the set is archived: the server has them."""
    start = lab.zsnapdb("snapshot", "--json").json["backup_id"]
    load_running.wait_for(20)
    load_running.stop()
    with ledger.connect(SOCKET, "root", "") as connection:
        expected = ledger.read_state(connection)
    away = lab.changed(AWAY)
    words = ("restore", "main", "--to", "latest", "--from", "auto", "--target", "tank/near", "--handover", "run")
    restored = lab.zsnapdb(*words, "--json", config=away)
    try:
        assert restored.json["backup_id"] == start
        assert "the store is unreachable" in restored.stderr
        assert {binlog["from"] for binlog in restored.json["binlogs"]} == {"host"}
        assert restored_state(restored.json) == expected
    finally:
        remove("tank/near")
    stored = lab.zsnapdb("backup", "--set", start, "--json").json["backup"]
    assert stored["backup_id"] == start
    assert lab.zsnapdb("restore", "main", "--to", start, "--target", "tank/never", "--plan").code == 0


# What is begun and removed is the datasets of ZFS and the journal.
@pytest.mark.any_server
def test_a_restore_from_the_host_that_was_stopped_goes_on_and_is_given_up_without_a_trace(lab: Lab) -> None:
    before = zfs("list", "-H", "-o", "name", "-t", "filesystem,snapshot", "-r", "tank/mysql")
    words = ("restore", "main", "--to", "latest-backup", "--from", "auto", "--target", "tank/near")
    backup_id = lab.zsnapdb(*words, "--plan", "--json").json["target"]
    assert lab.zsnapdb(*words, "--stop-after", f"clone-{backup_id}-data").code == 0
    assert lab.zsnapdb("restore", "main", "--resume", "--stop-after", "recover").code == 0
    assert lab.zsnapdb("restore", "main", "--abandon").code == 0
    assert zfs("list", "-H", "-o", "name", "-t", "filesystem,snapshot", "-r", "tank/mysql") == before


# Both replay in the same way; what differs is the journal and the choice of the binlogs.
@pytest.mark.any_server
def test_a_finished_restore_goes_on_to_a_later_point_and_only_forward(lab: Lab, load_running: ledger.Load) -> None:
    load_running.stop()
    assert lab.zsnapdb("snapshot").code == 0
    lab.sql("DROP DATABASE IF EXISTS further")
    lab.sql("CREATE DATABASE further")
    lab.sql("CREATE TABLE further.steps (number INT PRIMARY KEY)")
    for number in range(4):
        lab.sql(f"INSERT INTO further.steps VALUES ({number})")
        if number == 1:
            lab.sql("FLUSH BINARY LOGS")
    lab.zsnapdb("binlog", "archive", "main", "--once", "--json")
    words = ("binlog", "find", "main", "--json", "--table", "further.steps", "--kind", "insert", "--limit", "4")
    gtids = [entry["gtid"] for entry in lab.zsnapdb(*words).json["transactions"]]
    gtids.sort(key=lambda gtid: int(gtid.replace("-", ":").rsplit(":", 1)[1]))
    begin = lab.zsnapdb("restore", "main", "--to", gtids[0], "--from", "local", "--target", "tank/near", "--json").json
    further = ("restore", "main", "--from", "local", "--json", "--continue-to")
    try:
        assert rows_of(lab, begin) == [0]
        back = lab.zsnapdb(*further, f"before-{gtids[0]}")
        assert (back.code, "is before" in back.stderr) == (6, True), back.stderr
        assert lab.zsnapdb(*further, gtids[0]).code == 6
        planned = lab.zsnapdb(*further, f"before-{gtids[3]}", "--plan").json
        assert [step["kind"] for step in planned["steps"][-4:]] == ["take-up", "replay", "check", "stopped"]
        stopped = lab.zsnapdb(*further, f"before-{gtids[3]}", "--stop-after", "take-up-2").json
        assert not stopped["finished"]
        middle = lab.zsnapdb("restore", "main", "--resume", "--json").json
        assert rows_of(lab, middle) == [0, 1, 2]
        looked = lab.zsnapdb(*further, "next", "--handover", "look").json
        assert looked_at(looked) == [0, 1, 2, 3]
        last = lab.zsnapdb(*further, "here").json
        assert last["finished"]
        assert rows_of(lab, last) == [0, 1, 2, 3]
        printed = lab.zsnapdb("restore", "main", "--from", "local", "--continue-to", "here").stdout
        with started(lab, last):
            running = lab.zsnapdb(*further, gtids[3])
            assert (running.code, "runs (process" in running.stderr) == (4, True), running.stderr
        (start,) = [line.partition("start it")[2] for line in printed.splitlines() if "start it" in line]
        assert lab.zsnapdb(*shlex.split(start)[1:]).code == 0
        with as_root(last) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO steps VALUES (9)")
        ServerProcess(Path(last["option_file"]).parent).stop(timeout=300)
    finally:
        remove("tank/near")
        lab.sql("DROP DATABASE further")


def test_what_a_replay_committed_without_syncs_survives_a_kill_once_it_is_made_durable(lab: Lab) -> None:
    """The options are those of a replay; the log of InnoDB is flushed by nothing else in this time."""
    lab.sql("DROP DATABASE IF EXISTS unsynced")
    lab.sql("CREATE DATABASE unsynced")
    lab.sql("CREATE TABLE unsynced.lines (number INT PRIMARY KEY)")
    lab.sql("SET GLOBAL innodb_flush_log_at_timeout = 2700")
    lab.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    lab.sql("SET GLOBAL sync_binlog = 0")
    written = list(range(300))
    for number in written:
        lab.sql(f"INSERT INTO unsynced.lines VALUES ({number})")
    with Session.open(Address("root", Path(SOCKET)), SecretStr("")) as session:
        make_durable(session)
    end_process(int(Path(str(lab.sql("SELECT @@pid_file")[0][0])).read_text()))
    subprocess.run([SERVER, "start"], check=True)
    assert [number for (number,) in lab.sql("SELECT number FROM unsynced.lines ORDER BY number")] == written
    lab.sql("DROP DATABASE unsynced")


def as_root(restored: dict[str, Any]) -> pymysql.Connection[Any]:
    """Open a session with the running server of a restore that was left stopped."""
    return ledger.connect(str(Path(restored["option_file"]).parent / "server.sock"), "root", "", "further")


def looked_at(restored: dict[str, Any]) -> list[int]:
    """Return the rows of a server to look around in, and write to it in spite of that: this must leave no trace."""
    with ledger.connect(restored["socket"], "root", "", "further") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.read_only, @@GLOBAL.skip_networking")
        assert cursor.fetchone() == (1, 1)
        cursor.execute("SELECT number FROM steps ORDER BY number")
        rows = [int(row[0]) for row in cursor.fetchall()]
        cursor.execute("SET GLOBAL read_only = OFF")
        cursor.execute("INSERT INTO steps VALUES (7)")
    return rows


def rows_of(lab: Lab, restored: dict[str, Any]) -> list[int]:
    """Start the server of a restore that was left stopped for one question, and stop it."""
    with started(lab, restored), as_root(restored) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT number FROM steps ORDER BY number")
        return [int(row[0]) for row in cursor.fetchall()]

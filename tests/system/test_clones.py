"""A clone shares nothing with its source, and nothing of it is left after destroy or a failed create."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.lab.inside import ledger
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.limited_query import LimitedRows, QueryLimits, limited_rows
from zsnapdb.mysql.session import Address
from zsnapdb.planning.sql_quoting import refusal_of

from .changed_settings import changed_names, changed_settings, settings
from .in_guest import SOCKET, Lab, ask, connect, everything, remove, run, zfs

pytestmark = pytest.mark.usefixtures("first")


@contextlib.contextmanager
def clone(lab: Lab, name: str) -> Iterator[dict[str, Any]]:
    made = lab.zsnapdb("clone", "create", "main", "--name", name, "--json").json
    try:
        yield made
    finally:
        assert lab.zsnapdb("clone", "destroy", name).code == 0


def test_a_clone_has_its_own_identity_and_writes_nothing_of_its_source(lab: Lab) -> None:
    lab.sql("CREATE TABLE ledger.ticks (at INT)")
    lab.sql("CREATE EVENT ledger.tick ON SCHEDULE EVERY 1 SECOND DO INSERT INTO ledger.ticks VALUES (UNIX_TIMESTAMP())")
    source_index = Path("/var/lib/mysql/binlog.index").read_text()
    try:
        assert lab.zsnapdb("backup").code == 0
        before = everything()
        with clone(lab, "identity") as made, connect(made) as here:
            ours = {str(k).lower(): str(v) for k, v in ask(here, "SHOW GLOBAL VARIABLES")}
            theirs = {str(k).lower(): str(v) for k, v in lab.sql("SHOW GLOBAL VARIABLES")}
            for name in (
                "server_id",
                "port",
                "socket",
                "pid_file",
                "datadir",
                "log_bin_basename",
                "log_bin_index",
                "relay_log_basename",
                "log_error",
                "tmpdir",
            ):
                assert ours[name] != theirs[name], name
            if lab.flavour == "mysql":
                assert ours["server_uuid"] != theirs["server_uuid"]
            assert ours["event_scheduler"] in ("OFF", "DISABLED")
            assert ours["bind_address"] == "127.0.0.1"
            ask(here, "CREATE TABLE ledger.only_here (id INT)")
            ask(here, "FLUSH LOGS")
            pid = made["clone"]["pid"]
            opened = set[str]()
            for number in os.listdir(f"/proc/{pid}/fd"):
                # The server may close one meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    opened.add(os.readlink(f"/proc/{pid}/fd/{number}"))
            assert not [path for path in opened if path.startswith("/var/lib/mysql/")]
            assert lab.sql("SHOW TABLES FROM ledger LIKE 'only_here'") == []
            ticks = ask(here, "SELECT COUNT(*) FROM ledger.ticks")
            assert ask(here, "SELECT SLEEP(3), (SELECT COUNT(*) FROM ledger.ticks)")[0][1] == ticks[0][0]
        assert everything() == before
        assert Path("/var/lib/mysql/binlog.index").read_text() == source_index
    finally:
        lab.sql("DROP EVENT ledger.tick")


def test_a_clone_and_a_restored_server_have_the_settings_of_their_source(lab: Lab) -> None:
    """Settings of options, of statements, of the run time: `SHOW GLOBAL VARIABLES` is the same outside of the lists."""
    default = settings(dict(lab.sql("SHOW GLOBAL VARIABLES")))
    with changed_settings(lab):
        backup = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
        source = settings(dict(lab.sql("SHOW GLOBAL VARIABLES")))
        assert {name for name in default if default[name] != source[name]} >= changed_names(lab)
        with clone(lab, "settings") as made, connect(made) as here:
            ours = settings(dict(ask(here, "SHOW GLOBAL VARIABLES")))
            assert {name: (source[name], ours.get(name)) for name in source if ours.get(name) != source[name]} == {}
            assert ask(here, "SELECT @a, @b") == [(1, "q # \\ r")]
        words = ("--to", backup, "--target", "tank/settings", "--handover", "run", "--json")
        restored = lab.zsnapdb("restore", "main", *words).json
        try:
            with ledger.connect(f"{restored['mount']}/.zsnapdb/server.sock", "root", "", None) as there:
                ours = settings(dict(ask(there, "SHOW GLOBAL VARIABLES")))
            assert {name: (source[name], ours.get(name)) for name in source if ours.get(name) != source[name]} == {}
        finally:
            remove("tank/settings")


def test_a_clone_of_a_rotation_under_way_does_not_delete_the_binlog_of_its_source(lab: Lab) -> None:
    """The list of binlogs under creation names the source's file by its absolute path.

    A server that starts after a crash deletes the files in this list.
    """
    folder = Path("/var/lib/mysql")
    live, listing = folder / "binlog.900001", folder / "binlog.~rec~"
    live.write_bytes(b"\xfebin")
    listing.write_text(f"{live}\n")
    for file in (live, listing):
        os.chown(file, folder.stat().st_uid, folder.stat().st_gid)
    try:
        assert lab.zsnapdb("backup").code == 0
        with clone(lab, "rotating") as made:
            mount = Path(made["clone"]["mount"])
            assert live.exists()
            # The clone's own copy of it is what its server removed: had it not looked, this test would show nothing.
            assert not (mount / live.name).exists()
        assert lab.zsnapdb("restore", "main", "--target", "tank/rotating").code == 0
        assert live.exists()
        remove("tank/rotating")
    finally:
        live.unlink(missing_ok=True)
        listing.unlink(missing_ok=True)


def a_reader_changes_nothing(made: dict[str, Any]) -> None:
    """What `zsnapdb mcp` sends for an agent that may only read, to the server of a clone."""
    address = Address(made["user"], port=made["clone"]["port"])

    def read(statement: str, *, writes: bool = False, **limits: int) -> LimitedRows:
        password = SecretStr(made["password"])
        return limited_rows(address, password, statement, QueryLimits(**limits), database="reading", writes=writes)

    values = "REPEAT('x', 3000), x'00ff', '2026-01-02 03:04:05.000006', 1.50"
    block = "COMMIT; START TRANSACTION READ WRITE; DELETE FROM reading.t; COMMIT"
    with connect(made) as here:
        for statement in (
            "CREATE DATABASE reading",
            "CREATE TABLE reading.t (id INT PRIMARY KEY, text LONGTEXT, bytes BLOB, at DATETIME(6), n DECIMAL(9, 2))",
            f"INSERT INTO reading.t SELECT id, {values} FROM ledger.accounts ORDER BY id LIMIT 9",
            f"CREATE PROCEDURE reading.breaks_out() BEGIN {block}; END",
        ):
            ask(here, statement)
        refused = (
            *("DELETE FROM t", "INSERT INTO t (id) VALUES (1000)", "UPDATE t SET id = id + 1000", "DROP TABLE t"),
            *(
                "TRUNCATE TABLE t",
                "CREATE TABLE other (id INT)",
                "ALTER TABLE t ADD other INT",
                "DROP DATABASE reading",
            ),
            *("CREATE USER other", "EXPLAIN ANALYZE DELETE t FROM t JOIN t AS o USING (id)", "SELECT 1; DELETE FROM t"),
            "WITH o AS (SELECT 1 AS id) DELETE t FROM t JOIN o USING (id)",
        )
        for statement in refused:
            with pytest.raises(ServerError, match=r"\((1792|1064|1290)\)"):
                read(statement)
        found = read("SELECT * FROM t ORDER BY id", rows=5, cell=10)
        assert (len(found.rows), found.left_out, found.columns[0]) == (5, "there are more than 5 rows", "id")
        assert found.rows[0][1:] == (
            "xxxxxxxxxx… (3000 characters)",
            "0x00ff",
            "2026-01-02… (26 characters)",
            "1.50",
        )
        assert read("SELECT text FROM t", characters=6500).left_out == "there are more than 6500 characters"
        assert len(read("SELECT id FROM t LIMIT 9", rows=9).rows) == 9
        began = time.monotonic()
        with contextlib.suppress(ServerError):
            read("SELECT SLEEP(100) FROM t", seconds=1)
        assert time.monotonic() - began < 60
        # This is why the session is read only too: DDL ends the transaction first.
        with connect(made) as other:
            ask(other, "START TRANSACTION READ ONLY")
            ask(other, "CREATE TABLE reading.despite (id INT)")
        # This is why the first word counts: a read-only session holds back no procedure that begins a transaction.
        assert ask(here, "SELECT COUNT(*) FROM reading.t") == [(9,)]
        assert refusal_of("CALL breaks_out()")
        read("CALL breaks_out()")
        assert ask(here, "SELECT COUNT(*) FROM reading.t") == [(0,)]
        read("INSERT INTO t (id) VALUES (1)", writes=True)
        assert ask(here, "SELECT id FROM reading.t") == [(1,)]


def test_a_clone_answers_to_its_credentials_file_also_after_a_commit_and_a_reset(lab: Lab) -> None:
    client = "/opt/mysql/bin/mysql" if lab.flavour == "mysql" else "/usr/bin/mariadb"
    with clone(lab, "client") as made:
        file = Path(made["clone"]["mount"]) / ".zsnapdb" / "client.cnf"
        assert file.stat().st_mode & 0o077 == 0
        done = run(client, f"--defaults-file={file}", "-N", "-e", "SELECT COUNT(*) FROM ledger.accounts")
        assert done.stdout.strip() == str(ledger.ACCOUNTS), done.stderr
        assert made["password"] not in Path(f"/proc/{made['clone']['pid']}/cmdline").read_text()
        assert not (file.parent / "init.sql").exists()
        a_reader_changes_nothing(made)
        with connect(made) as here:
            ask(here, "CREATE TABLE ledger.mine (id INT)")
            ask(here, "INSERT INTO ledger.mine VALUES (1)")
            commit = lab.zsnapdb("clone", "commit", "client", "-m", "one row", "--json").json
            ask(here, "INSERT INTO ledger.mine VALUES (2)")
        assert lab.zsnapdb("clone", "reset", "client", "--from", commit["id"]).code == 0
        # The same address and the same password, on the data of the commit.
        with connect(made) as here:
            assert ask(here, "SELECT id FROM ledger.mine") == [(1,)]
        # The exports of `connect --env` are all that the family's own client needs.
        exports = lab.zsnapdb("clone", "connect", "client", "--env").stdout
        statement = "SELECT id FROM ledger.mine; SELECT CURRENT_USER()"
        done = run("sh", "-c", f"{exports}\nexec {client} -N -e '{statement}'")
        # The server may take 127.0.0.1 for localhost.
        row, user = done.stdout.split()
        assert (row, user.partition("@")[0]) == ("1", "zsnapdb_clone"), done.stderr


# Where the set is found is the question: clones and queries of sets are tested on both servers elsewhere.
@pytest.mark.any_server
def test_a_local_snapshot_is_cloned_and_queried_without_a_repository(lab: Lab) -> None:
    lab.sql("CREATE TABLE ledger.accident (id INT PRIMARY KEY)")
    lab.sql("INSERT INTO ledger.accident VALUES (1), (2), (3)")
    before = lab.zsnapdb("list", "main", "--json").json["backups"]
    taken = lab.zsnapdb("snapshot", "main", "--json").json
    lab.sql("DELETE FROM ledger.accident")
    assert lab.zsnapdb("list", "main", "--json").json["backups"] == before
    listed = lab.zsnapdb("list", "main", "--local", "--json").json["sets"][-1]
    assert (listed["backup_id"], listed["state"]) == (taken["backup_id"], "local")
    assert listed["position"] == taken["position"]
    made = lab.zsnapdb("clone", "create", "main", "--name", "accident", "--from", taken["backup_id"], "--json").json
    try:
        with connect(made) as here:
            assert ask(here, "SELECT COUNT(*) FROM ledger.accident")[0][0] == 3
    finally:
        assert lab.zsnapdb("clone", "destroy", "accident").code == 0
    answer = lab.zsnapdb("query", "main", "SELECT COUNT(*) FROM ledger.accident", "--at", taken["backup_id"])
    assert "3" in answer.stdout.split(), answer
    lab.sql("DROP TABLE ledger.accident")


def test_a_clone_of_a_replica_does_not_connect_to_the_source_of_its_source(lab: Lab) -> None:
    if lab.flavour == "mysql":
        lab.sql(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=9, SOURCE_USER='nobody',"
            " SOURCE_PASSWORD='x'"
        )
    else:
        lab.sql("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=9, MASTER_USER='nobody', MASTER_PASSWORD='x'")
    try:
        assert lab.zsnapdb("backup").code == 0
        with clone(lab, "replica") as made, connect(made) as here:
            assert ask(here, "SHOW REPLICA STATUS") == []
    finally:
        lab.sql("RESET REPLICA ALL" if lab.flavour == "mysql" else "RESET SLAVE ALL")


@pytest.mark.any_server
def test_a_clone_that_cannot_start_leaves_nothing_and_says_why(lab: Lab) -> None:
    before = everything()
    config = lab.changed(('options = ["', 'options = ["no_such_option=1", "'))
    done = lab.zsnapdb("clone", "create", "main", "--name", "broken", config=config)
    assert done.code == 5, done.stderr
    assert "no_such_option" in done.stderr
    assert everything() == before
    assert not Path("/var/lib/zsnapdb/clones/broken").exists()


@pytest.mark.any_server
def test_destroy_refuses_what_is_not_marked_as_the_clone(lab: Lab) -> None:
    made = lab.zsnapdb("clone", "create", "main", "--name", "marked", "--json").json
    try:
        zfs("create", f"{made['clone']['datasets'][0]}/foreign")
        done = lab.zsnapdb("clone", "destroy", "marked")
        assert done.code == 4, done.stderr
        assert "is not ours to destroy: zsnapdb:clone is marked (inherited from" in done.stderr
        assert set(made["clone"]["datasets"]) <= set(zfs("list", "-H", "-o", "name"))
        assert f"{made['clone']['datasets'][0]}/foreign" in zfs("list", "-H", "-o", "name")
    finally:
        zfs("destroy", f"{made['clone']['datasets'][0]}/foreign")
        assert lab.zsnapdb("clone", "destroy", "marked").code == 0


@pytest.mark.any_server
def test_plans_of_clones_change_nothing(lab: Lab) -> None:
    before = everything()
    plan = lab.zsnapdb("clone", "create", "main", "--name", "planned", "--plan", "--json").json
    assert plan["datasets"] == {
        "parent": "tank/zsnapdb/clones/planned/r1",
        "data": "tank/zsnapdb/clones/planned/r1/data",
    }
    assert everything() == before
    with clone(lab, "kept") as made:
        plan = lab.zsnapdb("clone", "destroy", "kept", "--plan", "--json").json
        assert plan["clones"][0]["clone"]["pid"] == made["clone"]["pid"]
        with connect(made) as here:
            assert ask(here, "SELECT 1") == [(1,)]


@pytest.mark.any_server
def test_a_clone_that_is_not_there_is_named_and_destroyed_without_complaint(lab: Lab) -> None:
    assert lab.zsnapdb("clone", "destroy", "nobody").code == 0
    done = lab.zsnapdb("clone", "show", "nobody")
    assert done.code == 2
    assert "there is no clone nobody" in done.stderr


@pytest.mark.any_server
def test_a_name_taken_is_refused(lab: Lab) -> None:
    with clone(lab, "twice"):
        done = lab.zsnapdb("clone", "create", "main", "--name", "twice")
        assert done.code == 8
        assert "the name twice is taken" in done.stderr


@pytest.mark.any_server
def test_a_source_goes_on_undisturbed_while_clones_come_and_go(lab: Lab, load_running: ledger.Load) -> None:
    with clone(lab, "busy"):
        before = load_running.total()
        load_running.wait_for(20)
        assert load_running.total() > before
    with ledger.connect(SOCKET) as connection:
        assert ledger.read_state(connection).journal


@pytest.mark.any_server
def test_a_holder_that_is_killed_leaks_no_clone(lab: Lab) -> None:
    assert lab.zsnapdb("backup").code == 0
    made = lab.zsnapdb("clone", "create", "main", "--name", "ci", "--heartbeat", "15s", "--json").json["clone"]
    assert made["heartbeat"] == 15
    beats_file = Path("/run/zsnapdb/heartbeats/ci")
    made_at = beats_file.stat().st_mtime_ns
    holder = subprocess.Popen(["sleep", "600"])
    beating = subprocess.Popen(["zsnapdb", "clone", "heartbeat", "ci", "--while", str(holder.pid)])
    try:
        # A busy host takes its time until somebody beats. Nobody looks for clones without beats before.
        beats, deadline = {made_at}, time.monotonic() + 300
        while beats_file.stat().st_mtime_ns == made_at:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        while len(beats) < 3:
            assert time.monotonic() < deadline
            beats.add(beats_file.stat().st_mtime_ns)
            verdicts = {one["name"]: one["verdict"] for one in lab.zsnapdb("reap", "--json").json["swept"]}
            assert verdicts["ci"] == "keep"
        assert beating.poll() is None
        holder.kill()
        holder.wait()
        assert beating.wait(timeout=120) == 0
    finally:
        for process in (holder, beating):
            process.kill()
            process.wait()
    # What begins within a minute takes it, however long that takes.
    ended = looked = time.monotonic()
    while any(name.endswith("/ci") for name in zfs("list", "-H", "-o", "name", "-r", "tank/zsnapdb/clones")):
        assert looked - ended < 60
        looked = time.monotonic()
        lab.zsnapdb("reap")
    assert not Path(f"/proc/{made['pid']}").exists()

"""The least lock is chosen with a reason, ends at its deadline, and is released on every way out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.lab.inside import ledger

from .in_guest import SOCKET, Done, Lab, everything, holds, started, zfs

pytestmark = pytest.mark.usefixtures("first")


def with_lock(lab: Lab, settings: str) -> Path:
    return lab.changed(('repository = "s3"', f'repository = "s3"\nlock = {{ {settings} }}'))


LONG = 600
"""Seconds that a statement in the way would take: who waits for it is seen to wait, on any machine."""


@contextlib.contextmanager
def long_select(lab: Lab, seconds: int) -> Iterator[int]:
    """Run a SELECT that keeps a ledger table open for that many seconds, unless killed; yield its connection."""
    connection = ledger.connect(SOCKET, read_timeout=seconds + 60)
    number = ledger.connection_id(connection)

    def read() -> None:
        with contextlib.suppress(pymysql.MySQLError), connection.cursor() as cursor:
            cursor.execute(f"SELECT SLEEP({seconds}) FROM accounts LIMIT 1")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 120
        while not lab.sql(
            f"SELECT 1 FROM information_schema.processlist WHERE id = {number} AND time >= 1 AND info"
            " LIKE 'SELECT SLEEP%'"
        ):
            assert time.monotonic() < until
            time.sleep(0.1)
        yield number
    finally:
        with contextlib.suppress(pymysql.MySQLError):
            lab.sql(f"KILL {number}")
        thread.join()
        connection.close()


def lock_of(done: Done) -> dict[str, Any]:
    lock: dict[str, Any] = done.json["backup"]["lock"]
    return lock


def test_lock_free_is_taken_where_it_is_forced(lab: Lab, load_running: ledger.Load) -> None:
    """That such a snapshot is exact is shown by the campaign `lockfree`: a whole run has a sample of it."""
    done = lab.zsnapdb("backup", "--json", config=with_lock(lab, 'strategy = "none"'))
    assert lock_of(done)["strategy"] == "none"


def test_ddl_in_the_way_of_the_instance_lock_is_not_waited_for(lab: Lab) -> None:
    if lab.flavour != "mysql":
        pytest.skip("MariaDB has no LOCK INSTANCE FOR BACKUP")
    lab.sql("CREATE TABLE ledger.altered (id INT)")
    with ledger.connect(SOCKET) as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT COUNT(*) FROM altered")
        alter = threading.Thread(
            target=lab.sql, args=("ALTER TABLE ledger.altered ADD COLUMN more INT, ALGORITHM=COPY",)
        )
        alter.start()
        until = time.monotonic() + 120
        while not lab.sql(
            "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock'"
        ):
            assert time.monotonic() < until
            time.sleep(0.05)
        done = lab.zsnapdb("backup", "--json")
        cursor.execute("ROLLBACK")
        alter.join()
    assert lock_of(done)["strategy"] == "none"
    assert "instance was not granted at once" in lock_of(done)["reason"]
    lab.sql("DROP TABLE ledger.altered")


def test_the_lesser_stage_of_mariadb_is_not_enough_as_it_lets_accounts_change(lab: Lab) -> None:
    if lab.flavour == "mysql":
        pytest.skip("MySQL has no BACKUP STAGE")
    with ledger.connect(SOCKET, "root", "", None) as owner, owner.cursor() as stage:
        stage.execute("BACKUP STAGE START")
        stage.execute("BACKUP STAGE BLOCK_DDL")
        lab.sql("CREATE USER passes@localhost")
        lab.sql("GRANT SELECT ON ledger.* TO passes@localhost")
        lab.sql("DROP USER passes@localhost")
        stage.execute("BACKUP STAGE BLOCK_COMMIT")
        with ledger.connect(SOCKET, "root", "", None) as other, other.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 1")
            with pytest.raises(pymysql.OperationalError, match="1205"):
                cursor.execute("CREATE USER waits@localhost")
        stage.execute("BACKUP STAGE END")


def test_a_long_select_delays_neither_the_default_lock_nor_any_writer(lab: Lab, load_running: ledger.Load) -> None:
    with long_select(lab, LONG):
        load_running.longest_wait = 0.0
        done = lab.zsnapdb("backup", "--json")
        assert lock_of(done)["strategy"] == ("instance" if lab.flavour == "mysql" else "stage")
        # Stopped while the SELECT still runs: every transfer that waits now is counted.
        load_running.stop()
        assert load_running.longest_wait < LONG / 10


def test_the_global_read_lock_is_not_even_tried_behind_a_long_select(lab: Lab, load_running: ledger.Load) -> None:
    before = everything(), holds()
    with long_select(lab, LONG) as number:
        load_running.longest_wait = 0.0
        done = lab.zsnapdb("backup", config=with_lock(lab, 'strategy = "ftwrl", budget = "10s"'))
        assert done.code == 10, done.stderr
        assert f"connection {number} (app)" in done.stderr
        assert "trying again in 0.5 s" in done.stderr
        assert "hint:" in done.stderr
        load_running.stop()
        assert load_running.longest_wait < LONG / 10
    assert (everything(), holds()) == before


def test_the_global_read_lock_is_tried_again_within_its_budget(lab: Lab) -> None:
    config = with_lock(lab, 'strategy = "ftwrl", budget = "600s"')
    words = ["zsnapdb", "backup", "--json"]
    env = {**os.environ, "ZSNAPDB_CONFIG": str(config)}
    with contextlib.ExitStack() as in_the_way:
        in_the_way.enter_context(long_select(lab, LONG))
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as backup:
            assert backup.stdout is not None
            assert backup.stderr is not None
            assert any("trying again" in line for line in backup.stderr)
            in_the_way.close()
            done = Done(0, backup.stdout.read(), backup.stderr.read())
    assert backup.returncode == 0, done.stderr
    assert lock_of(done)["strategy"] == "ftwrl"


def test_other_peoples_queries_are_ended_only_if_the_configuration_says_so(lab: Lab) -> None:
    lab.sql(f"GRANT {'CONNECTION_ADMIN' if lab.flavour == 'mysql' else 'CONNECTION ADMIN'} ON *.* TO zsnapdb@localhost")
    with long_select(lab, LONG):
        done = lab.zsnapdb(
            "backup", "--json", config=with_lock(lab, 'strategy = "ftwrl", budget = "0s", kill = "select"')
        )
        assert lock_of(done)["strategy"] == "ftwrl"
        assert lab.sql("SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'") == []


def test_a_query_that_gets_in_the_way_after_the_look_is_ended_where_that_is_allowed(
    lab: Lab, load_running: ledger.Load
) -> None:
    """On MySQL an abandoned attempt leaves tables marked for flush: writers would wait for the SELECT."""
    lab.sql(f"GRANT {'CONNECTION_ADMIN' if lab.flavour == 'mysql' else 'CONNECTION ADMIN'} ON *.* TO zsnapdb@localhost")
    with long_select(lab, LONG):
        load_running.longest_wait = 0.0
        settings = 'strategy = "ftwrl", longest_statement = "1h", deadline = "2s", budget = "300s", kill = "select"'
        done = lab.zsnapdb("backup", "--json", config=with_lock(lab, settings))
        assert lock_of(done)["strategy"] == "ftwrl"
    load_running.stop()
    assert load_running.longest_wait < LONG / 10


def test_a_lock_that_is_stuck_is_ended_at_its_deadline_and_writers_go_on(lab: Lab) -> None:
    """A lock of another connection blocks FLUSH TABLES; no running statement shows this before."""
    with ledger.connect(SOCKET) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES ballast WRITE")
        done = lab.zsnapdb("backup", config=with_lock(lab, 'strategy = "ftwrl", deadline = "500ms", budget = "0s"'))
        assert done.code == 10, done.stderr
        # Less than the least lock_wait_timeout there is: only the watchdog can have ended it.
        assert "was still waiting at lock.deadline = 0.5 s and was ended" in done.stderr
        # A lock that is left would keep this waiting until the connection gives up.
        lab.sql("UPDATE ledger.accounts SET balance = balance WHERE id = 1")
        cursor.execute("UNLOCK TABLES")
    # A server forgets a connection some time after it was closed.
    until = time.monotonic() + 120
    while lab.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'zsnapdb'") != [(0,)]:
        assert time.monotonic() < until


def test_a_strategy_the_server_does_not_have_is_refused_before_anything(lab: Lab, unchanged: None) -> None:
    other = "stage" if lab.flavour == "mysql" else "instance"
    done = lab.zsnapdb("backup", config=with_lock(lab, f'strategy = "{other}"'))
    assert done.code == 4
    assert "does not have it" in done.stderr
    done = lab.zsnapdb("backup", config=with_lock(lab, 'strategy = "percona"'))
    assert done.code == 4


def test_tables_that_a_crash_may_tear_are_not_snapshotted_without_a_lock(lab: Lab) -> None:
    lab.sql("CREATE TABLE ledger.torn (id INT) ENGINE=MyISAM")
    try:
        done = lab.zsnapdb("backup", config=with_lock(lab, 'strategy = "none"'))
        assert done.code == 4
        assert "1 MyISAM" in done.stderr
        plan = lab.zsnapdb("backup", "--plan", "--json").json
        assert plan["lock"]["strategy"] == ("ftwrl" if lab.flavour == "mysql" else "stage")
    finally:
        lab.sql("DROP TABLE ledger.torn")


@dataclass(frozen=True)
class WrittenTables:
    """Tables under writes from two connections, until `end` is called or the test is over."""

    names: tuple[str, ...]
    writers: tuple[threading.Thread, ...]
    stop: threading.Event

    def end(self) -> None:
        self.stop.set()
        for writer in self.writers:
            writer.join()


@pytest.fixture
def crash_unsafe_tables(lab: Lab) -> Iterator[WrittenTables]:
    """MyISAM (and, on MariaDB, Aria) tables under writes."""
    engines = (
        {"m": "MyISAM"}
        if lab.flavour == "mysql"
        else {"m": "MyISAM", "a": "Aria TRANSACTIONAL=0", "t": "Aria TRANSACTIONAL=1"}
    )
    for name, engine in engines.items():
        lab.sql(
            f"CREATE TABLE ledger.unsafe_{name} (id INT AUTO_INCREMENT PRIMARY KEY, body VARCHAR(2000), KEY (body(50)))"
            f" ENGINE={engine}"
        )
    stop = threading.Event()

    def write(seed: int) -> None:
        with ledger.connect(SOCKET) as connection, connection.cursor() as cursor:
            number = seed
            while not stop.wait(0.002):
                number += 2
                for name in engines:
                    cursor.execute(f"INSERT INTO unsafe_{name} (body) VALUES (REPEAT('{number}', {number % 300 + 1}))")
                    cursor.execute(
                        f"UPDATE unsafe_{name} SET body = CONCAT('u', body) WHERE id = {max(1, number // 3)}"
                    )

    threads = [threading.Thread(target=write, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 120
    while any(lab.sql(f"SELECT COUNT(*) FROM ledger.unsafe_{name}")[0][0] < 100 for name in engines):
        assert time.monotonic() < until
        time.sleep(0.05)
    tables = WrittenTables(tuple(f"unsafe_{name}" for name in engines), tuple(threads), stop)
    yield tables
    tables.end()
    for name in engines:
        lab.sql(f"DROP TABLE ledger.unsafe_{name}")


@pytest.fixture
def mapped_table(lab: Lab) -> Iterator[str]:
    """A table whose rows the server changes in place in its memory; the kernel writes them back seconds later."""
    lab.sql("SET GLOBAL myisam_use_mmap = ON")
    lab.sql("CREATE TABLE ledger.mapped (v INT NOT NULL) ENGINE=MyISAM ROW_FORMAT=FIXED")
    lab.sql(f"INSERT INTO ledger.mapped VALUES {', '.join(['(0)'] * 2000)}")
    lab.sql("FLUSH TABLES ledger.mapped")
    # Opened now, it stays mapped, whatever the switch says later.
    lab.sql("UPDATE ledger.mapped SET v = 1")
    lab.sql("SET GLOBAL myisam_use_mmap = OFF")
    yield "mapped"
    lab.sql("DROP TABLE ledger.mapped")


def test_tables_of_other_engines_are_whole_after_a_restore(
    lab: Lab, crash_unsafe_tables: WrittenTables, mapped_table: str
) -> None:
    lab.sql(f"UPDATE ledger.{mapped_table} SET v = 7")
    done = lab.zsnapdb("backup", "--json")
    crash_unsafe_tables.end()
    assert lock_of(done)["strategy"] == ("ftwrl" if lab.flavour == "mysql" else "stage")
    restored = lab.zsnapdb("restore", "main", "--target", "tank/engines", "--json").json
    with started(lab, restored) as connection, connection.cursor() as cursor:
        for table in crash_unsafe_tables.names:
            cursor.execute(f"CHECK TABLE ledger.{table} EXTENDED")
            assert [row[2:] for row in cursor.fetchall()] == [("status", "OK")], table
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            assert cursor.fetchall()[0][0] > 0
        cursor.execute(f"SELECT SUM(v) FROM {mapped_table}")
        assert cursor.fetchall() == ((14000,),)


def test_a_plan_tells_everything_and_touches_nothing(lab: Lab, unchanged: None) -> None:
    plan = lab.zsnapdb("backup", "--plan", "--json").json
    assert plan["volumes"] == {"data": "tank/mysql/data", "parent": "tank/mysql"}
    assert {(p["setting"], p["volume"]) for p in plan["paths"]} >= {
        ("datadir", "data"),
        ("innodb_log_group_home_dir", "parent"),
        ("log_bin_basename", "parent"),
    }
    assert sum(plan["block_sizes"].values()) > 3
    assert plan["page_size"] == 16384
    assert {f["what"] for f in plan["findings"]} >= {
        "server",
        "tables",
        "redo log",
        "binlog",
        "lock",
        "paths",
        "blocks",
        "datasets",
    }
    text = lab.zsnapdb("backup", "--plan").stdout
    assert "snapshot tank/mysql/data, tank/mysql in one request, then unlock" in text
    assert plan["lock"]["reason"] in text


def test_the_doctor_ends_with_1_or_2(lab: Lab, unchanged: None) -> None:
    # A host of the lab does not sign.
    assert warnings_of(lab) == ["signing"]
    lab.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    try:
        done = lab.zsnapdb("doctor", "main")
        assert done.code == 2
        assert "unfit" in done.stdout
        assert "set it to 2" in done.stdout
    finally:
        lab.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    with ledger.connect(SOCKET, "root", "", "ledger") as connection, connection.cursor() as cursor:
        cursor.execute("XA START 'left'")
        cursor.execute("UPDATE accounts SET balance = balance WHERE id = 1")
        cursor.execute("XA END 'left'")
        cursor.execute("XA PREPARE 'left'")
        try:
            assert sorted(warnings_of(lab)) == ["signing", "xa"]
        finally:
            cursor.execute("XA ROLLBACK 'left'")


def warnings_of(lab: Lab) -> list[str]:
    """Return the warnings of the doctor, which finds nothing worse. Nobody archives binlogs here."""
    done = lab.zsnapdb("doctor", "main", "--json")
    assert done.code == 1
    found = [f["what"] for f in json.loads(done.stdout)["instances"][0]["findings"] if f["severity"] == "warning"]
    return [what for what in found if what != "objective"]


def test_the_doctor_says_that_a_server_is_down(lab: Lab) -> None:
    done = lab.zsnapdb("doctor", "main", config=lab.changed(("/run/mysqld/mysqld.sock", "/run/mysqld/none.sock")))
    assert done.code == 2
    assert "/run/mysqld/none.sock" in done.stdout


@pytest.mark.any_server
def test_volumes_that_are_not_configured_are_found_and_the_chain_goes_on(lab: Lab) -> None:
    config = lab.changed(('volumes = { parent = "tank/mysql", data = "tank/mysql/data" }\n', ""))
    done = lab.zsnapdb("backup", "--json", config=config)
    assert not done.json["backup"]["full"]
    assert {v["role"]: v["dataset"] for v in done.json["backup"]["volumes"]} == {
        "data": "tank/mysql/data",
        "parent": "tank/mysql",
    }
    listed = lab.zsnapdb("list", "main", "--json", config=config).json["backups"]
    assert listed[-1]["local"]
    assert lab.zsnapdb("clone", "create", "main", "--plan", config=config).code == 0


def test_a_snapshot_says_whose_it_is_and_where_it_stands(lab: Lab) -> None:
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    for dataset in ("tank/mysql", "tank/mysql/data"):
        name = f"{dataset}@zsnapdb-{backup['backup_id']}"
        rows = [line.split("\t") for line in zfs("get", "-H", "-s", "local", "-o", "property,value", "all", name)]
        properties = dict(rows)
        position = backup["position"]
        assert properties["zsnapdb:backup"] == backup["backup_id"]
        assert properties["zsnapdb:instance"] == "main"
        assert properties["zsnapdb:lock"] == backup["lock"]["strategy"]
        assert properties["zsnapdb:version"]
        assert (
            properties["zsnapdb:position"]
            == f"{position['binlog_file']}:{position['binlog_offset']} {position['gtids']}"
        )

"""A backup of a replica has the position of the replica in its source.

The position is exact if the applier may be stopped for a moment; the applier always runs again afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.probe import channels, dialect

from .in_guest import CONFIG, Lab, started

pytestmark = pytest.mark.usefixtures("first")


@dataclass
class Upstream:
    """A source of the guest's server: a clone that writes numbered rows.

    It knows the last number at each of its binlog positions.
    """

    port: int
    user: str
    password: str
    flavour: str
    last_at: dict[tuple[str, int], int] = field(default_factory=dict)
    number: int = 0

    def connect(self) -> pymysql.Connection:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=self.password, autocommit=True
        )

    def position(self, cursor: pymysql.cursors.Cursor) -> tuple[str, int]:
        cursor.execute("SHOW BINARY LOG STATUS" if self.flavour == "mysql" else "SHOW MASTER STATUS")
        (row,) = cursor.fetchall()
        return str(row[0]), int(row[1])

    def write(self, stop: threading.Event) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            while not stop.wait(0.03):
                self.number += 1
                cursor.execute(f"INSERT INTO ledger.upstream VALUES ({self.number})")
                self.last_at[self.position(cursor)] = self.number


@pytest.fixture(scope="module")
def upstream(lab: Lab) -> Iterator[Upstream]:
    """The guest's server is a replica of a clone of itself, under writes, for the tests of this file.

    Each test leaves it applying.
    """
    assert lab.zsnapdb("backup").code == 0
    made = lab.zsnapdb("clone", "create", "main", "--name", "upstream", "--admin", "--json").json
    source = Upstream(made["clone"]["port"], made["user"], made["password"], lab.flavour)
    admin = "REPLICATION_SLAVE_ADMIN" if lab.flavour == "mysql" else "REPLICATION SLAVE ADMIN"
    lab.sql(f"GRANT {admin} ON *.* TO zsnapdb@localhost")
    stop = threading.Event()
    writer = threading.Thread(target=source.write, args=(stop,))
    try:
        with source.connect() as connection, connection.cursor() as cursor:
            if lab.flavour == "mariadb":
                cursor.execute("SET GLOBAL gtid_domain_id = 9")
                cursor.execute("SET SESSION gtid_domain_id = 9")
            file, offset = source.position(cursor)
            cursor.execute("CREATE TABLE ledger.upstream (id INT PRIMARY KEY)")
        if lab.flavour == "mysql":
            lab.sql(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={source.port},"
                f" SOURCE_USER='{source.user}', SOURCE_PASSWORD='{source.password}', SOURCE_AUTO_POSITION=1,"
                " GET_SOURCE_PUBLIC_KEY=1"
            )
            lab.sql("START REPLICA")
        else:
            lab.sql(
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={source.port}, MASTER_USER='{source.user}',"
                f" MASTER_PASSWORD='{source.password}', MASTER_LOG_FILE='{file}', MASTER_LOG_POS={offset},"
                " MASTER_USE_GTID=no"
            )
            lab.sql("START SLAVE")
        writer.start()
        wait_until(lambda: bool(lab.sql("SHOW TABLES FROM ledger LIKE 'upstream'")) and applied(lab) > 20)
        yield source
    finally:
        stop.set()
        writer.join()
        for statement in (
            ("STOP REPLICA", "RESET REPLICA ALL") if lab.flavour == "mysql" else ("STOP SLAVE", "RESET SLAVE ALL")
        ):
            lab.sql(statement)
        lab.sql(f"REVOKE {admin} ON *.* FROM zsnapdb@localhost")
        lab.sql("DROP TABLE IF EXISTS ledger.upstream")
        assert lab.zsnapdb("clone", "destroy", "upstream").code == 0


def applied(lab: Lab) -> int:
    return int(lab.sql("SELECT COALESCE(MAX(id), 0) FROM ledger.upstream")[0][0])


def wait_until(condition: Any, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_the_source_position_is_exact_when_the_applier_is_stopped(lab: Lab, upstream: Upstream) -> None:
    config = lab.changed(('repository = "s3"', 'repository = "s3"\nlock = { stop_applier = true }'))
    backup = lab.zsnapdb("backup", "--json", config=config).json["backup"]
    before = applied(lab)
    wait_until(lambda: applied(lab) > before)
    (channel,) = backup["channels"]
    assert (channel["host"], channel["port"], channel["exact"]) == ("127.0.0.1", upstream.port, True)
    restored = lab.zsnapdb("restore", "main", "--target", "tank/replica", "--json").json
    with started(lab, restored) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), MAX(id) FROM upstream")
        assert cursor.fetchone() == (upstream.last_at[channel["binlog_file"], channel["binlog_offset"]],) * 2


def test_an_applier_that_is_not_stopped_goes_on_and_its_position_is_told_as_near(lab: Lab, upstream: Upstream) -> None:
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    (channel,) = backup["channels"]
    assert channel["exact"] is False
    assert channel["binlog_file"]


def test_an_interrupted_run_starts_the_applier_again_and_leaves_a_channel_alone_that_was_stopped(
    lab: Lab, upstream: Upstream, tmp_path: Path
) -> None:
    hook = tmp_path / "interrupt"
    hook.write_text("#!/bin/sh\nkill -TERM $PPID; sleep 600\n")
    hook.chmod(0o755)
    if lab.flavour == "mysql":
        make, forget = (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=9 FOR CHANNEL 'idle'",
            "RESET REPLICA ALL FOR CHANNEL 'idle'",
        )
    else:
        make, forget = "CHANGE MASTER 'idle' TO MASTER_HOST='127.0.0.1', MASTER_PORT=9", "RESET SLAVE 'idle' ALL"
    lab.sql(make)
    try:
        lock = (
            'repository = "s3"\nlock = { stop_applier = true }\nhooks = [ { when = "locked", run = "'
            + str(hook)
            + '" } ]'
        )
        assert lab.zsnapdb("backup", config=lab.changed(('repository = "s3"', lock))).code == 130
        stuck = applied(lab)
        wait_until(lambda: applied(lab) > stuck)
        with Instance.of(load(CONFIG), "main").session() as session:
            running = {channel.name: channel.applying for channel in channels(session, dialect(session))}
        assert running == {"": True, "idle": False}
        assert not Path("/run/zsnapdb/applier-main").exists()
    finally:
        lab.sql(forget)


def test_an_applier_that_a_killed_run_left_stopped_is_started_by_the_next_one(
    lab: Lab, upstream: Upstream, tmp_path: Path
) -> None:
    hook = tmp_path / "kill"
    hook.write_text("#!/bin/sh\nkill -KILL $PPID\n")
    hook.chmod(0o755)
    lock = (
        'repository = "s3"\nlock = { stop_applier = true }\nhooks = [ { when = "locked", run = "' + str(hook) + '" } ]'
    )
    assert lab.zsnapdb("backup", config=lab.changed(('repository = "s3"', lock))).code == -9
    stuck = applied(lab)
    assert "left the applier stopped" in lab.zsnapdb("doctor").stdout
    done = lab.zsnapdb("backup", "--json")
    assert any("left the applier stopped" in text for text in done.json["warnings"])
    wait_until(lambda: applied(lab) > stuck)

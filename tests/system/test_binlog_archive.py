"""The binlog archive holds what the server wrote, under load, with rotations, and after kills of the archiver."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.config import load
from zsnapdb.gtid import contains
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import Flavour, parse_gtids
from zsnapdb.mysql.transactions import transactions
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

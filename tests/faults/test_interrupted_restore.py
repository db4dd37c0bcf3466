"""A restore ended at any step goes on with that step, and holds exactly what was asked for in the end; a store that is away is waited for."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import Any

import pytest

from tests.lab.guest import Guest, Running

PYTHON = "/opt/venv/bin/python"
HEAD = "import sys; sys.path.insert(0, '/checkout/tests/lab/inside'); import ledger; "
WRITE = (
    HEAD + "l = ledger.Load('/run/mysqld/mysqld.sock', rate=100.0); l.start(); l.wait_for(150); l.stop(); c = ledger.connect('/run/mysqld/mysqld.sock'); "
    "c.cursor().execute('CREATE TABLE later (id INT PRIMARY KEY, body LONGTEXT)'); "
    "[c.cursor().execute(f'INSERT INTO later VALUES ({n}, REPEAT(CHAR(65 + {n}), 1000000))') for n in range(20)]"
)
ARCHIVE = (
    "import sys; sys.path.insert(0, '/checkout/tests/lab/inside'); import archiver, ledger; from pathlib import Path; from zsnapdb.config import load; "
    "from zsnapdb.jobs.common import Instance; c = ledger.connect('/run/mysqld/mysqld.sock', 'root', '', None).cursor(); "
    "c.execute('SHOW VARIABLES LIKE \"server_uuid\"'); r = c.fetchone(); "
    "archiver.archive(Instance.of(load(), None), Path('/var/lib/mysql'), r[1] if r else None, 1)"
)
STATE = (
    HEAD + "import json; c = ledger.connect(sys.argv[1], 'root', '', 'ledger'); s = ledger.read_state(c); k = c.cursor(); "
    "k.execute('SELECT COUNT(*), SUM(CRC32(body)) FROM later'); "
    "print(json.dumps([sorted(s.journal), sorted(s.accounts.items()), s.ballast, str(k.fetchone())]))"
)
TOP = "tank/resumed"
RESTORE = ["zsnapdb", "restore", "main", "--to", "latest", "--target", TOP, "--handover", "run", "--json"]
RESUME = ["zsnapdb", "restore", "main", "--resume", "--target", TOP, "--json"]


@pytest.fixture
def prepared(guest: Guest) -> str:
    """A full backup, an increment, and archived binlogs behind it; journals on a dataset, so that a power cut leaves them; the source's state."""
    guest.run(["zfs", "create", "-o", "mountpoint=/var/lib/zsnapdb", "tank/state"]).check()
    guest.run([PYTHON, "-c", HEAD + "ledger.set_up('/run/mysqld/mysqld.sock')"]).check()
    guest.run(["zsnapdb", "backup"]).check()
    guest.run([PYTHON, "-c", HEAD + "c = ledger.connect('/run/mysqld/mysqld.sock').cursor(); c.execute('CREATE TABLE between_backups (id INT)')"]).check()
    guest.run(["zsnapdb", "backup"]).check()
    guest.run([PYTHON, "-c", WRITE], timeout=180).check()
    guest.run([PYTHON, "-c", ARCHIVE], env={"PYTHONPATH": "/checkout"}, timeout=120).check()
    return guest.run([PYTHON, "-c", STATE, "/run/mysqld/mysqld.sock"]).check().stdout


def steps(guest: Guest) -> list[str]:
    plan: dict[str, Any] = json.loads(guest.run([*RESTORE, "--plan"]).check().stdout)
    return [step["name"] for step in plan["steps"]]


def wait_for_step(running: Running, step: str) -> None:
    """Wait until the command says that it begins the step."""
    deadline = time.monotonic() + 180
    while f"zsnapdb: {step}: " not in running.output(2):
        assert time.monotonic() < deadline, running.output(2)
        assert not running.done.is_set(), running.output(2)
        time.sleep(0.02)


def check_end(guest: Guest, prepared: str) -> None:
    """The restore goes on to its end, and the restored server holds what the source holds."""
    restored = json.loads(guest.run(RESUME, timeout=300).check().stdout)
    assert restored["finished"]
    assert guest.run([PYTHON, "-c", STATE, f"{restored['mount']}/.zsnapdb/server.sock"]).check().stdout == prepared
    left = guest.run(["sh", "-c", "zfs list -H -t snapshot -o name | grep zsnapdb-restore-; ls /var/lib/zsnapdb/restores/*.json"])
    assert left.stdout == ""


def test_killed_in_every_step(guest: Guest, prepared: str) -> None:
    chance = random.Random(3)
    names = steps(guest)
    command = RESTORE
    for name in names[1:]:
        running = guest.spawn(command)
        wait_for_step(running, name)
        running.done.wait(chance.uniform(0.0, 1.5))
        running.signal(signal.SIGKILL)
        running.wait(60)
        command = RESUME
    refused = guest.run(RESTORE)
    assert (refused.code, "--resume" in refused.stderr) in ((4, True), (8, True)), refused.stderr
    check_end(guest, prepared)


def test_power_cut_in_receive_recover_and_replay(guest: Guest, prepared: str) -> None:
    if guest.run(["cat", "/opt/s3/which"]).stdout.strip() == "moto":
        pytest.skip("without a Go toolchain the guest's S3 server keeps its objects in memory, which a power cut takes with it")
    names = steps(guest)
    receives = [name for name in names if name.startswith("receive-")]
    command = RESTORE
    for name in (receives[-1], "recover", "replay-1"):
        running = guest.spawn(command)
        wait_for_step(running, name)
        running.done.wait(0.7)
        guest.power_cut()
        guest.start()
        command = RESUME
    check_end(guest, prepared)


def test_a_store_that_is_away_for_a_minute_is_waited_for(guest: Guest, prepared: str) -> None:
    if guest.run(["cat", "/opt/s3/which"]).stdout.strip() == "moto":
        pytest.skip("without a Go toolchain the guest's S3 server keeps its objects in memory, and forgets them when it ends")
    name = next(name for name in steps(guest) if name.startswith("receive-") and name.endswith("-data"))
    running = guest.spawn(RESTORE)
    wait_for_step(running, name)
    guest.run(["/checkout/tests/lab/inside/s3", "stop"]).check()
    assert not running.done.wait(60), running.output(2)
    guest.run(["/checkout/tests/lab/inside/s3", "start"]).check()
    restored = json.loads(running.wait(300).check().stdout)
    assert guest.run([PYTHON, "-c", STATE, f"{restored['mount']}/.zsnapdb/server.sock"]).check().stdout == prepared


def test_given_up_it_leaves_nothing(guest: Guest, prepared: str) -> None:
    listing = ["zfs", "list", "-H", "-t", "all", "-o", "name"]
    before = guest.run(listing).check().stdout
    stopped = json.loads(guest.run([*RESTORE, "--stop-after", "recover"], timeout=300).check().stdout)
    assert (stopped["finished"], stopped["next_step"]) == (False, "replay-1")
    assert guest.run(listing).check().stdout != before
    guest.run(["zsnapdb", "restore", "main", "--abandon", "--target", TOP]).check()
    assert guest.run(listing).check().stdout == before

"""A backup ended at any moment leaves no lock, nothing half-made that is listed, and the next one works by itself."""

from __future__ import annotations

import json
import random
import signal

import pytest

from tests.lab.guest import Guest

PREPARE = "import sys; sys.path.insert(0, '/checkout/tests/lab/inside'); import ledger; ledger.set_up('/run/mysqld/mysqld.sock')"
WRITE = (
    "import sys; sys.path.insert(0, '/checkout/tests/lab/inside'); import ledger; c = ledger.connect('/run/mysqld/mysqld.sock'); "
    "c.cursor().execute('UPDATE accounts SET balance = balance + 0 WHERE id = 1'); "
    "c.cursor().execute('CREATE TABLE IF NOT EXISTS lock_probe (id INT)'); c.close()"
)
PYTHON = "/opt/venv/bin/python"


def backups(guest: Guest) -> list[str]:
    done = guest.run(["zsnapdb", "list", "--json"])
    if done.code == 6 and "no repository yet" in done.stderr:
        return []
    return [b["backup_id"] for b in json.loads(done.check().stdout)["backups"]]


def snapshots(guest: Guest) -> set[str]:
    lines = guest.run(["zfs", "list", "-H", "-t", "snapshot", "-o", "zsnapdb:backup"]).check().stdout.split()
    return set(lines)


def check_clean_and_working(guest: Guest, known: list[str]) -> list[str]:
    """No lock blocks a write or DDL; what is listed is what was good; the next backup works and sweeps what was left."""
    guest.run([PYTHON, "-c", WRITE], timeout=20).check()
    listed = backups(guest)
    assert set(known) <= set(listed)
    guest.run(["zsnapdb", "backup"]).check()
    after = backups(guest)
    assert len(after) == len(listed) + 1
    assert snapshots(guest) == set(after)
    assert guest.run(["sh", "-c", "zfs list -H -t snapshot -o name | xargs zfs holds -H"]).check().stdout == ""
    return after


def test_killed_at_random_moments(guest: Guest) -> None:
    guest.run([PYTHON, "-c", PREPARE]).check()
    guest.run(["zsnapdb", "backup"]).check()
    known = backups(guest)
    moments = random.Random(2).sample(range(5, 70), 3)
    for tenths in moments:
        command = guest.spawn(["zsnapdb", "backup"])
        command.done.wait(tenths / 10)
        command.signal(signal.SIGKILL)
        command.wait(30)
        known = check_clean_and_working(guest, known)


def test_terminated_politely_it_leaves_nothing_at_all(guest: Guest) -> None:
    guest.run([PYTHON, "-c", PREPARE]).check()
    before = guest.run(["zfs", "list", "-H", "-t", "all", "-o", "name"]).check().stdout
    command = guest.spawn(["zsnapdb", "backup"])
    waiting = "until zfs list -H -t snapshot -o name | grep -q zsnapdb-; do sleep 0.05; done"
    guest.run(["sh", "-c", waiting], timeout=60).check()
    command.signal(signal.SIGTERM)
    assert command.wait(60).code == 130
    assert guest.run(["zfs", "list", "-H", "-t", "all", "-o", "name"]).check().stdout == before
    check_clean_and_working(guest, [])


def test_power_cut_during_the_upload(guest: Guest) -> None:
    if guest.run(["cat", "/opt/s3/which"]).stdout.strip() == "moto":
        pytest.skip("without a Go toolchain the guest's S3 server keeps its objects in memory, which a power cut takes with it")
    guest.run([PYTHON, "-c", PREPARE]).check()
    guest.run(["zsnapdb", "backup"]).check()
    known = backups(guest)
    guest.spawn(["zsnapdb", "backup"])
    waiting = "until [ $(zfs list -H -t snapshot -o name | grep -c zsnapdb-) -ge 4 ]; do sleep 0.05; done"
    guest.run(["sh", "-c", waiting], timeout=60).check()
    guest.power_cut()
    guest.start()
    check_clean_and_working(guest, known)

"""Helpers of the fault tests: fill the server of a guest, read its backups and snapshots, check that it works."""

from __future__ import annotations

import json
import signal
import time

from tests.lab.guest import Guest, Running

PREPARE = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger;"
    " ledger.set_up('/run/mysqld/mysqld.sock')"
)
WRITE = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger; c ="
    " ledger.connect('/run/mysqld/mysqld.sock'); c.cursor().execute('UPDATE accounts SET balance = balance + 0 WHERE id"
    " = 1'); c.cursor().execute('CREATE TABLE IF NOT EXISTS lock_probe (id INT)'); c.close()"
)
PYTHON = "/opt/venv/bin/python"
QUICK = "/checkout/tests/lab/inside/quick"
"""In place of `zsnapdb` where only the command's answer matters, and nothing interrupts it."""
CONFIG = "/etc/zsnapdb/zsnapdb.toml"
STOP_COMMAND = "pkill -STOP -f '^/opt/venv/bin/python -m zsnapdb (backup|restore)'"
"""A command of a shell that stops the process of a command of ours."""


def speed_up(guest: Guest) -> None:
    """Have QUICK answered by a process that has imported the package. A power cut ends it; QUICK works all the same."""
    guest.spawn([PYTHON, "/checkout/tests/lab/inside/zygote.py", "/run/zygote"])
    guest.run(["sh", "-c", "until [ -e /run/zygote ]; do sleep 0.1; done"], timeout=600).check()


def backups(guest: Guest) -> list[str]:
    done = guest.run([QUICK, "list", "--json"])
    if done.code == 6 and "there is no repository" in done.stderr:
        return []
    return [b["backup_id"] for b in json.loads(done.check().stdout)["backups"]]


def snapshots(guest: Guest) -> set[str]:
    lines = guest.run(["zfs", "list", "-H", "-t", "snapshot", "-o", "zsnapdb:backup"]).check().stdout.split()
    return set(lines)


def check_clean_and_working(guest: Guest, known: list[str]) -> list[str]:
    """Check that no lock blocks a write or DDL, that listed backups are good, and that the next backup works.

    The next backup finishes or removes the leftovers. Return the ids of all backups after that.
    """
    guest.run([PYTHON, "-c", WRITE]).check()
    listed = backups(guest)
    assert set(known) <= set(listed)
    done = json.loads(guest.run([QUICK, "backup", "--json"], timeout=600).check().stdout)
    document = json.loads(guest.run([QUICK, "list", "--json"]).check().stdout)
    after = [b["backup_id"] for b in document["backups"]]
    assert set(after) == {*listed, *done["continued"], done["backup"]["backup_id"]}
    assert snapshots(guest) == set(after)
    assert guest.run(["sh", "-c", "zfs list -H -t snapshot -o name | xargs zfs holds -H"]).check().stdout == ""
    assert guest.run(
        ["sh", "-c", "zfs list -H -t bookmark -o name | sed 's/.*#zsnapdb-//' | sort -u"]
    ).check().stdout.split() == sorted(after)
    assert guest.run(["find", "/var/lib/zsnapdb/journal", "-type", "f"]).stdout == ""
    assert document["unfinished"] == []
    return after


def wait_for_step(running: Running, names: list[str]) -> str:
    """Wait until the command reports the begin of one of the steps. Return the step."""
    deadline = time.monotonic() + 600
    while True:
        # What it said last comes before its end.
        has_ended = running.done.wait(0.02)
        for name in reversed(names):
            if f"zsnapdb: {name}: " in running.output(2):
                return name
        assert time.monotonic() < deadline, running.output(2)
        assert not has_ended, running.output(2)


def take_the_store_away(guest: Guest, running: Running) -> None:
    """Stop the S3 server until the command has twice said that it tries again later. The command must not end.

    The command's group is stopped, as Ctrl-Z does, until the server was told to end, so it does not come to its own
    end before. A server that ends may wait for a request that is under way: then the command goes on.
    """
    running.signal(signal.SIGSTOP)
    guest.run(["sh", "-c", "kill $(cat /run/s3.pid)"]).check()
    running.signal(signal.SIGCONT)
    guest.run(["/checkout/tests/lab/inside/s3", "stop"]).check()
    deadline = time.monotonic() + 600
    while running.output(2).count("; trying again in ") < 2:
        assert not running.done.wait(0.1), running.output(2)
        assert time.monotonic() < deadline, running.output(2)
    guest.run(["/checkout/tests/lab/inside/s3", "start"]).check()

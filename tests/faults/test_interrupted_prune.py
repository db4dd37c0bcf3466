"""A prune killed at any moment leaves listed backups complete; later runs finish on the host and in the repository."""

from __future__ import annotations

import json
import random
import signal

import pytest

from tests.lab.guest import Guest

from .in_guest import QUICK, speed_up

pytestmark = pytest.mark.any_server

PYTHON = "/opt/venv/bin/python"
PREPARE = (
    "import sys; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger;"
    " ledger.set_up('/run/mysqld/mysqld.sock')"
)
CONFIG = "/etc/zsnapdb/zsnapdb.toml"
KEEP = f"printf '\\n[instance.main.keep]\\nlast = 1\\nlocal_minimum = 1\\nsweep_after = \"1h\"\\n' >> {CONFIG}"
OTHER_ROLES = f"sed -i 's/parent = /logs = /; s/ data = / files = /' {CONFIG}"
LATER = "busybox date -s @$(($(busybox date +%s) + 200000))"
"""Two days later the leftovers of a killed run are old enough to be swept."""


def listed(guest: Guest) -> list[str]:
    return [b["backup_id"] for b in json.loads(guest.run([QUICK, "list", "--json"]).check().stdout)["backups"]]


def local(guest: Guest) -> set[str]:
    lines = guest.run(["zfs", "list", "-H", "-t", "snapshot,bookmark", "-o", "name"]).check().stdout.split()
    return {line.partition("zsnapdb-")[2] for line in lines}


def test_killed_at_random_moments(guest: Guest) -> None:
    guest.run([PYTHON, "-c", PREPARE]).check()
    guest.run(["sh", "-c", KEEP]).check()
    speed_up(guest)
    for number in range(4):
        if number == 3:
            # The other roles make the last backup a full one, so that all earlier backups expire.
            guest.run(["sh", "-c", OTHER_ROLES]).check()
        guest.run([QUICK, "backup"]).check()
    last = listed(guest)[-1]
    moments = random.Random(5)
    for _ in range(5):
        command = guest.spawn(["zsnapdb", "prune"])
        command.done.wait(moments.uniform(0.6, 3.0))
        command.signal(signal.SIGKILL)
        command.wait(600)
        assert last in listed(guest)
        guest.run([QUICK, "verify"]).check()
    guest.run([QUICK, "prune"], timeout=600).check()
    guest.run(["sh", "-c", LATER]).check()
    doubted = guest.run([QUICK, "prune"], timeout=600)
    assert (doubted.code, "ahead of the clock of the store" in doubted.stderr) == (4, True), doubted.stderr
    guest.run([QUICK, "prune", "--trust-clock"], timeout=600).check()
    assert listed(guest) == [last]
    assert local(guest) == {last}
    folders = guest.run(["sh", "-c", "find /srv/s3 -path '*chunks*' -type f"]).check().stdout.splitlines()
    assert folders
    assert all(last in path for path in folders)
    guest.run([QUICK, "verify", "--deep"]).check()

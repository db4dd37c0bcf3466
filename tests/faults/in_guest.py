"""Helpers of the fault tests: fill the server of a guest, read its backups and snapshots, check that it works."""

from __future__ import annotations

import json

from tests.lab.guest import Guest

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
CONFIG = "/etc/zsnapdb/zsnapdb.toml"


def backups(guest: Guest) -> list[str]:
    done = guest.run(["zsnapdb", "list", "--json"])
    if done.code == 6 and "no repository yet" in done.stderr:
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
    done = json.loads(guest.run(["zsnapdb", "backup", "--json"], timeout=600).check().stdout)
    after = backups(guest)
    assert set(after) == {*listed, *done["continued"], done["backup"]["backup_id"]}
    assert snapshots(guest) == set(after)
    assert guest.run(["sh", "-c", "zfs list -H -t snapshot -o name | xargs zfs holds -H"]).check().stdout == ""
    assert guest.run(
        ["sh", "-c", "zfs list -H -t bookmark -o name | sed 's/.*#zsnapdb-//' | sort -u"]
    ).check().stdout.split() == sorted(after)
    assert guest.run(["find", "/var/lib/zsnapdb/journal", "-type", "f"]).stdout == ""
    assert json.loads(guest.run(["zsnapdb", "list", "--json"]).check().stdout)["unfinished"] == []
    return after

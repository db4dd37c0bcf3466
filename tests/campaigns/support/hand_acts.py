"""Acts of users after a verb of the campaign `hands` was interrupted: in any order, sensible or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.campaigns.support.hand_site import BINLOG_TOOLS, CONFIG, FILLED, REAPING, SERVER, Site
from tests.campaigns.support.hand_verbs import StartedBackup

FILL = f"""
zfs list {FILLED} >/dev/null 2>&1 && exit 0
zfs create {FILLED}
zpool sync
zfs set refreservation=$(($(zfs get -H -p -o value available {FILLED}) - 65536)) {FILLED}
"""
CHILD = "tank/mysql/foreign"


@dataclass(frozen=True)
class Command:
    """An act that is a command of zsnapdb."""

    words: tuple[str, ...]
    config: str = CONFIG


def commands(started: StartedBackup) -> dict[str, Command]:
    return {
        "resume": Command(started.again, started.config),
        "abandon": Command(("restore", "main", "--abandon")),
        "reap": Command(("reap",), REAPING),
        "again": Command(started.words, started.config),
        "backup": Command(("backup",)),
        "snapshot": Command(("snapshot", "main")),
        "prune": Command(("prune", "main")),
        "setup": Command(("setup", "--answers", "/etc/zsnapdb/answers.toml", "--yes")),
        "doctor": Command(("doctor", "main")),
        "rewind resume": Command(("rewind", "main", "--resume", "--yes", "--no-backup")),
    }


def _fill(site: Site) -> None:
    site.sh(FILL)


def _child(site: Site) -> None:
    """Create a dataset of the site below the server's, with a file in it."""
    site.sh(f"zfs list {CHILD} >/dev/null 2>&1 || zfs create {CHILD} 2>&1 && : > /var/lib/mysql/foreign/file || :")


def _foreign_snapshot(site: Site) -> None:
    site.sh("zfs snapshot -r tank/mysql@foreign-$(date +%s%N) || :")


def _password(site: Site) -> None:
    site.sh(
        "/opt/venv/bin/python /checkout/tests/lab/inside/lines.py sql"
        " \"ALTER USER root@localhost IDENTIFIED BY 'Another-1'\" >/dev/null 2>&1 || :"
    )


def _start(site: Site) -> None:
    """Start the server as the site does, unless it runs."""
    if not site.facts().serving:
        site.guest.run([SERVER, "start"], timeout=280)


def _stop(site: Site) -> None:
    site.sh(f"{SERVER} stop")


def _reader(site: Site) -> None:
    """Read the binlogs from now on, as a replica does."""
    words = [
        BINLOG_TOOLS[site.flavour],
        "--read-from-remote-server",
        "--stop-never",
        "--raw",
        "--result-file=/tmp/read-",
    ]
    number = "--connection-server-id=77" if site.flavour == "mysql" else "--stop-never-slave-server-id=77"
    account = ["--user=hands", "--password=lab-hands", "--socket=/run/mysqld/mysqld.sock"]
    first = site.sh("head -1 /var/lib/mysql/binlog.index 2>/dev/null || echo x").strip().rpartition("/")[2]
    site.guest.spawn([*words, number, *account, first])


OTHERS: dict[str, Callable[[Site], None]] = {
    "boot": Site.boot,
    "start": _start,
    "stop": _stop,
    "password": _password,
    "fill": _fill,
    "child": _child,
    "foreign snapshot": _foreign_snapshot,
    "reader": _reader,
}
WEIGHTS = {
    "resume": 4,
    "abandon": 4,
    "reap": 6,
    "again": 2,
    "backup": 2,
    "boot": 3,
    "start": 2,
    "hint": 3,
}
"""Relative frequency of each act; others have 1."""


def chosen(chance: random.Random, started: StartedBackup) -> list[str]:
    """Return one to four acts."""
    names = [*commands(started), *OTHERS, "hint"]
    return chance.choices(names, [WEIGHTS.get(name, 1) for name in names], k=chance.randint(1, 4))


def free_the_pool(site: Site) -> None:
    site.sh(f"zfs list {FILLED} >/dev/null 2>&1 && zfs destroy {FILLED}; zpool sync; :")

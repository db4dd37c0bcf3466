"""What tests of rewinds do to the guest's server: an accident, a rewind that may stop it, and the way back."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.lab.inside import ledger

from .in_guest import SERVER, SOCKET, Lab, remove_datasets, zfs

SERVER_OPTIONS = Path("/etc/lab.cnf")
INCLUDED = Path("/etc/lab.d")


def state() -> ledger.State:
    with ledger.connect(SOCKET, "root", "") as connection:
        return ledger.read_state(connection)


@contextlib.contextmanager
def controlled(lab: Lab) -> Iterator[tuple[tuple[str, str], ...]]:
    """Say how the guest's server is stopped and started. Afterwards the first server is in its place again."""
    before = SERVER_OPTIONS.read_text()
    INCLUDED.mkdir(exist_ok=True)
    SERVER_OPTIONS.write_text(f"{before}\n!includedir {INCLUDED}\n")
    section = [
        "[instance.main.control]",
        f'stop = ["{SERVER}", "stop"]',
        f'start = ["{SERVER}", "start"]',
        f'server_id_file = "{INCLUDED}/zsnapdb.cnf"',
        "",
        "[repository.s3]",
    ]
    yield (("[repository.s3]", "\n".join(section)),)
    SERVER_OPTIONS.write_text(before)
    for file in INCLUDED.iterdir():
        file.unlink()
    to_the_first_server(lab)


def to_the_first_server(lab: Lab) -> None:
    """Put the oldest replaced datasets back, for the tests after this one, and remove the others."""
    subprocess.run([SERVER, "stop"], check=False)
    olds = sorted(
        (name for name in zfs("list", "-H", "-o", "name", "-d", "1", "tank") if "/mysql-replaced-" in name),
        key=lambda name: int(zfs("get", "-H", "-p", "-o", "value", "creation", name)[0]),
    )
    for old in olds[:1]:
        for dataset in ("tank/mysql/data", "tank/mysql"):
            if zfs("get", "-H", "-o", "value", "mounted", dataset) == ["yes"]:
                zfs("unmount", dataset)
            zfs("set", "canmount=noauto", dataset)
        zfs("rename", "tank/mysql", "tank/was-rewound")
        zfs("rename", old, "tank/mysql")
        for dataset in ("tank/mysql", "tank/mysql/data"):
            if zfs("get", "-H", "-o", "value", "origin", dataset) != ["-"]:
                zfs("promote", dataset)
            for name in ("", "-instance", "-role", "-at"):
                zfs("inherit", f"zsnapdb:replaced{name}", dataset)
            zfs("set", "canmount=on", dataset)
            zfs("mount", dataset)
    for top in [*olds[1:], *(["tank/was-rewound"] if olds else [])]:
        remove_datasets(top)
    for name in zfs("list", "-H", "-t", "snapshot", "-o", "name", "-r", "tank/mysql"):
        if "@foreign_" in name:
            zfs("destroy", name)
    subprocess.run([SERVER, "start"], check=True)


def gtid_of(lab: Lab, kind: str) -> str:
    """Return the GTID of the newest transaction that did this to the table of the accident."""
    words = ("binlog", "find", "main", "--json", "--table", "rewound.lines", "--kind", kind, "--limit", "1")
    (entry,) = lab.zsnapdb(*words).json["transactions"]
    return str(entry["gtid"])


def lines(lab: Lab) -> list[int]:
    return [number for (number,) in lab.sql("SELECT number FROM rewound.lines ORDER BY number")]


def accident(lab: Lab) -> tuple[ledger.State, str]:
    """Return the ledger before an accident, and the point before it."""
    lab.sql("DROP DATABASE IF EXISTS rewound")
    lab.sql("CREATE DATABASE rewound")
    lab.sql("CREATE TABLE rewound.lines (number INT PRIMARY KEY)")
    lab.sql("INSERT INTO rewound.lines VALUES (1), (2), (3)")
    before = state()
    lab.sql("DELETE FROM rewound.lines")
    lab.sql("CREATE TABLE rewound.after_it (id INT)")
    return before, f"before-{gtid_of(lab, 'delete')}"

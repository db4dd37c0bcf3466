"""Numbered rows that are acknowledged outside the guest, and facts about the guest's server from the kernel and ZFS.

`write FIRST` commits rows until it is killed and prints `A NUMBER` for each acknowledged row; it reconnects when the
server comes back. `some FIRST COUNT` commits COUNT rows and ends. `read` and `sql` query a server. `facts` prints the
processes that serve the data directory, and the datasets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.lab.inside import ledger

SOCKET = "/run/mysqld/mysqld.sock"
USER, PASSWORD = "hands", "lab-hands"
DATADIR = "/var/lib/mysql/data"
PROGRAMS = ("mysqld", "mariadbd")
COLUMNS = ("name", "guid", "mounted", "canmount", "origin", "zsnapdb:replaced", "zsnapdb:restored")


def write(first: int) -> None:
    number = first
    while True:
        try:
            with ledger.connect(SOCKET, USER, PASSWORD, "hands", read_timeout=20) as connection:
                while True:
                    # Each number is used once, because only the answer to a commit may have been lost.
                    number += 1
                    with connection.cursor() as cursor:
                        cursor.execute(f"INSERT INTO numbers VALUES ({number - 1}, REPEAT('x', 2000))")
                    print(f"A {number - 1}", flush=True)
                    time.sleep(0.05)
        except (pymysql.MySQLError, OSError):
            time.sleep(0.1)


def some(first: int, count: int) -> None:
    with ledger.connect(SOCKET, USER, PASSWORD, "hands") as connection, connection.cursor() as cursor:
        for number in range(first, first + count):
            cursor.execute(f"INSERT INTO numbers VALUES ({number}, REPEAT('x', 2000))")
            print(f"A {number}", flush=True)


def ask(address: str, user: str, password: str, statements: list[str]) -> list[list[object]]:
    with (
        pymysql.connect(
            unix_socket=address if "/" in address else None,
            host="127.0.0.1",
            port=0 if "/" in address else int(address),
            user=user,
            password=password,
            autocommit=True,
            read_timeout=60,
        ) as connection,
        connection.cursor() as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)
        return [list(row) for row in cursor.fetchall()] if cursor.description else []


def serving() -> list[int]:
    """Return the processes that serve the data directory of the site's server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program, folder = os.readlink(entry / "exe"), os.readlink(entry / "cwd")
                words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
            except OSError:
                continue
            # The lab starts MySQL through the dynamic loader of its prefix, which is then the program.
            names = {os.path.basename(word) for word in (program.removesuffix(" (deleted)"), *words)}
            if names & set(PROGRAMS) and folder == DATADIR:
                found.append(int(entry.name))
    return found


def facts() -> dict[str, object]:
    listed = subprocess.run(
        ["zfs", "list", "-H", "-p", "-r", "-o", ",".join(COLUMNS), "tank"], capture_output=True, text=True, check=True
    )
    rows = [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in listed.stdout.splitlines()]
    try:
        answers = bool(ask(SOCKET, USER, PASSWORD, ["SELECT 1"]))
    except (pymysql.MySQLError, OSError):
        answers = False
    return {"serving": serving(), "answers": answers, "datasets": rows}


def main(words: list[str]) -> None:
    match words:
        case ["write", first]:
            write(int(first))
        case ["some", first, count]:
            some(int(first), int(count))
        case ["read"]:
            print(json.dumps([row[0] for row in ask(SOCKET, USER, PASSWORD, ["SELECT number FROM hands.numbers"])]))
        case ["read", port, user, password]:
            print(json.dumps([row[0] for row in ask(port, user, password, ["SELECT number FROM hands.numbers"])]))
        case ["sql", *statements]:
            print(json.dumps(ask(SOCKET, USER, PASSWORD, statements)))
        case ["root", *statements]:
            print(json.dumps(ask(SOCKET, "root", "", statements)))
        case ["facts"]:
            print(json.dumps(facts()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

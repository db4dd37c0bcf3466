"""In the guest: what commands ask a server with a few tables, and one with many: `tables.py MANY`.

Writes /out/tables.json: for each stage ("few", "many") and command the wall time and processor seconds, how many
statements the server answered, their seconds by the server's slow log, and the slowest. A backup has its lock too.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymysql

SOCKET = "/run/mysqld/mysqld.sock"
SLOW = Path("/var/log/lab/slow.log")
FEW = 10
ROUNDS = 2
SHOWN = 5
SCHEMA = "many_tables"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "backup": ("backup", "main"),
    "snapshot": ("snapshot", "main"),
    "doctor": ("doctor", "main"),
    "status": ("status", "main"),
    "clone create": ("clone", "create", "main", "--name", "own"),
    "diff": ("diff", "main", "--table", f"{SCHEMA}.t1", "--from", "{first}"),
    "drill": ("drill", "main"),
}
_ENTRY = re.compile(r"^# User@Host: (\w+)\[", re.MULTILINE)
_NO_STATEMENT = ("#", "SET timestamp", "use ")
_TIME = re.compile(r"^# Query_time: ([\d.]+)", re.MULTILINE)


def root() -> pymysql.connections.Connection[Any]:
    return pymysql.connect(unix_socket=SOCKET, user="root", autocommit=True, read_timeout=3600)


def add_tables(first: int, last: int) -> None:
    """Create the tables numbered from `first` to `last`, each with one row; nothing waits for the disk meanwhile."""
    subprocess.run(["zfs", "set", "sync=disabled", "tank"], check=True)
    with root() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {SCHEMA}")
        for number in range(first, last + 1):
            columns = "id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40), at DATETIME, INDEX (name)"
            cursor.execute(f"CREATE TABLE {SCHEMA}.t{number} ({columns}) ENGINE=InnoDB")
            cursor.execute(f"INSERT INTO {SCHEMA}.t{number} (name) VALUES ('n{number}')")
            if number % 1000 == 0:
                print(f"{number} tables", time.strftime("%X"), flush=True)
    subprocess.run(["zfs", "inherit", "sync", "tank"], check=True)


def answered() -> list[tuple[float, str]]:
    """Return the statements of the account of zsnapdb since the last call: seconds and beginning of the text."""
    text = SLOW.read_text(errors="replace")
    SLOW.write_text("")
    starts = [*(match.start() for match in _ENTRY.finditer(text)), len(text)]
    entries = [text[low:high] for low, high in pairwise(starts)]
    statements = []
    for entry in entries:
        if entry.startswith("# User@Host: zsnapdb["):
            seconds = _TIME.search(entry)
            lines = [line for line in entry.splitlines() if line and not line.startswith(_NO_STATEMENT)]
            statements.append((float(seconds[1]) if seconds else 0.0, " ".join(lines)[:150]))
    return statements


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measured(words: Sequence[str]) -> dict[str, Any]:
    """Return the median round of a command by its wall time."""
    rounds: list[dict[str, Any]] = []
    for _ in range(ROUNDS):
        answered()
        before, began = used(), time.monotonic()
        done = subprocess.run(["zsnapdb", *words, "--json"], capture_output=True, text=True, timeout=1800)
        wall, processor = time.monotonic() - began, used() - before
        if done.returncode not in (0, 1, 2):
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        statements = answered()
        lock = json.loads(done.stdout)["backup"]["lock"] if words[0] == "backup" else {}
        kinds = Counter(re.sub(r"t\d+", "tN", text) for _, text in statements)
        rounds.append(
            {
                "wall": wall,
                "processor": processor,
                "statements": len(statements),
                "source_seconds": sum(seconds for seconds, _ in statements),
                "slowest": sorted(statements, reverse=True)[:SHOWN],
                "repeated": kinds.most_common(SHOWN),
                "locked_ms": lock.get("held_ms"),
            }
        )
        if words[:2] == ("clone", "create"):
            subprocess.run(["zsnapdb", "clone", "destroy", "own"], check=True, capture_output=True)
    return sorted(rounds, key=lambda one: float(one["wall"]))[ROUNDS // 2]


def main() -> None:
    """Measure with a few tables, add many, measure again, and write it."""
    SLOW.touch()
    SLOW.chmod(0o666)
    add_tables(1, FEW)
    with root() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL slow_query_log_file = '{SLOW}'")
        cursor.execute("SET GLOBAL long_query_time = 0")
        cursor.execute("SET GLOBAL slow_query_log = ON")
    result: dict[str, Any] = {}
    for stage, last in (("few", FEW), ("many", int(sys.argv[1]))):
        if last > FEW:
            began = time.monotonic()
            add_tables(FEW + 1, last)
            print(f"{last} tables after {time.monotonic() - began:.0f} s", flush=True)
        subprocess.run(["zsnapdb", "backup", "main"], check=True, capture_output=True)
        done = subprocess.run(["zsnapdb", "list", "main", "--json"], check=True, capture_output=True, text=True)
        first = json.loads(done.stdout)["backups"][0]["backup_id"]
        result[stage] = {}
        for name, words in COMMANDS.items():
            result[stage][name] = measured(tuple(word.replace("{first}", first) for word in words))
            one = result[stage][name]
            print(stage, name, {key: one[key] for key in one if key not in ("slowest", "repeated")}, flush=True)
            print("   ", *one["slowest"][:3], sep="\n    ", flush=True)
            print("   ", *one["repeated"][:3], sep="\n    ", flush=True)
    Path("/out/tables.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()

"""The main use case in a guest: three backups under load, two restores, two clones, all compared with the truth.

Writes /out/demo.json and exits with 0 only if every check is ok.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.lab.inside import ledger

SOURCE = "/run/mysqld/mysqld.sock"
PARENT = Path("/var/lib/mysql")


@dataclass(frozen=True)
class Step:
    """One step of the demo, with bytes and lock time if it has them."""

    name: str
    seconds: float
    sent_bytes: int | None = None
    stored_bytes: int | None = None
    lock_held_ms: float | None = None


class Demo:
    def __init__(self, flavour: str) -> None:
        self.flavour = flavour
        self.tool = "/opt/mysql/bin/mysqlbinlog" if flavour == "mysql" else "/usr/bin/mariadb-binlog"
        self.server = "/opt/mysql/bin/mysqld" if flavour == "mysql" else "/usr/sbin/mariadbd"
        self.steps: list[Step] = []
        self.checks: list[ledger.Check] = []
        self.ballast = ""

    def zsnapdb(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(["zsnapdb", *words, "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"zsnapdb {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def step(self, name: str, began: float, **figures: Any) -> None:
        self.steps.append(Step(name, round(time.monotonic() - began, 2), **figures))
        print(f"  {name:<34} {self.steps[-1].seconds:7.1f} s", flush=True)

    def backup(self, name: str) -> dict[str, Any]:
        began = time.monotonic()
        made: dict[str, Any] = self.zsnapdb("backup")["backup"]
        self.step(
            name,
            began,
            sent_bytes=made["plain_bytes"],
            stored_bytes=made["stored_bytes"],
            lock_held_ms=made["lock"]["held_ms"],
        )
        kind = "full" if made["full"] else "incremental"
        self.checks.append(
            ledger.Check(f"{name}: is {'full' if 'full' in name else 'incremental'}", kind in name, kind)
        )
        return made

    def truth(self, made: dict[str, Any]) -> frozenset[ledger.Key]:
        position = made["position"]
        return ledger.journal_in_binlog(
            PARENT, PARENT / "binlog.index", self.tool, position["binlog_file"], position["binlog_offset"]
        )

    def restore(self, name: str, made: dict[str, Any], truth: frozenset[ledger.Key]) -> None:
        began = time.monotonic()
        done = self.zsnapdb("restore", "main", "--to", made["backup_id"], "--target", f"tank/{name}")
        self.step(f"restore {name} backup", began)
        self.checks.append(
            ledger.Check(
                f"{name} restored: recovered to the recorded GTIDs",
                done["gtids"] == made["position"]["gtids"],
                done["gtids"],
            )
        )
        began = time.monotonic()
        socket = f"{done['mount']}/.zsnapdb/server.sock"
        process = subprocess.Popen([self.server, f"--defaults-file={done['option_file']}"], stdin=subprocess.DEVNULL)
        try:
            with ledger.connect_when_up(socket, process) as connection:
                state = ledger.read_state(connection)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        self.checks += ledger.compare(f"{name} restored", state, truth, self.ballast)
        self.step(f"boot and check {name} restore", began)

    def clone(self, name: str, made: dict[str, Any], truth: frozenset[ledger.Key]) -> None:
        began = time.monotonic()
        done = self.zsnapdb("clone", "create", "main", "--from", made["backup_id"], "--name", name)
        self.step(f"clone {name} of second backup", began)
        connection = pymysql.connect(
            host="127.0.0.1",
            port=done["clone"]["port"],
            user=done["user"],
            password=done["password"],
            database="ledger",
            autocommit=True,
        )
        with connection:
            self.checks += ledger.compare(f"clone {name}", ledger.read_state(connection), truth, self.ballast)
            self.identity(name, connection)

    def identity(self, name: str, connection: pymysql.Connection) -> None:
        variables = "@@server_id, @@port, @@datadir, @@log_bin_basename" + (
            ", @@server_uuid" if self.flavour == "mysql" else ""
        )
        with connection.cursor() as cursor, ledger.connect(SOURCE) as source, source.cursor() as there:
            cursor.execute(f"SELECT {variables}")
            there.execute(f"SELECT {variables}")
            (here,), (origin,) = cursor.fetchall(), there.fetchall()
        same = [a for a, b in zip(here, origin, strict=True) if a == b]
        self.checks.append(
            ledger.Check(f"clone {name}: shares no identity, port or path with its source", not same, f"{here}")
        )

    def run(self) -> None:
        began = time.monotonic()
        ledger.set_up(SOURCE)
        with ledger.connect(SOURCE) as connection:
            self.ballast = ledger.read_state(connection).ballast
        self.step("set up the ledger", began)
        load = ledger.Load(SOURCE)
        load.start()
        load.wait_for(100)
        made = []
        for name in ("full backup", "incremental backup", "third backup, incremental"):
            made.append(self.backup(name))
            load.wait_for(100)
        truths = [self.truth(m) for m in made]
        self.checks.append(
            ledger.Check(
                "each backup holds more transactions",
                len(truths[0]) < len(truths[1]) < len(truths[2]),
                f"{[len(t) for t in truths]}",
            )
        )
        self.restore("first", made[0], truths[0])
        self.restore("third", made[2], truths[2])
        for name in ("one", "two"):
            self.clone(name, made[1], truths[1])
        before = load.total()
        load.wait_for(20)
        load.stop()
        self.checks.append(
            ledger.Check(
                "the load ran throughout, without an error",
                not load.failures and load.total() > before,
                f"{load.total()} transfers {load.failures[:3]}",
            )
        )
        self.checks.append(
            ledger.Check(
                "both clones run side by side", len(self.zsnapdb("clone", "list")["clones"]) == 2, "zsnapdb clone list"
            )
        )
        began = time.monotonic()
        for name in ("one", "two"):
            self.zsnapdb("clone", "destroy", name)
        self.step("destroy both clones", began)
        left = subprocess.run(
            ["zfs", "list", "-H", "-o", "name", "-r", "tank/zsnapdb/clones"], capture_output=True, text=True, check=True
        ).stdout.split()
        self.checks.append(ledger.Check("nothing of the clones is left", left == ["tank/zsnapdb/clones"], f"{left}"))


def table(demo: Demo) -> str:
    lines = [f"{'step':<34} {'seconds':>8} {'sent MiB':>9} {'stored MiB':>11} {'lock ms':>8}"]
    for s in demo.steps:
        sent = f"{s.sent_bytes / 2**20:.2f}" if s.sent_bytes is not None else ""
        stored = f"{s.stored_bytes / 2**20:.2f}" if s.stored_bytes is not None else ""
        lock = f"{s.lock_held_ms:.0f}" if s.lock_held_ms is not None else ""
        lines.append(f"{s.name:<34} {s.seconds:8.1f} {sent:>9} {stored:>11} {lock:>8}")
    lines += ["", *(f"{'ok  ' if c.ok else 'FAIL'} {c.name}: {c.detail}" for c in demo.checks)]
    return "\n".join(lines)


def main() -> None:
    demo = Demo(Path("/etc/lab-flavour").read_text().strip())
    began = time.monotonic()
    demo.run()
    print(
        f"\n{table(demo)}\n\n{demo.flavour}: {sum(c.ok for c in demo.checks)} of {len(demo.checks)} checks ok in"
        f" {time.monotonic() - began:.0f} s"
    )
    document = {
        "flavour": demo.flavour,
        "steps": [asdict(s) for s in demo.steps],
        "checks": [asdict(c) for c in demo.checks],
    }
    Path("/out/demo.json").write_text(json.dumps(document, indent=1))
    sys.exit(0 if all(c.ok for c in demo.checks) else 1)


main()

"""Campaign: all features are tried on one server release; the results are a row of the table in servers.md.

It runs inside a guest (`python3 tests/lab campaign --server NAME releases`). Each feature is tried with rows whose
truth is known. The result is exact, refused before any change (with the reason), or wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pymysql

from tests.lab.inside import ledger
from tests.lab.inside.zygote import QUICK, Zygote
from tests.lab.inside.zygote import SOCKET as ZYGOTE

SOCKET = "/run/mysqld/mysqld.sock"
SERVER = "/checkout/tests/lab/inside/server"
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
OPTIONS, INCLUDED = Path("/etc/lab.cnf"), Path("/etc/lab.d")
CONTROL = f"""
[instance.main.control]
stop = ["{SERVER}", "stop"]
start = ["{SERVER}", "start"]
server_id_file = "{INCLUDED}/zsnapdb.cnf"
"""
REFUSED = (3, 4, 8)
"""Exit codes of a refusal before any change."""
Rows = list[tuple[Any, ...]]


class RefusedError(Exception):
    """The tool refused the operation before any change."""


@dataclass(frozen=True)
class Cell:
    """A feature, its result (exact, refused, wrong), the reason, and the seconds."""

    name: str
    result: str
    reason: str
    seconds: float


def sql(*statements: str, socket: str = SOCKET) -> Rows:
    with ledger.connect(socket, "root", "", None) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def zsnapdb(*words: str) -> dict[str, Any]:
    """Run a command and return its JSON document. RefusedError if it refused."""
    done = subprocess.run([QUICK, *words, "--json"], capture_output=True, text=True, timeout=900, env=os.environ)
    if done.returncode in REFUSED:
        lines = [line for line in done.stderr.splitlines() if line.startswith("zsnapdb: ")]
        raise RefusedError(lines[-1] if lines else done.stderr[-300:])
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-1500:]}"
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def rows(socket: str = SOCKET, where: str = "tried") -> Rows:
    return sql(f"SELECT id, name, price FROM {where}.things ORDER BY id", socket=socket)


class Release:
    """The release in this guest, and its features in order: a later one builds on earlier ones."""

    seed, points_to_try = 1, 20

    def __init__(self) -> None:
        self.flavour = Path("/etc/lab-flavour").read_text().strip()
        self.points: dict[str, tuple[str, Rows]] = {}

    def position(self) -> str:
        """Return the GTID of the newest transaction."""
        if self.flavour == "mariadb":
            return str(sql("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
        ((uuid, executed),) = sql("SELECT @@server_uuid, @@GLOBAL.gtid_executed")
        part = next(one for one in executed.replace("\n", "").split(",") if one.startswith(uuid))
        return f"{uuid}:{part.replace('-', ':').split(':')[-1]}"

    def mark(self, name: str) -> None:
        self.points[name] = (self.position(), rows())

    def write(self) -> None:
        """Write a history with known states: first rows, more rows, an update of too many, a DROP."""
        sql(
            "CREATE DATABASE tried",
            "CREATE TABLE tried.things (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(8,2), KEY (name))",
            "INSERT INTO tried.things VALUES (1, 'one', 1.5), (2, 'two', 2.5), (3, 'drei €', 3.5)",
        )

    def binlogs(self) -> Path:
        """Return the folder with the server's binlogs and their index, readable by its own client."""
        return Path("/var/lib/mysql")

    def backup(self) -> None:
        """A full backup and an increment under load are restored to exactly their position."""
        ledger.set_up(SOCKET, ballast_rows=40)
        self.write()
        zsnapdb("backup")
        load = ledger.Load(SOCKET)
        load.start()
        load.wait_for(40)
        backup = zsnapdb("backup")["backup"]
        load.wait_for(20)
        load.stop()
        assert not backup["full"]
        position = backup["position"]
        folder = self.binlogs()
        tool = "/opt/mysql/bin/mysqlbinlog" if self.flavour == "mysql" else "/usr/bin/mariadb-binlog"
        truth = ledger.journal_in_binlog(
            folder, folder / "binlog.index", tool, position["binlog_file"], position["binlog_offset"]
        )
        words = ("restore", "main", "--to", backup["backup_id"], "--target", "tank/tried", "--handover", "run")
        restored = zsnapdb(*words)
        try:
            with ledger.connect(f"{restored['mount']}/.zsnapdb/server.sock", "root", "") as connection:
                state = ledger.read_state(connection)
        finally:
            subprocess.run(["kill", str(restored["pid"])], check=True)
            while Path(f"/proc/{restored['pid']}").exists():
                time.sleep(0.1)
        with ledger.connect(SOCKET) as connection:
            ballast = ledger.read_state(connection).ballast
        wrong = [check.name for check in ledger.compare("restored", state, truth, ballast) if not check.ok]
        assert not wrong, wrong

    def archive(self) -> None:
        """All transactions are in the repository."""
        self.mark("before")
        sql("INSERT INTO tried.things VALUES (4, 'four', 4.5)")
        sql("FLUSH BINARY LOGS")
        self.mark("four")
        sql("UPDATE tried.things SET price = 0")
        self.wrong = self.position()
        self.mark("zero")
        zsnapdb("binlog", "archive", "main", "--once")
        verified = zsnapdb("verify", "main")
        assert verified["problems"] == [] if "problems" in verified else True

    def point(self) -> None:
        """A restore to a GTID has exactly the rows of that moment."""
        for name in ("before", "four"):
            gtid, expected = self.points[name]
            made = zsnapdb("clone", "create", "main", "--at", gtid, "--name", f"at-{name}")
            seen = self.in_clone(made)
            zsnapdb("clone", "destroy", f"at-{name}")
            assert seen == expected, f"{name}: {seen}"

    def random_points(self) -> None:
        """Random points of a random history have exactly the rows of that moment."""
        chance = random.Random(self.seed)
        sql(
            "CREATE DATABASE points",
            "CREATE TABLE points.t (id INT PRIMARY KEY, v INT, t VARCHAR(300))",
            "INSERT INTO points.t VALUES (0, 0, '')",
        )
        zsnapdb("backup")
        question = "SELECT COUNT(*), COALESCE(SUM(v), 0), COALESCE(SUM(CRC32(CONCAT(id, v, t))), 0) FROM points.t"
        truth: dict[str, list[str]] = {}
        for number in range(1, 4 * self.points_to_try):
            key, value = chance.randrange(30), chance.randrange(1000)
            kinds = (
                f"REPLACE INTO points.t VALUES ({key}, {value}, REPEAT('x', {chance.randrange(300)}))",
                f"UPDATE points.t SET v = v + {value} WHERE id <= {key}",
                f"DELETE FROM points.t WHERE id = {key}",
                f"INSERT INTO points.t SELECT id + {100 * number}, v, t FROM points.t WHERE id < 5",
            )
            before = self.position()
            sql(chance.choice(kinds))
            if chance.random() < 0.1:
                sql("FLUSH BINARY LOGS")
            if chance.random() < 0.05:
                zsnapdb("backup")
            if self.position() != before:
                truth[self.position()] = [str(value) for value in sql(question)[0]]
        zsnapdb("binlog", "archive", "main", "--once")
        chosen = chance.sample(sorted(truth), self.points_to_try)
        for gtid in chosen:
            answer = zsnapdb("query", "main", "--at", gtid, question)
            assert answer["moment"]["exact"], (gtid, answer["moment"])
            assert [str(value) for value in answer["rows"][0]] == truth[gtid], (gtid, answer["rows"], truth[gtid])

    def in_clone(self, made: dict[str, Any], *changes: str) -> Rows:
        """Run the changes in the clone, and return its rows."""
        login = made["clone"]
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=int(login["port"]),
                user=made["user"],
                password=made["password"],
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            for change in (*changes, "SELECT id, name, price FROM tried.things ORDER BY id"):
                cursor.execute(change)
            return list(cursor.fetchall())

    def clone(self) -> None:
        """A clone of the live server has its rows, is reset to them by rows and by data, and is destroyed."""
        made = zsnapdb("clone", "create", "main", "--from", "live", "--name", "live")
        assert self.in_clone(made) == rows()
        assert self.in_clone(made, "UPDATE tried.things SET price = price + 1") != rows()
        done = zsnapdb("clone", "reset", "live")
        print(f"reset: {done['undone']} changes were undone; {done['reason']}", flush=True)
        assert self.in_clone(made) == rows()
        zsnapdb("clone", "reset", "live", "--replace")
        assert self.in_clone(
            made, "DROP TABLE tried.things", "CREATE TABLE tried.things AS SELECT 1 id, 2 name, 3 price"
        )
        zsnapdb("clone", "reset", "live")
        assert self.in_clone(made) == rows()
        zsnapdb("clone", "destroy", "live")

    def drill(self) -> None:
        zsnapdb("drill", "main")

    def query(self) -> None:
        """A query of the past returns the old values."""
        gtid, _ = self.points["four"]
        answer = zsnapdb("query", "main", "--at", gtid, "SELECT SUM(price) FROM tried.things")
        assert "12.00" in json.dumps(answer), answer

    def diff(self) -> None:
        """The difference between two moments is exactly the changes."""
        before, after = self.points["four"][0], self.points["zero"][0]
        seen = zsnapdb("diff", "main", "--table", "tried.things", "--from", before, "--to", after)
        assert (seen["added"], seen["removed"], seen["changed"]) == (0, 0, 4), seen

    def find(self) -> None:
        """The transaction that changed too much is found by its table."""
        found = zsnapdb("binlog", "find", "main", "--table", "tried.things", "--kind", "update", "--limit", "1")
        assert found["transactions"][0]["gtid"] == self.wrong, (found["transactions"], self.wrong)

    def undo(self) -> None:
        """The transaction is undone on the live server."""
        words = ("undo", "main", "--gtid", self.wrong, "--apply", "--yes", "--user", "root")
        zsnapdb(*words)
        assert rows() == self.points["four"][1], rows()

    def rescue(self) -> None:
        """A dropped table is recovered with its rows."""
        expected, gtid = rows(), self.position()
        zsnapdb("binlog", "archive", "main", "--once")
        sql("DROP TABLE tried.things")
        words = ("rescue", "main", "--table", "tried.things", "--to", gtid, "--into", "/root/rescued.sql")
        zsnapdb(*words)
        client = "/opt/mysql/bin/mysql" if self.flavour == "mysql" else "/usr/bin/mariadb"
        with Path("/root/rescued.sql").open("rb") as file:
            subprocess.run([client, "-uroot", "-S", SOCKET, "tried"], stdin=file, check=True)
        assert rows() == expected

    def rewind(self) -> None:
        """A rewind in place reaches the point."""
        INCLUDED.mkdir(exist_ok=True)
        OPTIONS.write_text(f"{OPTIONS.read_text()}\n!includedir {INCLUDED}\n")
        CONFIG.write_text(CONFIG.read_text().replace("[repository.s3]", f"{CONTROL}\n[repository.s3]"))
        gtid, expected = self.points["four"]
        zsnapdb("rewind", "main", "--to", gtid, "--yes", "--no-backup")
        assert rows() == expected, rows()


ORDER: tuple[str, ...] = (
    "backup",
    "drill",
    "archive",
    "point",
    "clone",
    "query",
    "diff",
    "find",
    "undo",
    "rescue",
    "rewind",
)


def tried(name: str, act: Callable[[], None]) -> Cell:
    began = time.monotonic()
    result, reason = "exact", ""
    try:
        act()
    except RefusedError as error:
        result, reason = "refused", str(error)
    except (AssertionError, subprocess.SubprocessError, pymysql.MySQLError, OSError, KeyError, RuntimeError) as error:
        result, reason = "WRONG", f"{type(error).__name__}: {error}"
    cell = Cell(name, result, reason, round(time.monotonic() - began, 1))
    print(f"{cell.result:8} {name:8} {cell.seconds:6.1f} s  {reason}", flush=True)
    return cell


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=(*ORDER, "random_points"), default=ORDER)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    Release.seed = words.seed
    sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    version = str(sql("SELECT VERSION()")[0][0])
    print(version, flush=True)
    zygote = Zygote(ZYGOTE)
    release = Release()
    cells = [tried(name, getattr(release, name)) for name in words.only]
    zygote.close()
    document = {"version": version, "cells": [asdict(cell) for cell in cells]}
    Path("/out/campaign.json").write_text(json.dumps(document, indent=1) + "\n")
    counts = {result: sum(1 for cell in cells if cell.result == result) for result in ("exact", "refused", "WRONG")}
    print(f"{version}: {counts}")
    return 1 if counts["WRONG"] or not counts["exact"] else 0


if __name__ == "__main__":
    sys.exit(main())

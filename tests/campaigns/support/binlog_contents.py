"""Contents of the source's binlogs up to a position, and their differences from a started copy."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from tests.campaigns.support.disturbance import BIG_ROWS
from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.gtid import Gtids

PARENT = Path("/var/lib/mysql")
_DDL = re.compile(r"^(CREATE|DROP|ALTER) TABLE (?:IF EXISTS )?`?scratch`?\.`?(d_\d+)`?")


@dataclass
class Truth:
    """The contents of the source's binlogs up to a position, which advances from snapshot to snapshot."""

    tool: str
    file: str
    offset: int
    journal: set[ledger.Key] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)
    tables: dict[str, set[str]] = field(default_factory=dict)

    def advance(self, file: str, offset: int) -> None:
        """Add the events between the last position and this position."""
        names = [Path(line).name for line in (PARENT / "binlog.index").read_text().splitlines()]
        names = names[names.index(self.file) : names.index(file) + 1]
        if (file, offset) == (self.file, self.offset):
            return
        argv = [
            self.tool,
            "--verbose",
            "--base64-output=DECODE-ROWS",
            f"--start-position={self.offset}",
            f"--stop-position={offset}",
        ]
        env = {**os.environ, "LC_ALL": "C"}
        done = subprocess.Popen(
            [*argv, *[str(PARENT / n) for n in names]], stdout=subprocess.PIPE, text=True, errors="replace", env=env
        )
        assert done.stdout is not None
        values: list[int] | None = None
        table = ""
        for line in done.stdout:
            if line.startswith("### INSERT INTO `"):
                table = line.removeprefix("### INSERT INTO ").strip().replace("`", "")
                values = [] if table in ("ledger.journal", "scratch.batches") else None
            elif values is not None and line.startswith("###   @"):
                values.append(int(line.partition("=")[2].split(" ")[0]))
                values = self._row(table, values)
            else:
                self._ddl(line)
        if done.wait() != 0:
            raise RuntimeError(
                f"{argv[0]} failed on {names}; there are {sorted(os.listdir(PARENT))}; the index has"
                f" {(PARENT / 'binlog.index').read_text().split()}"
            )
        self.file, self.offset = file, offset

    def _row(self, table: str, values: list[int]) -> list[int] | None:
        if table == "scratch.batches":
            self.batches.add(values[0])
            return None
        if len(values) == 2:
            self.journal.add((values[0], values[1]))
            return None
        return values

    def _ddl(self, line: str) -> None:
        match = _DDL.match(line)
        if match is None:
            return
        verb, name = match.groups()
        if verb == "CREATE":
            self.tables[name] = {"id", "body"}
        elif verb == "ALTER":
            self.tables[name].add("extra")
        else:
            self.tables.pop(name, None)


def differences(connection: pymysql.Connection, truth: Truth, flavour: Flavour, recorded: Gtids | None) -> list[str]:
    """Return every difference between a started copy and the binlogs up to the position with the GTIDs `recorded`."""
    wrong = []
    variable = "gtid_executed" if flavour is Flavour.MYSQL else "gtid_binlog_pos"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        gtids = parse_gtids(flavour, str(cursor.fetchall()[0][0]))
        cursor.execute("SELECT batch, COUNT(*), SUM(LENGTH(body)) FROM scratch.big GROUP BY batch")
        big = set(cursor.fetchall())
        cursor.execute("SELECT number FROM scratch.batches")
        batches = {row[0] for row in cursor.fetchall()}
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'scratch' AND"
            " table_name LIKE 'd\\_%'"
        )
        tables: dict[str, set[str]] = {}
        for table, column in cursor.fetchall():
            tables.setdefault(table, set()).add(column)
        for table in tables:
            cursor.execute(f"CHECK TABLE scratch.{table}")
            wrong += [
                f"CHECK TABLE: {row}"
                for row in cursor.fetchall()
                if row[2] == "error" or (row[2] == "status" and row[3] != "OK")
            ]
    if gtids != recorded:
        wrong.append(f"recovered to {gtids}, recorded {recorded}")
    if batches != truth.batches or big != {(n, BIG_ROWS, BIG_ROWS * 30000) for n in batches}:
        wrong.append(f"big transactions: {sorted(batches ^ truth.batches)} differ, or one is incomplete")
    if tables != truth.tables:
        wrong.append(f"scratch tables {tables}, expected {truth.tables}")
    state = ledger.read_state(connection)
    checks = ledger.compare("", state, frozenset(truth.journal), state.ballast)
    return wrong + [f"{check.name}: {check.detail}" for check in checks if not check.ok]

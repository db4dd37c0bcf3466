"""Campaign: random transactions are undone, each exactly or refused without a change.

It runs inside a guest (`python3 tests/lab campaign undo`). Each round creates tables of random types, takes a snapshot,
and then runs transactions with random binlog settings. There is DDL between them: written to the binlog or not, some of
it reverted. The rows are read before and after each transaction, by the names of their columns. Then the newest
transactions are undone on the server. Each row that the transaction changed must be as before, and no other row may
change; or the command ends with an error, and no row changes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support.undo_zoo import SCHEMA, ZooTable, change, ddl, row, settings, tables
from tests.lab.inside import ledger
from tests.lab.inside.zygote import Zygote
from zsnapdb.base.domain_types import Flavour

SOCKET = "/run/mysqld/mysqld.sock"
CONFIG = "/etc/zsnapdb/zsnapdb.toml"

Row = tuple[tuple[str, bytes | None], ...]
State = dict[str, Counter[Row]]
"""The rows of each table: each row by column names, with its count."""


@dataclass(frozen=True)
class Transaction:
    """A transaction with rows: its GTID, and the rows before and after it."""

    gtid: str
    statements: tuple[str, ...]
    before: State
    after: State


def state(cursor: Any) -> State:
    """Return every byte of every row of the schema."""
    cursor.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = %s"
        " ORDER BY table_name, column_name",
        (SCHEMA,),
    )
    columns: dict[str, list[tuple[str, str]]] = {}
    for table, column, kind in cursor.fetchall():
        columns.setdefault(table, []).append((column, kind))
    found: State = {}
    for table, named in columns.items():
        exact = [f"CAST({c} + 0e0 AS CHAR)" if kind == "float" else f"CAST({c} AS BINARY)" for c, kind in named]
        cursor.execute(f"SELECT {', '.join(exact)} FROM {table}")
        found[table] = Counter(
            tuple(
                (name, value.encode() if isinstance(value, str) else value)
                for (name, _), value in zip(named, values, strict=True)
            )
            for values in cursor.fetchall()
        )
    return found


def expected(now: State, transaction: Transaction) -> State | None:
    """Return the rows after an exact undo: the present ones without the added rows, plus the removed rows.

    None if an added row no longer exists: then the undo must be refused.
    """
    result = {table: Counter(rows) for table, rows in now.items()}
    for table in transaction.before.keys() | transaction.after.keys():
        before, after = transaction.before.get(table, Counter()), transaction.after.get(table, Counter())
        made, taken = after - before, before - after
        if not made and not taken:
            continue
        rows = result.get(table)
        if rows is None or made - rows:
            return None
        result[table] = rows - made + taken
    return {table: +rows for table, rows in result.items()}


class Round:
    """One history with its tables."""

    def __init__(self, rng: random.Random, flavour: Flavour, zygote: Zygote) -> None:
        self._rng, self._flavour, self._zygote = rng, flavour, zygote
        self._connection = ledger.connect(SOCKET, "root", "", None)
        self._cursor = self._connection.cursor()
        self._fresh = 1000
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, undos: int) -> None:
        """Create a history, and undo its newest transactions."""
        self._sql(f"DROP DATABASE IF EXISTS {SCHEMA}", f"CREATE DATABASE {SCHEMA}", f"USE {SCHEMA}")
        self._sql("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
        made = tables(self._rng, 4)
        for table in made:
            self._sql(*table.create())
            for number in range(1, 9):
                self._try(row(self._rng, table, number))
        done = self._zsnapdb("snapshot", "main")
        assert done[0] == 0, done
        history: list[Transaction] = []
        while len(history) < undos:
            self._sql(*settings(self._rng, self._flavour))
            table = self._rng.choice(made)
            there, back = ddl(self._rng, table) if self._rng.random() < 0.5 else ([], [])
            early = self._rng.random() < 0.4
            if early:
                self._alter(there)
            transaction = self._transaction(table, made)
            if transaction is not None:
                history.append(transaction)
            if not early:
                self._alter(there)
            if self._rng.random() < 0.6:
                self._alter(back)
        for transaction in reversed(history):
            self._undo(transaction)
        self._connection.close()

    def _sql(self, *statements: str) -> None:
        for statement in statements:
            self._cursor.execute(statement)

    def _try(self, statement: str) -> bool:
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError:
            return False
        return True

    def _alter(self, statements: list[str]) -> None:
        """Run DDL, which the server may refuse; half of it is not in the binlog."""
        self._sql(f"SET SESSION sql_log_bin = {self._rng.choice((0, 1))}")
        for statement in statements:
            if not self._try(statement):
                break
        self._sql("SET SESSION sql_log_bin = 1")

    def _transaction(self, table: ZooTable, made: list[ZooTable]) -> Transaction | None:
        before, started = state(self._cursor), self._position()
        statements = []
        self._sql("BEGIN")
        for _ in range(self._rng.randint(1, 4)):
            self._fresh += 1
            chosen = table if self._rng.random() < 0.7 else self._rng.choice(made)
            statement = change(self._rng, chosen, self._fresh)
            if self._try(statement):
                statements.append(statement)
        self._sql("COMMIT")
        after = state(self._cursor)
        gtid = self._position()
        return Transaction(gtid, tuple(statements), before, after) if gtid != started else None

    def _position(self) -> str:
        """Return the GTID of the newest transaction."""
        mariadb = self._flavour is Flavour.MARIADB
        self._sql("SELECT @@GLOBAL.gtid_binlog_pos" if mariadb else "SELECT @@GLOBAL.gtid_executed")
        text = str(self._cursor.fetchall()[0][0])
        return text if mariadb else f"{text.split(':')[0]}:{text.rpartition(':')[2].rpartition('-')[2]}"

    def _undo(self, transaction: Transaction) -> None:
        now = state(self._cursor)
        code, out, error = self._zsnapdb("undo", "main", "--gtid", transaction.gtid, "--apply", "--yes")
        after = state(self._cursor)
        right = expected(now, transaction) if code == 0 else now
        if right is None or {t: +rows for t, rows in after.items()} != {t: +rows for t, rows in right.items()}:
            self.wrong.append(f"{transaction.gtid} {transaction.statements}: exit status {code}\n{out}{error}")
            print(f"WRONG {self.wrong[-1]}", flush=True)
        reason = "undone" if code == 0 else f"{code}: {_kind_of(error)}"
        self.outcomes[reason] += 1
        if code not in (0, 4, 11):
            self.wrong.append(reason)
            print(f"WRONG exit status {code} {transaction.statements}\n{error}", flush=True)

    def _zsnapdb(self, *words: str) -> tuple[int, str, str]:
        return self._zygote.run(words, {**os.environ, "ZSNAPDB_CONFIG": CONFIG}, 600.0)


def _kind_of(error: str) -> str:
    """Return the reason of a refusal without names."""
    text = error.partition("hint:")[0].replace("\n", " ")
    for word in (
        "had another", "was named", "has no names", "binlog_row_image", "its type is", "no primary key", "triggers",
        "changes rows with", "right before the transaction, and", "columns", "cannot be made", "script failed",
        "after the undo", "were changed since", "cannot be read",
    ):  # fmt: skip
        if word in text:
            return word
    return text[:120]


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--undos", type=int, default=6)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--seconds", type=float, default=0.0, help="begin no round after so many seconds")
    given = options.parse_args()
    began, outcomes, wrong = time.monotonic(), Counter[str](), list[str]()
    with contextlib.closing(Zygote(Path(tempfile.mkdtemp()) / "zygote")) as zygote:
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            cursor.execute("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
            cursor.execute("SELECT VERSION()")
            flavour = Flavour.MARIADB if "mariadb" in str(cursor.fetchall()[0][0]).lower() else Flavour.MYSQL
        for number in range(given.rounds):
            if given.seconds and time.monotonic() - began > given.seconds:
                break
            one = Round(random.Random(given.seed * 1000 + number), flavour, zygote)
            one.run(given.undos)
            outcomes += one.outcomes
            wrong += one.wrong
            counts = ", ".join(f"{count} {reason}" for reason, count in one.outcomes.most_common())
            print(f"round {number} after {time.monotonic() - began:.0f} s: {counts}", flush=True)
    total = ", ".join(f"{count} {reason}" for reason, count in outcomes.most_common())
    print(f"{sum(outcomes.values())} transactions: {total}; wrong: {len(wrong)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

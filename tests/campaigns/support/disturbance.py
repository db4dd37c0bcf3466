"""Work in addition to the ledger's load: DDL, big transactions and binlog rotations."""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Sequence

import pymysql

from tests.lab.inside import ledger

SOCKET = "/run/mysqld/mysqld.sock"
BIG_ROWS = 30
"""Rows of a big transaction."""


class Disturbing(enum.StrEnum):
    """Kinds of work in addition to the ledger's load."""

    DDL = "ddl"
    BIG = "big"
    ROTATION = "rotation"


class Disturbance:
    """Runs DDL, big transactions and rotations in addition to the ledger's load, one thread each, until stopped."""

    def __init__(self, seed: int, kinds: Sequence[Disturbing]) -> None:
        self.failures: list[str] = []
        self._random = random.Random(seed)
        self._stop = threading.Event()
        jobs = {Disturbing.DDL: self._ddl, Disturbing.BIG: self._big, Disturbing.ROTATION: self._rotate}
        self._threads = [threading.Thread(target=self._guarded, args=(jobs[kind],), daemon=True) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the running statements."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, job: object) -> None:
        try:
            with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
                job(cursor)  # type: ignore[operator]
        except pymysql.MySQLError as error:
            self.failures.append(f"{error}")

    def _ddl(self, cursor: pymysql.cursors.Cursor) -> None:
        number = next_number(
            cursor,
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'scratch' AND table_name LIKE"
            " 'd\\_%'",
        )
        while not self._stop.wait(0.05):
            cursor.execute(f"CREATE TABLE scratch.d_{number} (id INT PRIMARY KEY, body VARCHAR(200))")
            cursor.execute(f"INSERT INTO scratch.d_{number} VALUES (1, 'one'), (2, 'two')")
            cursor.execute(
                f"ALTER TABLE scratch.d_{number} ADD COLUMN extra INT,"
                f" ALGORITHM={self._random.choice(['COPY', 'INPLACE'])}"
            )
            if number > 3:
                cursor.execute(f"DROP TABLE IF EXISTS scratch.d_{number - 3}")
            number += 1

    def _big(self, cursor: pymysql.cursors.Cursor) -> None:
        number = next_number(cursor, "SELECT CONCAT('b_', number) FROM scratch.batches")
        while not self._stop.wait(self._random.uniform(0.1, 1.0)):
            cursor.execute("BEGIN")
            for row in range(BIG_ROWS):
                cursor.execute("INSERT INTO scratch.big VALUES (%s, %s, REPEAT('x', 30000))", (number, row))
            cursor.execute("INSERT INTO scratch.batches VALUES (%s)", (number,))
            cursor.execute("COMMIT")
            number += 1

    def _rotate(self, cursor: pymysql.cursors.Cursor) -> None:
        while not self._stop.wait(self._random.uniform(0.05, 0.6)):
            cursor.execute("FLUSH BINARY LOGS")


def next_number(cursor: pymysql.cursors.Cursor, sql: str) -> int:
    """Return the next free number for names such as d_17."""
    cursor.execute(sql)
    return max((int(str(row[0]).rpartition("_")[2]) for row in cursor.fetchall()), default=0) + 1

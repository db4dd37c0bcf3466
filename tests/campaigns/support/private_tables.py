"""Tables of every kind with values that must not be in a masked clone, and histories that spread these values."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql

from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour

SECRET = "ZSECRET"
SCHEMA = "private-rows"
_COLUMNS = "id INT NOT NULL, name VARCHAR(200), email VARCHAR(100), note MEDIUMTEXT"
_KEYS = "PRIMARY KEY (id), KEY by_email (email), KEY by_name (name(20))"


@dataclass(frozen=True)
class Kind:
    """A kind of table: its name, further columns and keys, table options, and the server families that have it."""

    name: str
    options: str = "ENGINE = InnoDB"
    more: str = ""
    families: tuple[Flavour, ...] = (Flavour.MYSQL, Flavour.MARIADB)
    is_transactional: bool = True
    is_versioned: bool = False

    @property
    def quoted(self) -> str:
        return f"`{SCHEMA}`.`{self.name}`"

    @property
    def create(self) -> str:
        return f"CREATE TABLE {self.quoted} ({_COLUMNS}, {_KEYS}{self.more}) {self.options}"


_MARIADB = (Flavour.MARIADB,)
KINDS = (
    Kind("plain"),
    Kind("redundant", "ENGINE = InnoDB ROW_FORMAT = REDUNDANT"),
    Kind("zipped", "ENGINE = InnoDB ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 8"),
    Kind("parts", "ENGINE = InnoDB PARTITION BY HASH (id) PARTITIONS 3"),
    Kind("words", more=", FULLTEXT KEY (note)"),
    Kind("dropped columns"),
    Kind("one-row"),
    Kind("wide", "ENGINE = InnoDB DEFAULT CHARSET = ucs2", families=_MARIADB),
    Kind("isam", "ENGINE = MyISAM", is_transactional=False),
    Kind("fixed", "ENGINE = MyISAM", ", code CHAR(30)", is_transactional=False),
    Kind("aria", "ENGINE = Aria", families=_MARIADB, is_transactional=False),
    Kind("versioned", "ENGINE = InnoDB WITH SYSTEM VERSIONING", families=_MARIADB, is_versioned=True),
    Kind(
        "past",
        "ENGINE = InnoDB WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME (PARTITION p0 HISTORY, PARTITION p1 CURRENT)",
        families=_MARIADB,
        is_versioned=True,
    ),
    Kind("versioned isam", "ENGINE = MyISAM WITH SYSTEM VERSIONING", ", code INT", _MARIADB, False, True),
)


def kinds_of(flavour: Flavour) -> list[Kind]:
    return [kind for kind in KINDS if flavour in kind.families]


class History:
    """Writes, changes, deletes and rolls back random rows of one round on the source."""

    def __init__(self, socket: str, flavour: Flavour, chance: random.Random) -> None:
        self.socket, self.flavour, self.chance = socket, flavour, chance
        self.kinds = kinds_of(flavour)

    def write(self) -> None:
        """Recreate the schema, with tables of every kind and a history of their rows."""
        with self._cursor() as cursor:
            for statement in (
                f"DROP DATABASE IF EXISTS `{SCHEMA}`",
                f"CREATE DATABASE `{SCHEMA}`",
                "SET GLOBAL general_log = ON",
                "SET GLOBAL log_output = 'FILE,TABLE'",
                "SET SESSION sql_mode = ''",
            ):
                cursor.execute(statement)
            for kind in self.kinds:
                cursor.execute(kind.create)
                self._fill(cursor, kind)
                for _ in range(self.chance.randint(1, 4)):
                    self._change(cursor, kind)
            self._look_up(cursor)
            self._gather(cursor)
            cursor.execute("SET GLOBAL general_log = OFF")

    @contextlib.contextmanager
    def open_transactions(self) -> Iterator[None]:
        """Keep a view of old rows and a transaction without commit open during the block, at random."""
        with self._cursor() as viewer, self._cursor() as writer:
            if self.chance.random() < 0.6:
                viewer.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                viewer.execute(f"SELECT COUNT(*) FROM `{SCHEMA}`.plain")
                with self._cursor() as other:
                    for kind in self.chance.sample(self.kinds, 4):
                        self._change(other, kind)
            if self.chance.random() < 0.6:
                writer.execute("BEGIN")
                for kind in self.chance.sample([kind for kind in self.kinds if kind.is_transactional], 3):
                    writer.execute(f"UPDATE {kind.quoted} SET name = CONCAT('{SECRET} open ', id), note = '{SECRET}'")
            yield
            writer.execute("ROLLBACK")
            viewer.execute("ROLLBACK")

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[pymysql.cursors.Cursor]:
        with ledger.connect(self.socket, "root", "", None) as connection, connection.cursor() as cursor:
            yield cursor

    def _rows(self, first: int, count: int, note_bytes: int) -> list[tuple[Any, ...]]:
        noise = self.chance.getrandbits
        note = f"{SECRET} note {noise(32):x} " * (note_bytes // 20)
        return [
            (n, f"{SECRET} name {noise(40):x}", f"{SECRET}{noise(40):x}@mail", note)
            for n in range(first, first + count)
        ]

    def _fill(self, cursor: pymysql.cursors.Cursor, kind: Kind) -> None:
        count = 1 if kind.name == "one-row" else self.chance.choice((20, 150, 300))
        rows = self._rows(1, count, self.chance.choice((40, 300, 300)))
        rows += self._rows(5000, 1, 20000) if count > 1 else []
        cursor.executemany(f"INSERT INTO {kind.quoted} (id, name, email, note) VALUES (%s, %s, %s, %s)", rows)
        if kind.name == "fixed":
            cursor.execute(f"UPDATE {kind.quoted} SET code = CONCAT('{SECRET} code ', id)")

    def _change(self, cursor: pymysql.cursors.Cursor, kind: Kind) -> None:
        word, rest = f"{self.chance.getrandbits(32):x}", self.chance.randint(2, 9)
        where = f"WHERE id % {rest} = 0"
        size = self.chance.choice((0, 5, 30))
        update = f"UPDATE {kind.quoted} SET name = CONCAT('{SECRET} {word}', REPEAT('y', {size})), email = '{word}'"
        insert = f"REPLACE INTO {kind.quoted} (id, name, email, note) VALUES (%s, %s, %s, %s)"
        ways = ("rollback", "savepoint") if kind.is_transactional else ()
        match self.chance.choice(("update", "delete", "reinsert", "shrink", *ways)):
            case "update":
                cursor.execute(f"{update} {where}")
            case "delete":
                cursor.execute(f"DELETE FROM {kind.quoted} {where}")
            case "rollback":
                cursor.execute("BEGIN")
                cursor.execute(f"{update} {where}")
                cursor.executemany(insert, self._rows(6000, 40, 200))
                cursor.execute("ROLLBACK")
            case "savepoint":
                cursor.execute("BEGIN")
                cursor.execute(f"DELETE FROM {kind.quoted} {where}")
                cursor.execute("SAVEPOINT one")
                cursor.execute(update)
                cursor.execute("ROLLBACK TO SAVEPOINT one")
                cursor.execute("COMMIT")
            case "reinsert":
                cursor.executemany(insert, self._rows(self.chance.randint(1, 100), 60, 100))
            case _:
                cursor.execute(f"UPDATE {kind.quoted} SET note = LEFT(note, 9) {where}")

    def _look_up(self, cursor: pymysql.cursors.Cursor) -> None:
        """Read one index repeatedly, so that it gets into the adaptive hash index."""
        for _ in range(60):
            cursor.execute(f"SELECT COUNT(*) FROM `{SCHEMA}`.plain WHERE email = '{self.chance.getrandbits(8):x}'")

    def _gather(self, cursor: pymysql.cursors.Cursor) -> None:
        """Make the server store column values as statistics."""
        for kind in self.chance.sample(self.kinds, 3):
            how = "PERSISTENT FOR ALL" if self.flavour is Flavour.MARIADB else "UPDATE HISTOGRAM ON name, email"
            cursor.execute(f"ANALYZE TABLE {kind.quoted} {how}")
            cursor.fetchall()


def masking_sql(flavour: Flavour, chance: random.Random) -> str:
    """Return an SQL file that masks every table, each in a random way."""
    lines = []
    for kind in kinds_of(flavour):
        code = ", code = ''" if kind.name == "fixed" else ""
        ways = {
            "update": f"UPDATE {kind.quoted} SET name = CONCAT('masked ', id), email = id, note = ''{code};",
            "same length": f"UPDATE {kind.quoted} SET name = REPEAT('m', LENGTH(name)), email = NULL,"
            f" note = REPEAT('m', LENGTH(note)){code};",
            "delete": f"DELETE FROM {kind.quoted};",
            "insert": f"INSERT INTO {kind.quoted} (id, name) VALUES (90001, 'm');\nDELETE FROM {kind.quoted}"
            f" WHERE id < 90001;",
        }
        lines.append(ways[chance.choice(list(ways))])
        if kind.name == "dropped columns":
            # Only definitions change: the rows stay in place.
            lines[-1] = f"ALTER TABLE {kind.quoted} DROP KEY by_email, DROP KEY by_name;" + "".join(
                f"\nALTER TABLE {kind.quoted} DROP COLUMN {column};" for column in ("name", "email", "note")
            )
        if kind.name == "plain" and chance.random() < 0.5:
            lines.append(f"ALTER TABLE {kind.quoted} ADD COLUMN masked INT;")
    return "\n".join(lines) + "\n"

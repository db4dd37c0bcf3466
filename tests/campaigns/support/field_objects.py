"""Objects and rows of the campaign `field`: random statements, run like those of an application, under global settings.

A statement may be refused under the server's settings: the truth is the state afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pymysql

from zsnapdb.base.domain_types import Flavour

Cursor = pymysql.cursors.Cursor
PASSWORD = "Str0ng!Pass-1"
SCHEMAS = ("field_a", "field b", "field_ü")
CHARSETS = ("", "CHARACTER SET latin1", "CHARACTER SET utf8mb4", "CHARACTER SET ucs2", "CHARACTER SET utf8mb3")
WORDS = ("a", "Ä", "back\\\\slash", "ß€", "quote''s", "two  spaces  ", "名前", "", "0", "NULL")
_TYPES = (
    "INT",
    "BIGINT UNSIGNED",
    "VARCHAR(30)",
    "CHAR(12)",
    "TEXT",
    "DECIMAL(12,4)",
    "DOUBLE",
    "DATETIME(3)",
    "TIMESTAMP",
    "TIMESTAMP NULL",
    "DATE",
    "ENUM('x','y','z')",
    "SET('p','q')",
    "BIT(5)",
    "VARBINARY(20)",
    "YEAR",
)
_LITERALS = {
    "INT": ("1", "-7", "NULL", "2147483647"),
    "BIGINT": ("0", "18446744073709551615"),
    "DECI": ("1.5", "12345678.1234"),
    "DOUB": ("0.1", "1e100", "-2.5"),
    "DATE": ("'2026-02-28'", "'1999-12-31 23:59:59'", "NULL"),
    "TIME": ("'2026-07-01 12:00:00'", "'2001-01-01 00:00:01'", "NULL"),
    "ENUM": ("'x'", "'z'", "NULL"),
    "SET(": ("'p'", "'p,q'", "''"),
    "BIT(": ("5", "31"),
    "VARB": ("X'00FF10'", "'bin'"),
    "YEAR": ("2026", "1999"),
}


@dataclass
class Table:
    """A created table: its quoted name, and the types of its writable columns by name."""

    name: str
    columns: dict[str, str]


@dataclass
class Objects:
    """Creates objects and rows of one round on one server, with these `engines` and `logins` (plugins)."""

    flavour: Flavour
    chance: random.Random
    engines: Sequence[str] = ()
    logins: Sequence[str] = ()
    functions: Sequence[str] = ()
    tables: list[Table] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _number: int = 0

    def write(self, connection: pymysql.Connection, count: int) -> None:
        """Run this many random statements, and write rows to the created tables."""
        with connection.cursor() as cursor:
            for schema in SCHEMAS:
                self._run(cursor, f"CREATE DATABASE IF NOT EXISTS `{schema}` {self.chance.choice(CHARSETS)}")
            for _ in range(count):
                self._one(cursor)
            for table in self.chance.sample(self.tables, min(6, len(self.tables))):
                self._rows(cursor, table)

    def _one(self, cursor: Cursor) -> None:
        acts = [*self._makers(), *self._changers()] if self.tables else self._makers()
        self.chance.choice(acts)(cursor)

    def _makers(self) -> list[Callable[[Cursor], None]]:
        more = [self._versioned, self._sequence] if self.flavour is Flavour.MARIADB else [self._invisible_index]
        tables = [self._plain, self._mixed, self._mixed, self._wide, self._generated, self._parts, self._words]
        return [*tables, self._of_engine, self._referring, self._login, self._odd, *more]

    def _changers(self) -> list[Callable[[Cursor], None]]:
        return [
            self._altered,
            self._altered,
            self._copied,
            self._view,
            self._trigger,
            self._program,
            self._event,
            self._removed,
            self._function,
        ]

    def _run(self, cursor: Cursor, statement: str) -> bool:
        try:
            cursor.execute(statement)
            cursor.fetchall()
        except pymysql.MySQLError as error:
            self.refused.append(f"{statement}: {error.args[-1]}")
            # Reconnect after the server ended the session (completion_type=RELEASE, a timeout), as a pool does.
            cursor.connection.ping(reconnect=True)
            return False
        self.done.append(statement)
        return True

    def _new(self, stem: str) -> str:
        self._number += 1
        return f"`{self.chance.choice(SCHEMAS)}`.`{stem}{self._number}`"

    def _create(self, cursor: Cursor, stem: str, columns: dict[str, str], rest: str = "", options: str = "") -> bool:
        name = self._new(stem)
        lines = [f"`{column}` {kind}" for column, kind in columns.items()]
        made = self._run(cursor, f"CREATE TABLE {name} ({', '.join(lines)}{rest}) {options}")
        if made:
            table = Table(name, {column: kind for column, kind in columns.items() if " AS (" not in kind})
            self.tables.append(table)
            self._rows(cursor, table)
        return made

    def _plain(self, cursor: Cursor) -> None:
        self._create(cursor, "plain", {"id": "INT PRIMARY KEY AUTO_INCREMENT", "v": "VARCHAR(20)"})

    def _mixed(self, cursor: Cursor) -> None:
        kinds = self.chance.sample(_TYPES, self.chance.randint(2, 6))
        columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
        if self.chance.random() < 0.5:
            columns = {"id": "INT PRIMARY KEY AUTO_INCREMENT", **columns}
        self._create(cursor, "mixed", columns, options=self.chance.choice(CHARSETS))

    def _wide(self, cursor: Cursor) -> None:
        kind, count = self.chance.choice((("VARCHAR(10)", 197), ("CHAR(60)", 40), ("VARCHAR(60)", 120)))
        form = self.chance.choice(
            ("", "ROW_FORMAT=DYNAMIC", "ROW_FORMAT=COMPACT", "ROW_FORMAT=DYNAMIC KEY_BLOCK_SIZE=8")
        )
        self._create(cursor, "wide", {f"c{n}": kind for n in range(count)}, options=f"{form} CHARACTER SET utf8mb4")

    def _generated(self, cursor: Cursor) -> None:
        stored = self.chance.choice(("STORED", "VIRTUAL"))
        what = self.chance.choice(("CONCAT(v, '-', id)", "id * 3", "id - 4"))
        kind = "VARCHAR(60)" if what.startswith("CONCAT") else self.chance.choice(("DECIMAL(10,4)", "INT"))
        columns = {"id": "INT", "v": "VARCHAR(20) DEFAULT 'd'", "g": f"{kind} AS ({what}) {stored}"}
        self._create(cursor, "generated", columns, self.chance.choice((", KEY (g)", ", PRIMARY KEY (id)", "")))

    def _parts(self, cursor: Cursor) -> None:
        by = self.chance.choice(
            (
                "PARTITION BY HASH (id) PARTITIONS 3",
                "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN MAXVALUE)",
                "PARTITION BY KEY () PARTITIONS 2",
            )
        )
        self._create(cursor, "parts", {"id": "INT PRIMARY KEY", "v": "VARCHAR(20)"}, options=by)

    def _words(self, cursor: Cursor) -> None:
        columns = {"id": "INT PRIMARY KEY AUTO_INCREMENT", "body": "TEXT"}
        self._create(cursor, "words", columns, ", FULLTEXT KEY (body)", self.chance.choice(CHARSETS))

    def _of_engine(self, cursor: Cursor) -> None:
        if self.engines:
            engine = self.chance.choice(self.engines)
            self._create(cursor, "engine", {"id": "INT NOT NULL", "v": "VARCHAR(20) NOT NULL"}, "", f"ENGINE={engine}")

    def _referring(self, cursor: Cursor) -> None:
        parents = [table for table in self.tables if table.name.rpartition(".")[2].startswith("`plain")]
        if parents:
            parent = self.chance.choice(parents)
            rest = f", FOREIGN KEY (parent) REFERENCES {parent.name} (id) ON DELETE CASCADE"
            self._create(cursor, "child", {"id": "INT PRIMARY KEY", "parent": "INT"}, rest)

    def _odd(self, cursor: Cursor) -> None:
        default = self.chance.choice(("'0000-00-00 00:00:00'", "CURRENT_TIMESTAMP", "'2026-01-01'"))
        columns = {"sp ace": "INT", "o`dd".replace("`", "``"): "VARCHAR(5)", "at": f"DATETIME DEFAULT {default}"}
        self._create(cursor, "odd ", columns, ", CHECK (`sp ace` > -100)")

    def _versioned(self, cursor: Cursor) -> None:
        columns = {"id": "INT PRIMARY KEY", "v": "VARCHAR(20)"}
        self._create(cursor, "versioned", columns, options="WITH SYSTEM VERSIONING")

    def _sequence(self, cursor: Cursor) -> None:
        name = self._new("sequence")
        if self._run(cursor, f"CREATE SEQUENCE {name} START WITH 5 INCREMENT BY 3 NOCACHE"):
            self._run(cursor, f"SELECT NEXT VALUE FOR {name}")

    def _invisible_index(self, cursor: Cursor) -> None:
        columns = {"id": "INT PRIMARY KEY", "j": "JSON", "h": "INT INVISIBLE DEFAULT 3"}
        self._create(cursor, "json", columns, ", KEY hidden (h) INVISIBLE, KEY f ((CAST(j->>'$.a' AS SIGNED)))")

    def _login(self, cursor: Cursor) -> None:
        self._number += 1
        via = self.chance.choice(("", *self.logins, *self.logins))
        how = {
            "": f"IDENTIFIED BY '{PASSWORD}'",
            "ed25519": f"IDENTIFIED VIA ed25519 USING PASSWORD('{PASSWORD}')",
            "parsec": f"IDENTIFIED VIA parsec USING PASSWORD('{PASSWORD}')",
            "mysql_native_password": f"IDENTIFIED WITH mysql_native_password BY '{PASSWORD}'",
        }.get(via, f"IDENTIFIED WITH {via}")
        user = f"'user{self._number}'@'localhost'"
        if self._run(cursor, f"CREATE USER {user} {how}"):
            schema = self.chance.choice(SCHEMAS)
            self._run(cursor, f"GRANT {self.chance.choice(('SELECT', 'ALL'))} ON `{schema}`.* TO {user}")
            if self.chance.random() < 0.4:
                self._run(cursor, f"CREATE ROLE role{self._number}")
                self._run(cursor, f"GRANT role{self._number} TO {user}")

    def _altered(self, cursor: Cursor) -> None:
        table, number = self.chance.choice(self.tables), self._number
        self._number += 1
        change = self.chance.choice(
            (
                f"ADD COLUMN n{number} TIMESTAMP",
                f"ADD COLUMN n{number} VARCHAR(200) CHARACTER SET utf8mb4",
                f"ADD KEY k{number} (`{next(iter(table.columns))}`)",
                f"CONVERT TO {self.chance.choice(CHARSETS[1:])}",
                "ENGINE=InnoDB",
                "ROW_FORMAT=COMPRESSED",
                f"ADD COLUMN n{number} INT DEFAULT 7 FIRST",
                f"COMMENT 'changed {number}'",
                "FORCE",
            )
        )
        self._run(cursor, f"ALTER TABLE {table.name} {change}")

    def _copied(self, cursor: Cursor) -> None:
        table = self.chance.choice(self.tables)
        name = self._new("copied")
        how = self.chance.choice((f"LIKE {table.name}", f"AS SELECT * FROM {table.name}", "SELECT 1 AS one, 'x' AS x"))
        if self._run(cursor, f"CREATE TABLE {name} {how}") and not how.startswith("SELECT"):
            self.tables.append(Table(name, dict(table.columns)))

    def _view(self, cursor: Cursor) -> None:
        table = self.chance.choice(self.tables)
        what = self.chance.choice(("*", "COUNT(*) AS n", "'a' || 'b' AS both_of_them", "CONCAT('x', 1) AS c"))
        self._run(cursor, f"CREATE VIEW {self._new('view')} AS SELECT {what} FROM {table.name}")

    def _trigger(self, cursor: Cursor) -> None:
        self._number += 1
        table = self.chance.choice(self.tables)
        schema = table.name.partition(".")[0]
        when = self.chance.choice(("BEFORE INSERT", "AFTER UPDATE", "BEFORE DELETE"))
        self._run(
            cursor, f"CREATE TRIGGER {schema}.`t{self._number}` {when} ON {table.name} FOR EACH ROW SET @seen = 1"
        )

    def _program(self, cursor: Cursor) -> None:
        body = self.chance.choice(("SELECT 'a' || 'b'", 'SELECT "text"', "SELECT 5 / 3, NOT 1 BETWEEN 2 AND 3"))
        if self.chance.random() < 0.5:
            self._run(cursor, f"CREATE PROCEDURE {self._new('program')} () COMMENT 'p' BEGIN {body}; END")
        else:
            kind = self.chance.choice(("INT", "VARCHAR(20)", "DECIMAL(8,3)"))
            self._run(
                cursor, f"CREATE FUNCTION {self._new('program')} (a INT) RETURNS {kind} DETERMINISTIC RETURN a / 3"
            )

    def _event(self, cursor: Cursor) -> None:
        state = self.chance.choice(("", "DISABLE"))
        at = "EVERY 1 DAY STARTS '2090-01-01 00:00:00'"
        self._run(cursor, f"CREATE EVENT {self._new('event')} ON SCHEDULE {at} {state} DO SET @ran = 1")

    def _function(self, cursor: Cursor) -> None:
        for call in self.functions[:1]:
            self._run(cursor, f"CREATE VIEW {self._new('loaded')} AS SELECT {call} AS answer")

    def _removed(self, cursor: Cursor) -> None:
        if len(self.tables) > 4:
            table = self.chance.choice(self.tables)
            if self._run(cursor, f"DROP TABLE {table.name}"):
                self.tables.remove(table)

    def _rows(self, cursor: Cursor, table: Table) -> None:
        names = [name for name, kind in table.columns.items() if "AUTO_INCREMENT" not in kind]
        for _ in range(self.chance.choice((1, 4, 12))):
            self._number += 1
            used = names if len(names) < 12 else names[:5]
            values = [self._literal(table.columns[name]) for name in used]
            columns = ", ".join(f"`{name}`" for name in used)
            self._run(cursor, f"INSERT INTO {table.name} ({columns}) VALUES ({', '.join(values)})")
        first = names[0] if names else ""
        if first and self.chance.random() < 0.4:
            value = self._literal(table.columns[first])
            self._run(cursor, f"UPDATE {table.name} SET `{first}` = {value} ORDER BY `{first}` LIMIT 1")
        if first and self.chance.random() < 0.2:
            self._run(cursor, f"DELETE FROM {table.name} ORDER BY `{first}` LIMIT 1")

    def _literal(self, kind: str) -> str:
        if kind.startswith("INT"):
            return str(self._number)
        for start, values in _LITERALS.items():
            if kind.startswith(start):
                return self.chance.choice(values)
        if kind.startswith("JSON"):
            return f"'{{\"a\": {self._number}}}'"
        return f"'{self.chance.choice(WORDS)}'"

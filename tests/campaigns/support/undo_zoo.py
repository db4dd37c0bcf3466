"""Random tables of every type, random transactions on them, and DDL in between, for the campaign `undo`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from zsnapdb.base.domain_types import Flavour

SCHEMA = "zoo"
_TEXTS = ("''", "'a'", "'Ab'", "'it''s; -- \\\\'", "' '", "'\u00e9'", "REPEAT('x', 300)")
_KINDS: dict[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "0", "127"),
    "SMALLINT UNSIGNED": ("0", "65535"),
    "MEDIUMINT": ("-8388608", "7"),
    "INT": ("-5", "0", "2147483647"),
    "INT UNSIGNED": ("5", "4294967295"),
    "BIGINT": ("-9223372036854775808", "3"),
    "BIGINT UNSIGNED": ("18446744073709551615", "4"),
    "DECIMAL(30,11)": ("-1234567890123456789.12345678901", "0", "2.5"),
    "DECIMAL(5,0)": ("-99999", "7"),
    "FLOAT": ("0.1", "-0.0", "1e30"),
    "DOUBLE": ("1e-300", "-2.5", "0.1"),
    "DATE": ("'2026-11-20'", "'0000-00-00'", "'9999-12-31'"),
    "TIME(3)": ("'-838:59:59.000'", "'00:00:00.120'"),
    "DATETIME(6)": ("'9999-12-31 23:59:59.499999'", "'2026-01-02 03:04:05.000007'"),
    "TIMESTAMP(2) NULL": ("'1970-01-02 00:00:01.99'", "'2038-01-19 03:14:06.50'"),
    "YEAR": ("1901", "2155", "0"),
    "CHAR(10)": ("'char'", "''", "'A'"),
    "CHAR(60) CHARACTER SET utf8mb4": ("'\u00e9'", "'x '"),
    "VARCHAR(400) CHARACTER SET utf8mb4": _TEXTS,
    "VARCHAR(400) CHARACTER SET latin1": _TEXTS,
    "VARCHAR(20) CHARACTER SET utf16": ("'a'", "'\u00e9'"),
    "TEXT": _TEXTS,
    "BINARY(6)": ("X'610000'", "X'00FF'"),
    "VARBINARY(300)": ("X'00FF27'", "X''"),
    "BLOB": ("X''", "REPEAT('b', 1000)"),
    "ENUM('paid','void','x''y')": ("'paid'", "'void'", "'x''y'"),
    "SET('x','y','z')": ("'x,z'", "''", "'y'"),
    "BIT(11)": ("b'10000000001'", "b'0'"),
    "JSON": ('\'{"a": 1, "b": [1, 2.5, "t"]}\'', "'[]'", "'\"text\"'", "'null'"),
    "POINT": ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(-1.5 0)')"),
}
_DDL_TYPES = {"INT": "INT UNSIGNED", "ENUM('paid','void','x''y')": "ENUM('void','paid','x''y')", "TINYINT": "SMALLINT"}


@dataclass
class ZooTable:
    """A table: its columns by name, its key columns, its parent table, and whether it has a trigger."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    parent: str | None = None
    trigger: bool = False
    extra: tuple[str, ...] = field(default_factory=tuple)

    def create(self) -> Iterator[str]:
        """Yield the statements that create it."""
        parts = [f"{name} {kind}" for name, kind in self.columns.items()]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        parts += self.extra
        if self.parent is not None:
            parts.append(f"CONSTRAINT up_{self.name} FOREIGN KEY (up) REFERENCES {self.parent} (id) {_rule(self.name)}")
        yield f"CREATE TABLE {self.name} ({', '.join(parts)}) ENGINE=InnoDB"
        if self.trigger:
            yield f"CREATE TRIGGER more_{self.name} AFTER DELETE ON {self.name} FOR EACH ROW SET @more = 1"


def _rule(name: str) -> str:
    rules = ("ON DELETE CASCADE", "ON DELETE SET NULL ON UPDATE CASCADE", "")
    return rules[int(name[1:]) % len(rules)]


def tables(rng: random.Random, number: int) -> list[ZooTable]:
    made: list[ZooTable] = []
    for place in range(number):
        kinds = rng.sample(sorted(_KINDS), rng.randint(2, 12))
        if rng.random() < 0.7:
            kinds += [kinds[0]] if kinds[0] != "JSON" else ["INT"]
        columns = {"id": "INT", **{f"c{n}": kind for n, kind in enumerate(kinds)}}
        key: tuple[str, ...] = ("id",) if rng.random() < 0.85 else ()
        parent = None
        parents = [table.name for table in made if table.key]
        if parents and rng.random() < 0.3:
            parent = rng.choice(parents)
            columns["up"] = "INT"
        extra = ("g INT AS (id + 1) VIRTUAL",) if rng.random() < 0.2 else ()
        made.append(ZooTable(f"t{place}", columns, key, parent, trigger=rng.random() < 0.1, extra=extra))
    return made


def value(rng: random.Random, kind: str) -> str:
    """Return a random value of a type."""
    return (
        "NULL" if rng.random() < 0.2 else rng.choice(_KINDS.get(kind.removesuffix(" NULL"), _KINDS.get(kind, ("1",))))
    )


def row(rng: random.Random, table: ZooTable, number: int) -> str:
    """Return an INSERT statement for a random row."""
    parts = [str(number)]
    for name, kind in list(table.columns.items())[1:]:
        parts.append(rng.choice(("NULL", "1", "2")) if name == "up" else value(rng, kind))
    return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({', '.join(parts)})"


def change(rng: random.Random, table: ZooTable, fresh: int) -> str:
    """Return a statement that changes rows of a table."""
    way = rng.choice(("insert", "update", "update", "delete", "delete", "key"))
    condition = f"id {rng.choice(('=', '<', '>'))} {rng.randint(1, 8)}"
    if way == "insert":
        return row(rng, table, fresh)
    if way == "delete":
        return f"DELETE FROM {table.name} WHERE {condition}"
    if way == "key":
        return f"UPDATE {table.name} SET id = id + 100 WHERE id = {rng.randint(1, 8)}"
    names = rng.sample([name for name in table.columns if name not in ("id", "up")], rng.randint(1, 2))
    document = next((name for name in names if table.columns[name] == "JSON"), None)
    if document is not None and rng.random() < 0.6:
        return (
            f"UPDATE {table.name} SET {document} = JSON_SET({document}, '$.a', {rng.randint(0, 9)}) WHERE {condition}"
        )
    assigned = ", ".join(f"{name} = {value(rng, table.columns[name])}" for name in dict.fromkeys(names))
    return f"UPDATE {table.name} SET {assigned} WHERE {condition}"


def ddl(rng: random.Random, table: ZooTable) -> tuple[list[str], list[str]]:
    """Return statements that change the definition of a table, and those that revert it."""
    plain = [name for name in table.columns if name not in ("id", "up")]
    same = [
        (one, other) for one in plain for other in plain if one < other and table.columns[one] == table.columns[other]
    ]
    name = table.name
    ways: list[tuple[list[str], list[str]]] = [
        ([f"ALTER TABLE {name} ADD COLUMN more INT FIRST"], [f"ALTER TABLE {name} DROP COLUMN more"]),
        ([f"ALTER TABLE {name} ADD INDEX i ({'id'})"], [f"ALTER TABLE {name} DROP INDEX i"]),
        ([f"OPTIMIZE TABLE {name}"], []),
        ([f"RENAME TABLE {name} TO other", f"RENAME TABLE other TO {name}"], []),
    ]
    for one, other in same:
        kind = table.columns[one]
        exchange = [f"ALTER TABLE {name} CHANGE {one} spare {kind}, CHANGE {other} {one} {kind}"]
        exchange.append(f"ALTER TABLE {name} CHANGE spare {other} {kind}")
        ways += [(exchange, exchange)] * 3
        order = f"ALTER TABLE {name} MODIFY {one} {kind} AFTER {other}"
        before = plain[plain.index(one) - 1] if plain.index(one) else "id"
        ways += [([order], [f"ALTER TABLE {name} MODIFY {one} {kind} AFTER {before}"])] * 3
    for column in plain:
        changed = _DDL_TYPES.get(table.columns[column])
        if changed is not None:
            back = f"ALTER TABLE {name} MODIFY {column} {table.columns[column]}"
            ways += [([f"ALTER TABLE {name} MODIFY {column} {changed}"], [back])] * 2
    if table.parent is not None:
        drop = f"ALTER TABLE {name} DROP FOREIGN KEY up_{name}"
        add = (
            f"ALTER TABLE {name} ADD CONSTRAINT up_{name} FOREIGN KEY (up) REFERENCES {table.parent} (id) {_rule(name)}"
        )
        ways += [([drop], [add])] * 4
    if not table.trigger and table.parent is None:
        again = " ".join(f"DROP TABLE {name}".split())
        turned = dict(reversed(list(table.columns.items())))
        made = next(ZooTable(name, turned, table.key, extra=table.extra).create())
        ways += [([again, made], [])]
    return rng.choice(ways)


def settings(rng: random.Random, flavour: Flavour) -> Iterator[str]:
    """Yield random binlog settings for the next transactions."""
    yield f"SET GLOBAL binlog_row_metadata = {rng.choice(('MINIMAL', 'FULL'))}"
    yield f"SET SESSION binlog_row_image = {rng.choice(('FULL', 'FULL', 'MINIMAL', 'NOBLOB'))}"
    squeezes = rng.choice(("ON", "OFF"))
    if flavour is Flavour.MYSQL:
        yield f"SET SESSION binlog_transaction_compression = {squeezes}"
        yield f"SET SESSION binlog_row_value_options = '{rng.choice(('PARTIAL_JSON', ''))}'"
    else:
        yield f"SET GLOBAL log_bin_compress = {squeezes}"

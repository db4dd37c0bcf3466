"""A table in which, for each type, a value becomes its neighbour: another one that looks the same, or nearly the same.

Each row has one change, or none. So which rows differ between the two states, and in which column, is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TABLE = "past.neighbours"
_SINGLE, _SIXTY_FOUR = "1234567", "SET(" + ", ".join(f"'m{n}'" for n in range(64)) + ")"


@dataclass(frozen=True)
class Neighbours:
    """A type, a literal of the value before, and one of the value after; `is_change`: they are two values."""

    type: str
    before: str
    after: str
    is_change: bool = True


@dataclass(frozen=True)
class Key:
    """A part of the primary key: its type, what it is in most rows, and values in the order of the server."""

    type: str
    usual: str
    values: tuple[str, ...]


_BOTH = (
    Neighbours("FLOAT", _SINGLE, "1234568"),
    Neighbours("FLOAT", "16777215", "16777214"),
    Neighbours("FLOAT", "0.1", "0.1e0", is_change=False),
    Neighbours("DOUBLE", "0.1e0", "0.10000000000000002e0"),
    Neighbours("DOUBLE", "-2.2250738585072014e-308", "-2.225073858507202e-308"),
    Neighbours("DECIMAL(65, 30)", f"{'9' * 35}.{1:030d}", f"{'9' * 35}.{2:030d}"),
    Neighbours("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551614"),
    Neighbours("BIGINT", "-9223372036854775808", "-9223372036854775807"),
    Neighbours("TINYINT(1)", "1", "2"),
    Neighbours("INT INVISIBLE", "1", "2"),
    Neighbours("BIT(64)", "b'1'", "b'0'"),
    Neighbours("YEAR", "0", "'2000'"),
    Neighbours("DATE", "'0000-00-00'", "'2026-00-00'"),
    Neighbours("TIME(6)", "'-00:00:00.000001'", "'00:00:00.000001'"),
    Neighbours("DATETIME", "'0000-00-00'", "'0000-01-01'"),
    Neighbours("DATETIME(6)", "'9999-12-31 23:59:59.999998'", "'9999-12-31 23:59:59.999999'"),
    # In central Europe both are 02:30:00.
    Neighbours("TIMESTAMP NULL", "'2026-10-25 00:30:00'", "'2026-10-25 01:30:00'"),
    Neighbours("TIMESTAMP(6) NULL", "'2026-10-25 00:30:00.000001'", "'2026-10-25 00:30:00.000002'"),
    Neighbours("ENUM('', 'a')", "0", "1"),
    Neighbours("ENUM('a', 'A') COLLATE utf8mb4_bin", "1", "2"),
    Neighbours("SET('', 'b')", "0", "1"),
    Neighbours(_SIXTY_FOUR, "18446744073709551615", "18446744073709551614"),
    Neighbours("CHAR(3) COLLATE utf8mb4_general_ci", "'a'", "'A'"),
    Neighbours("VARCHAR(3) COLLATE utf8mb4_general_ci", "'a'", "'a '"),
    Neighbours("VARCHAR(3) COLLATE utf8mb4_general_ci", "''", "NULL"),
    Neighbours("VARCHAR(3) COLLATE utf8mb4_unicode_ci", "_utf8mb4 X'C3A9'", "_utf8mb4 X'65CC81'"),
    Neighbours("TEXT", "'a'", "'a\\n'"),
    # Both characters are U+FFE2.
    Neighbours("VARCHAR(3) CHARACTER SET cp932", "_cp932 X'81CA'", "_cp932 X'EEF9'"),
    # Neither byte is a character.
    Neighbours("CHAR(3) CHARACTER SET cp1250", "_cp1250 X'81'", "_cp1250 X'83'"),
    Neighbours("CHAR(3) CHARACTER SET latin1", "_latin1 X'81'", "_latin1 X'8D'"),
    Neighbours("VARCHAR(3) CHARACTER SET utf16", "_utf16 X'00E9'", "_utf16 X'00650301'"),
    Neighbours("BINARY(3)", "X'00'", "X'0001'"),
    Neighbours("VARBINARY(3)", "X'61'", "X'6100'"),
    Neighbours("BLOB", "X''", "NULL"),
    Neighbours("JSON", "'1'", "'1.0'"),
    Neighbours("JSON", "'null'", "NULL"),
    Neighbours("GEOMETRY", "ST_GeomFromText('POINT(1 2)', 0)", "ST_GeomFromText('POINT(1 2)', 4326)"),
    Neighbours("POINT", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(1 2.0000000000000004)')"),
)
_OWN = {
    "mysql": (
        Neighbours("VECTOR(2)", "STRING_TO_VECTOR('[1, 2.5]')", "STRING_TO_VECTOR('[1, 2.5000002]')"),
        # MariaDB stores or prints both as 0.
        Neighbours("FLOAT", "'0'", "'-0'"),
        Neighbours("DOUBLE", "'0'", "'-0'"),
    ),
    "mariadb": (
        Neighbours("VECTOR(2)", "VEC_FromText('[1, 2.5]')", "VEC_FromText('[1, 2.5000002]')"),
        Neighbours("UUID", "'00000001-0000-1000-8000-000000000009'", "'00000001-0000-1000-8000-00000000000a'"),
        Neighbours("INET6", "'::ffff:1.2.3.4'", "'::1.2.3.4'"),
        Neighbours("INET4", "'1.2.3.4'", "'1.2.3.5'"),
    ),
}
_KEYS = (
    Key("FLOAT", "0", (_SINGLE, "1234568")),
    Key("DATE", "'2026-01-01'", ("'0000-00-00'", "'2026-01-02'")),
    Key("TIME(1)", "'00:00:00'", ("'-10:00:00'", "'-00:00:00.5'", "'00:00:00'", "'100:00:00'")),
    Key("DATETIME(1)", "'2026-01-01'", ("'0000-00-00'", "'2026-01-01'", "'2026-01-01 00:00:00.5'")),
    Key("TIMESTAMP", "'2026-01-01'", ("'2026-10-25 00:30:00'", "'2026-10-25 01:30:00'")),
    Key(_SIXTY_FOUR, "'m0'", ("1", "18446744073709551614", "18446744073709551615")),
)
_OWN_KEYS = {
    "mysql": (),
    "mariadb": (
        Key(
            "UUID",
            "'00000000-0000-0000-0000-000000000000'",
            (
                "'00000001-0000-1000-8000-000000000009'",
                "'00000002-0000-1000-8000-000000000001'",
                "'00000000-0000-7000-8000-000000000005'",
                "'10000000-0000-7000-8000-000000000004'",
            ),
        ),
        Key("INET6", "'::'", ("'::9'", "'::a'", "'::10'", "'ffff::'")),
    ),
}

Run = Callable[[str], object]


@dataclass(frozen=True)
class NeighboursTable:
    """The table on a server of a flavour."""

    values: tuple[Neighbours, ...]
    keys: tuple[Key, ...]

    @classmethod
    def on(cls, flavour: str) -> NeighboursTable:
        return cls((*_BOTH, *_OWN[flavour]), (*_KEYS, *_OWN_KEYS[flavour]))

    @property
    def truth(self) -> dict[int, str]:
        """The column that changes, of each row that has a change, by the first part of its key.

        Of the rows that differ in a part of the key, the last one changes.
        """
        changed = {n: f"v{n}" for n, value in enumerate(self.values) if value.is_change}
        return changed | {1000 + n: "mark" for n in range(len(self.keys))} | {2000: "word"}

    def make(self, run: Run) -> None:
        """Create the table with the values before."""
        run("SET SESSION time_zone = '+00:00', sql_mode = ''")
        keys = [f"k{n} {key.type} NOT NULL DEFAULT {key.usual}" for n, key in enumerate(self.keys)]
        values = [f"v{n} {value.type}" for n, value in enumerate(self.values)]
        names = ", ".join(f"k{n}" for n in range(len(self.keys)))
        run(
            f"CREATE TABLE {TABLE} (id INT NOT NULL, word VARCHAR(3) COLLATE utf8mb4_general_ci NOT NULL DEFAULT 'a',"
            f" {', '.join(keys)}, mark INT, {', '.join(values)}, PRIMARY KEY (id, word, {names})) CHARSET utf8mb4"
        )
        for n, value in enumerate(self.values):
            run(f"INSERT INTO {TABLE} (id, v{n}) VALUES ({n}, {value.before})")
        for n, key in enumerate(self.keys):
            for one in key.values:
                run(f"INSERT INTO {TABLE} (id, k{n}) VALUES ({1000 + n}, {one})")
        run(f"INSERT INTO {TABLE} (id) VALUES (2000)")

    def change(self, run: Run) -> None:
        """Write the values after."""
        run("SET SESSION time_zone = '+00:00', sql_mode = ''")
        for n, value in enumerate(self.values):
            # To MySQL the JSON values 1 and 1.0 are equal, so it would leave the first one there.
            run(f"UPDATE {TABLE} SET v{n} = NULL WHERE id = {n}")
            run(f"UPDATE {TABLE} SET v{n} = {value.after} WHERE id = {n}")
        for n in range(len(self.keys)):
            run(f"UPDATE {TABLE} SET mark = 1 WHERE id = {1000 + n} ORDER BY k{n} DESC LIMIT 1")
        run(f"UPDATE {TABLE} SET word = 'A' WHERE id = 2000")

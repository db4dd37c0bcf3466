"""The AUTO_INCREMENT counters of the tables of users, and a digest of how the tables are defined."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from zsnapdb.mysql.session import Session
from zsnapdb.planning.quoting import quoted

_SYSTEM = "('mysql', 'sys', 'information_schema', 'performance_schema')"
_COUNT = f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema NOT IN {_SYSTEM}"
_DEFINITIONS = tuple(
    f"SELECT {columns} FROM information_schema.{view} WHERE table_schema NOT IN {_SYSTEM} ORDER BY {columns}"
    for view, columns in (
        ("tables", "table_schema, table_name, table_type, engine, table_collation"),
        ("columns", "table_schema, table_name, ordinal_position, column_name, column_type, column_default, extra"),
        ("statistics", "table_schema, table_name, index_name, seq_in_index, column_name, sub_part, non_unique"),
        (
            "partitions",
            "table_schema, table_name, partition_name, subpartition_name, partition_method, partition_description",
        ),
    )
)
_COUNTERS = (
    "SELECT t.table_schema, t.table_name, COALESCE(t.auto_increment, 1) FROM information_schema.tables t"
    " JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name"
    f" WHERE t.table_schema NOT IN {_SYSTEM} AND c.extra LIKE '%auto_increment%'"
)
"""A table that had no row yet may have no counter; its next value is 1."""


def counters(session: Session, most: int) -> dict[tuple[str, str], int] | None:
    """Return the next value of each table that has a counter, by schema and table; None beyond `most` tables.

    MySQL keeps statistics for a day; they are read anew (refman 8.4, information_schema_stats_expiry). After a start it
    shows the last value instead of the next one until a statement uses the table (seen with 9.7).
    """
    if int(session.value(_COUNT)) > most:
        return None
    if session.query("SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
        session.query("SET SESSION information_schema_stats_expiry = 0")
        for schema, table, _ in session.query(_COUNTERS):
            session.query(f"SELECT 1 FROM {quoted(str(schema), str(table))} LIMIT 0")
    return {(str(schema), str(table)): int(value) for schema, table, value in session.query(_COUNTERS)}


def definitions(session: Session) -> str:
    """Return the SHA-256 of the columns, keys and partitions of the tables of users.

    Not all that changes them is in a binlog: ALTER TABLE ... PARTITION NO_WRITE_TO_BINLOG is not (sql_yacc.yy of both
    families).
    """
    seen = hashlib.sha256()
    for question in _DEFINITIONS:
        for row in session.query(question):
            seen.update(repr([None if value is None else str(value) for value in row]).encode())
    return seen.hexdigest()


def set_back(session: Session, wanted: Mapping[tuple[str, str], int]) -> None:
    """Set these counters. A server does not set one to a value that a row has (refman 8.4, "ALTER TABLE")."""
    for (schema, table), value in wanted.items():
        session.query(f"ALTER TABLE {quoted(schema, table)} AUTO_INCREMENT = {value}")

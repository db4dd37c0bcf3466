"""Changes to user tables that are not stored in rows: AUTO_INCREMENT counters, definitions and statistics."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.sql_quoting import quoted

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
_STATISTICS = {
    "COLUMN_STATISTICS": "schema_name, table_name, column_name, histogram FROM information_schema.column_statistics",
    "table_stats": "db_name, table_name, cardinality FROM mysql.table_stats",
    "column_stats": "db_name, table_name, column_name, min_value, max_value, avg_frequency FROM mysql.column_stats",
    "index_stats": "db_name, table_name, index_name, prefix_arity, avg_frequency FROM mysql.index_stats",
}
"""Data that only ANALYZE writes: MySQL's histograms, and MariaDB's engine-independent statistics."""
_WITH_STATISTICS = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('mysql', 'information_schema')"
    f" AND table_name IN ({', '.join(repr(name) for name in _STATISTICS)})"
)
_ANALYZED = "SELECT database_name, table_name FROM mysql.innodb_table_stats WHERE UNIX_TIMESTAMP(last_update) >= %s"
_PARTITION = re.compile("#p#", re.IGNORECASE)
_WITH_COUNTER = (
    "SELECT table_schema, table_name FROM information_schema.columns"
    f" WHERE table_schema NOT IN {_SYSTEM} AND extra LIKE '%auto_increment%'"
)
_NEXT = "SELECT table_schema, table_name, auto_increment FROM information_schema.tables"
_FIRST = 1
"""The next AUTO_INCREMENT value of a table that never had a row. Such a table may have no counter."""


def counters(session: Session, most: int) -> dict[tuple[str, str], int] | None:
    """Return the next AUTO_INCREMENT value of each table with a counter, by schema and table.

    The result is None if more than `most` tables have a counter. MySQL caches these values for a day, so they are
    refreshed (refman 8.4, information_schema_stats_expiry). After a server start, MySQL shows the last value instead of
    the next value until a statement uses the table (observed with 9.7). On MariaDB, one join of the two views takes
    four times as long as two queries (observed with 11.8).
    """
    if int(session.value(_COUNT)) > most:
        return None
    tables = [(str(schema), str(table)) for schema, table in session.query(_WITH_COUNTER)]
    if session.query("SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
        session.query("SET SESSION information_schema_stats_expiry = 0")
        for schema, table in tables:
            session.query(f"SELECT 1 FROM {quoted(schema, table)} LIMIT 0")
    return _next(session.query(f"{_NEXT} WHERE table_schema NOT IN {_SYSTEM}"), tables)


def counters_of(session: Session, tables: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the next AUTO_INCREMENT values of these tables. The session must already have called `counters`."""
    rows: list[Row] = []
    for names in tables:
        # If both names are given, a server opens only this table.
        rows += session.query(f"{_NEXT} WHERE table_schema = %s AND table_name = %s", names)
    return _next(rows, tables)


def _next(rows: Iterable[Row], tables: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    values = {(str(schema), str(table)): int(value) for schema, table, value in rows if value is not None}
    return {names: values.get(names, _FIRST) for names in tables}


def definitions(session: Session) -> str:
    """Return the SHA-256 of the columns, keys, partitions and histograms of user tables.

    ALTER TABLE ... PARTITION NO_WRITE_TO_BINLOG and ANALYZE LOCAL change them without a binlog entry (sql_yacc.yy of
    both families).
    """
    seen = hashlib.sha256()
    there = {str(name) for (name,) in session.query(_WITH_STATISTICS)}
    statistics = (f"SELECT {told} ORDER BY 1, 2, 3" for view, told in _STATISTICS.items() if view in there)
    for question in (*_DEFINITIONS, *statistics):
        for row in session.query(question):
            seen.update(repr([None if value is None else str(value) for value in row]).encode())
    return seen.hexdigest()


def analyze_again(session: Session, since: int) -> None:
    """Analyze each InnoDB table again if its statistics changed after `since` (seconds since 1970).

    InnoDB updates statistics after many changes. An earlier ANALYZE LOCAL may have computed the statistics from
    different rows.
    """
    seen = {(str(schema), _PARTITION.split(str(table))[0]) for schema, table in session.query(_ANALYZED, [since])}
    for schema, table in sorted(seen):
        if schema not in ("mysql", "sys"):
            session.query(f"ANALYZE LOCAL TABLE {quoted(schema, table)}")


def set_back(session: Session, wanted: Mapping[tuple[str, str], int]) -> None:
    """Set AUTO_INCREMENT counters to the values in `wanted`.

    A server never sets a counter to a value that a row already has (refman 8.4, "ALTER TABLE").
    """
    for (schema, table), value in wanted.items():
        session.query(f"ALTER TABLE {quoted(schema, table)} AUTO_INCREMENT = {value}")

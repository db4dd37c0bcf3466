"""Reads the rows and columns of a single table, and checks it. `schema_catalogue` lists the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.schema.schema_catalogue import has_column
from zsnapdb.mysql.session import Row, Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog.row_values import ForeignKey, TableShape, server_value
from zsnapdb.planning.binlog.undo import ExactRow, RowQuestion, key_columns, referring, rescue_hint
from zsnapdb.planning.clone.diff import Column
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.sql_quoting import quoted

_SMALL_TABLE = 64 << 20
"""Size in bytes from which several threads check a table."""


class TableChecker:
    """Checks many tables in one session.

    MySQL starts the threads of `innodb_parallel_read_threads` for each check of an InnoDB table (refman 8.4). For a
    small table, this takes longer than the check, so small tables are checked with one thread.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # MariaDB has no such variable.
        variables = global_variables(session, ["innodb_parallel_read_threads"])
        self._usual = self._threads = int(variables.get("innodb_parallel_read_threads", "1"))

    def check(self, table: CatalogueTable, *, for_upgrade: bool = False) -> list[Row]:
        """Run CHECK TABLE and return its rows: table, operation, kind, text.

        No engine can check a sequence (MariaDB manual, "CHECK TABLE"). For a sequence, its only row is read instead.
        """
        if table.is_sequence:
            rows = self._session.query(f"SELECT * FROM {table.quoted}")
            verdict = ("status", "OK") if len(rows) == 1 else ("error", f"{len(rows)} rows, not 1")
            return [(table.quoted, "read", *verdict)]
        threads = 1 if table.size < _SMALL_TABLE else self._usual
        if threads != self._threads:
            self._session.query(f"SET SESSION innodb_parallel_read_threads = {threads}")
            self._threads = threads
        return self._session.query(f"CHECK TABLE {table.quoted}{' FOR UPGRADE' if for_upgrade else ''}")


def count(session: Session, schema: str, table: str, *, with_history: bool = False) -> int:
    """Return the number of rows of the table. With `with_history`, old row versions are counted, too."""
    history = " FOR SYSTEM_TIME ALL" if with_history else ""
    return int(session.value(f"SELECT COUNT(*) FROM {quoted(schema, table)}{history}"))


def checksum(session: Session, schema: str, table: str) -> int | None:
    """Return the sum of all row checksums, which does not depend on the row order.

    The result is None if the server computes no checksum. The sum is computed from the bytes of the rows, so tables
    with the same rows but different storage formats can have different sums (refman 8.4, "CHECKSUM TABLE Statement").
    """
    ((_, number),) = session.query(f"CHECKSUM TABLE {quoted(schema, table)} EXTENDED")
    return None if number is None else int(number)


def creation_options(session: Session, schema: str, table: str) -> tuple[object, object, object] | None:
    """Return the engine, collation and row format of a table or sequence; None if it does not exist."""
    rows = session.query(
        "SELECT engine, table_collation, row_format FROM information_schema.tables WHERE table_schema = %s AND"
        " table_name = %s",
        (schema, table),
    )
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def columns(session: Session, schema: str, table: str) -> list[Column]:
    """Return the columns of the table in order, with their positions in the primary key.

    The list is empty if the table does not exist.
    """
    pads = _padding_collations(session)
    keys = {
        str(column): int(part)
        for column, part in session.query(
            "SELECT column_name, seq_in_index FROM information_schema.statistics WHERE table_schema = %s AND table_name"
            " = %s AND index_name = 'PRIMARY'",
            (schema, table),
        )
    }
    rows = session.query(
        "SELECT column_name, data_type, character_maximum_length, collation_name, character_set_name FROM"
        " information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (schema, table),
    )
    return [
        Column(
            str(column),
            str(kind).lower(),
            None if length is None else int(length),
            keys.get(str(column), 0),
            collation is None or pads(str(collation)),
            None if charset is None else str(charset),
        )
        for column, kind, length, collation, charset in rows
    ]


def ordered_key(session: Session, schema: str, table: str) -> tuple[str, ...]:
    """Return the primary key's columns if the server can find the key's first and last row without a scan; else ().

    A key with prefixes, a hash or mixed directions does not order rows by its columns (refman 8.4, "ORDER BY
    Optimization"; "The INFORMATION_SCHEMA STATISTICS Table", SUB_PART and COLLATION).
    """
    parts = session.query(
        "SELECT column_name, sub_part, collation FROM information_schema.statistics WHERE table_schema = %s AND"
        " table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
        (schema, table),
    )
    directions = {direction for _, _, direction in parts}
    if any(prefix is not None for _, prefix, _ in parts) or directions not in ({"A"}, {"D"}):
        return ()
    return tuple(str(column) for column, _, _ in parts)


def _padding_collations(session: Session) -> Callable[[str], bool]:
    """Return a function that returns whether a collation ignores trailing spaces.

    MySQL has a column with this property. On MariaDB, a collation does not ignore trailing spaces if its name contains
    `_nopad_`.
    """
    if not has_column(session, "COLLATIONS", "PAD_ATTRIBUTE"):
        return lambda name: "_nopad_" not in name
    pads = {
        str(name): str(pad)
        for name, pad in session.query("SELECT collation_name, pad_attribute FROM information_schema.collations")
    }
    return lambda name: pads.get(name, "PAD SPACE") == "PAD SPACE"


_MOST_BYTES = 1 << 28
"""Maximum size of the rows kept in memory, in bytes."""


def exact_rows(session: Session, questions: Sequence[RowQuestion], gtid: str) -> tuple[ExactRow, ...]:
    """Return all values of each row, in the order of `questions`. For a row that does not exist, the values are empty.

    The results of two sessions are equal if and only if all values are equal byte by byte. Raises PreflightError if the
    rows are too large to keep in memory. Its hint names the transaction `gtid`.
    """
    found, size = [], 0
    for question in questions:
        rows = session.query(question.sql)
        found.append(_exact(rows[0]) if rows else ())
        size += sum(len(value or b"") for value in found[-1])
        if size > _MOST_BYTES:
            raise PreflightError(
                f"the rows that the transaction changed have more than {_MOST_BYTES >> 20} MiB",
                hint=rescue_hint(gtid, [question.shape.name for question in questions]),
            )
    return tuple(found)


def referring_rows(session: Session, question: RowQuestion, key: ForeignKey, child: TableShape) -> list[RowQuestion]:
    """Return a query for each child row that references the row of `question` by the foreign key `key`."""
    columns = key_columns(child)
    return [
        RowQuestion(
            child, tuple(server_value(column, value) for column, value in zip(columns, _exact(row), strict=True))
        )
        for row in session.query(referring(question, key, child))
    ]


def _exact(row: Row) -> ExactRow:
    return tuple(value if value is None or isinstance(value, bytes) else str(value).encode() for value in row)

"""Rows of a server with every byte of their values, by questions for their keys."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.binlog.row_values import server_value
from zsnapdb.planning.binlog.table_shape import ForeignKey, TableShape
from zsnapdb.planning.binlog.undo_proof import ExactRow, RowQuestion, key_columns, referring

_MOST_BYTES = 1 << 28
"""Bytes of the rows that are kept in memory."""


def exact_rows(session: Session, questions: Sequence[RowQuestion]) -> tuple[ExactRow, ...]:
    """Return every value of each row, in the order of the questions; an empty row if there is none.

    Two sessions answer the same if all values are the same byte by byte. PreflightError if the rows are too large.
    """
    found, size = [], 0
    for question in questions:
        rows = session.query(question.sql)
        found.append(_exact(rows[0]) if rows else ())
        size += sum(len(value or b"") for value in found[-1])
        if size > _MOST_BYTES:
            raise PreflightError(
                f"the rows that the transaction changed have more than {_MOST_BYTES >> 20} MiB",
                hint="rescue the table: `zsnapdb rescue --to before-GTID`",
            )
    return tuple(found)


def referring_rows(session: Session, question: RowQuestion, key: ForeignKey, child: TableShape) -> list[RowQuestion]:
    """Return questions for the rows that refer to a row by a foreign key."""
    columns = key_columns(child)
    return [
        RowQuestion(
            child, tuple(server_value(column, value) for column, value in zip(columns, _exact(row), strict=True))
        )
        for row in session.query(referring(question, key, child))
    ]


def _exact(row: Row) -> ExactRow:
    return tuple(value if value is None or isinstance(value, bytes) else str(value).encode() for value in row)

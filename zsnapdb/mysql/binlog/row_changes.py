"""The rows that one transaction changed, with their values, from a binlog of either family.

What a binlog holds may have been written by others. The memory used is bounded by the number of rows that are read.
"""

from __future__ import annotations

from typing import BinaryIO

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.event_bytes import EventBytes, payload
from zsnapdb.mysql.binlog.events import FORMAT, HEADER, MALFORMED, MARIADB_GTID, PAYLOAD, decisive_events, malformed
from zsnapdb.mysql.binlog.rows import ROW_EVENTS, TABLE_MAP, RowsHead, TableMap, row_images, rows_head, table_map
from zsnapdb.mysql.binlog.table_metadata import TEXTS, TEXTS_AND_GEOMETRY, ColumnMetadata, table_metadata
from zsnapdb.mysql.binlog.transaction_changes import NO_TABLE, OTHER_EVENTS, event_body
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.row_values import LoggedColumn
from zsnapdb.planning.binlog.undo import MOST_ROWS, LoggedRow


def row_changes(file: BinaryIO, name: str, transaction: TransactionChanges) -> list[LoggedRow]:
    """Return the rows that a complete transaction of an open binlog changed, in their order.

    DamagedError names the place of an event that is wrong. PreflightError if a form of rows cannot be read, or if the
    rows are more than 100,000.
    """
    rows, has_checksum = _Rows(), False
    place: int | None = None
    try:
        for event in decisive_events(file, name, transaction.end, transaction.start, others=OTHER_EVENTS):
            place = event.start
            if event.kind == FORMAT:
                has_checksum = event.body[-1] == 1
            else:
                rows.add(event.kind, event_body(file, event, has_checksum=has_checksum))
    except MALFORMED as error:
        raise malformed(name, error, place) from error
    return rows.rows


class _Rows:
    """The rows of one transaction so far."""

    def __init__(self) -> None:
        self.rows: list[LoggedRow] = []
        self._maps: dict[int, TableMap] = {}
        self._columns: dict[int, tuple[LoggedColumn, ...]] = {}
        self._texts = TEXTS

    def add(self, kind: int, body: EventBytes) -> None:
        """Add the next event. ValueError if the event is malformed."""
        if kind == MARIADB_GTID:
            self._texts = TEXTS_AND_GEOMETRY
        elif kind == TABLE_MAP:
            table = table_map(body)
            self._maps[table.id] = table
            self._columns[table.id] = _columns(table, table_metadata(table, body, self._texts))
        elif kind in ROW_EVENTS:
            head = rows_head(kind, body)
            if head.table != NO_TABLE:
                table_of_rows = self._maps.get(head.table)
                if table_of_rows is None:
                    raise ValueError(f"rows are of table {head.table}, which no event before them describes")
                self._add_rows(head, table_of_rows, body)
            if head.ends_statement:
                self._maps.clear()
                self._columns.clear()
        elif kind == PAYLOAD:
            events = payload(body)
            while not events.is_at_end():
                _, inner, _, length, _, _ = HEADER.unpack(events.take(HEADER.size))
                pieces = events.pieces(length - HEADER.size)
                if inner != PAYLOAD:
                    self.add(inner, EventBytes(pieces))
                for _ in pieces:
                    pass

    def _add_rows(self, head: RowsHead, table: TableMap, body: EventBytes) -> None:
        schema, name = table.schema.decode("utf-8", "replace"), table.table.decode("utf-8", "replace")
        columns = self._columns[table.id]
        try:
            for before, after in row_images(head, table, body):
                if len(self.rows) >= MOST_ROWS:
                    raise PreflightError(
                        f"the transaction changed more than {MOST_ROWS} rows",
                        hint="rescue the table: `zsnapdb rescue --to before-GTID`",
                    )
                self.rows.append(LoggedRow(schema, name, head.kind, columns, before, after))
        except ValueError as error:
            raise PreflightError(
                f"rows of {schema}.{name} cannot be read from the binlog: {error}",
                hint="rescue the table: `zsnapdb rescue --to before-GTID`",
            ) from error


def _columns(table: TableMap, metadata: tuple[ColumnMetadata, ...]) -> tuple[LoggedColumn, ...]:
    """Return the columns of a table map; none if one of them has a form that is not known."""
    return tuple(
        LoggedColumn(
            code,
            column.prefix,
            column.fixed,
            column.size,
            column.numbered,
            more.name,
            more.is_unsigned,
            more.collation,
            more.members,
        )
        for code, column, more in zip(table.types, table.columns or (), metadata, strict=False)
    )

"""Complete transactions of a binlog file with the changed tables, the kinds of change, and the changed rows.

Binlog contents are untrusted, so memory use is limited for every file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.patterns import printable
from zsnapdb.mysql.binlog.event_bytes import EventBytes, in_file, inflated, inner_events, payload
from zsnapdb.mysql.binlog.events import (
    ANONYMOUS_GTID,
    FORMAT,
    GTID,
    HEADER,
    INCIDENT,
    MALFORMED,
    MARIADB_GTID,
    MARIADB_QUERY_COMPRESSED,
    PAYLOAD,
    QUERY,
    TABLE_MAP,
    TAGGED_GTID,
    XA_PREPARE,
    Event,
    decisive_events,
    malformed,
)
from zsnapdb.mysql.binlog.logged_changes import (
    ROW_EVENTS,
    TEXTS,
    TEXTS_AND_GEOMETRY,
    ColumnMetadata,
    RowsHead,
    TableMap,
    count_rows,
    query,
    row_images,
    rows_head,
    statement,
    table_map,
    table_metadata,
)
from zsnapdb.mysql.binlog.transactions import TransactionTracker, commit_time_of, gtid_text
from zsnapdb.planning.binlog.changes import (
    MOST_STATEMENTS,
    MOST_TABLES,
    MOST_TEXT,
    LoggedStatement,
    TableChanges,
    TransactionChanges,
)
from zsnapdb.planning.binlog.row_values import LoggedColumn
from zsnapdb.planning.binlog.undo import MOST_ROWS, LoggedRow, rescue_hint

_EXECUTE_LOAD, _ROWS_QUERY, _ANNOTATE_ROWS = 18, 29, 160
OTHER_EVENTS = frozenset({TABLE_MAP, _EXECUTE_LOAD, _ROWS_QUERY, _ANNOTATE_ROWS, *ROW_EVENTS})
"""Events that contain changes of a transaction. Other events start or end the transaction."""
_BEGINS = frozenset({GTID, ANONYMOUS_GTID, TAGGED_GTID, MARIADB_GTID})
_MOST_MAPS = 1 << 14
NO_TABLE = 0xFFFFFF
"""Table id of a row event that only ends its statement (MySQL's Rows_log_event, "dummy event")."""
_LOAD_HEAD = 13
"""Number of bytes that an Execute_load_query_log_event has before the status variables, in addition to those of a query
event.
"""
_SECOND = 1_000_000


def transaction_changes(file: BinaryIO, name: str, start: int | None = None) -> Iterator[TransactionChanges]:
    """Yield the complete transactions of an open binlog in order, with their changes.

    Reading starts at the offset `start`, which must be the end of a transaction. Raises DamagedError with the offset if
    an event is damaged, and PreflightError if the file is encrypted.
    """
    walk, content = TransactionTracker(), _Content()
    decisive = decisive_events(file, name, file.seek(0, 2), start, OTHER_EVENTS)
    place: int | None = None
    try:
        for event, body in event_bodies(file, decisive):
            place = event.start
            if event.kind in _BEGINS:
                content = _Content()
            else:
                content.add(event.kind, event.when, body)
            if event.kind not in OTHER_EVENTS and walk.see(event) and walk.opened is not None:
                yield content.complete(walk, event)
                content = _Content()
    except MALFORMED as error:
        raise malformed(name, error, place) from error


def event_bodies(file: BinaryIO, events: Iterable[Event]) -> Iterator[tuple[Event, EventBytes]]:
    """Yield each event with its complete body. If a body was truncated to the window, it is read from the file."""
    has_checksum = False
    for event in events:
        if event.kind == FORMAT:
            has_checksum = event.body[-1] == 1
        start, end = event.start + HEADER.size, event.end - (4 if has_checksum or event.kind == FORMAT else 0)
        yield event, EventBytes([event.body] if len(event.body) == end - start else in_file(file, start, end))


class _Content:
    """The changes found so far in the events of one transaction."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._maps: dict[int, TableMap] = {}
        self._tables: dict[tuple[bytes, bytes], TableChanges] = {}
        self._others: TableChanges | None = None
        self._statements: list[LoggedStatement] = []
        self._other_statements = 0
        self._annotation: str | None = None
        self._is_compressed = False
        self._is_prepared = False
        self._has_incident = False

    def add(self, kind: int, when: int, body: EventBytes, *, is_inner: bool = False) -> None:
        """Add the next event of the transaction. Raise ValueError if the event is malformed."""
        if when and kind != PAYLOAD:
            self._began = when if self._began is None else min(self._began, when)
        if kind == TABLE_MAP:
            if len(self._maps) >= _MOST_MAPS:
                raise ValueError(f"a statement names more than {_MOST_MAPS} tables")
            table = table_map(body)
            self._maps[table.id] = table
        elif kind in ROW_EVENTS:
            self._rows(kind, body)
        elif kind == QUERY:
            self._statement(*query(body))
        elif kind == MARIADB_QUERY_COMPRESSED:
            schema, text = query(body)
            self._is_compressed = True
            self._statement(schema, EventBytes(inflated(text)))
        elif kind == _EXECUTE_LOAD:
            self._statement(*query(body, extra=_LOAD_HEAD))
        elif kind in (_ROWS_QUERY, _ANNOTATE_ROWS) and self._annotation is None:
            # In MySQL, a length byte precedes the text. One byte is too small for most lengths (rows_event.h).
            body.skip(1 if kind == _ROWS_QUERY else 0)
            self._annotation = printable(body.up_to(MOST_TEXT).decode("utf-8", "replace"))
        elif kind == PAYLOAD:
            if is_inner:
                raise ValueError("a payload is nested in another payload")
            self._is_compressed = True
            for began, inner, part in inner_events(payload(body)):
                self.add(inner, began, part, is_inner=True)
        elif kind == XA_PREPARE:
            self._is_prepared = True
        elif kind == INCIDENT:
            self._has_incident = True

    def _rows(self, kind: int, body: EventBytes) -> None:
        head = rows_head(kind, body)
        table = self._maps.get(head.table)
        if table is not None:
            rows = count_rows(head, table, body)
            self._is_compressed = self._is_compressed or kind >= 166
            name = (table.schema, table.table)
            known = self._tables.get(name)
            if known is None and len(self._tables) >= MOST_TABLES:
                self._others = (self._others or TableChanges("", "")).plus(head.kind, rows)
            else:
                known = known or TableChanges(_name(table.schema), _name(table.table))
                self._tables[name] = known.plus(head.kind, rows)
        elif head.table != NO_TABLE:
            raise ValueError(f"rows of table {head.table} have no table map event before them")
        if head.ends_statement:
            self._maps.clear()

    def _statement(self, schema: str, text: EventBytes) -> None:
        logged = statement(schema, text)
        if logged is None:
            return
        if len(self._statements) < MOST_STATEMENTS:
            self._statements.append(logged)
        else:
            self._other_statements += 1

    def complete(self, walk: TransactionTracker, last: Event) -> TransactionChanges:
        first = walk.opened
        if first is None:
            raise ValueError("found the end of a transaction without its beginning")
        committed, is_exact = commit_time_of(first, last)
        return TransactionChanges(
            gtid=None if walk.number is None else gtid_text(walk.number),
            start=first.start,
            end=last.end,
            began=first.when * _SECOND if self._began is None else self._began * _SECOND,
            committed=committed,
            is_exact=is_exact,
            tables=tuple(sorted(self._tables.values(), key=lambda table: (table.schema, table.table))),
            statements=tuple(self._statements),
            annotation=self._annotation,
            other_tables=self._others,
            other_statements=self._other_statements,
            is_compressed=self._is_compressed,
            is_prepared=self._is_prepared,
            has_incident=self._has_incident,
        )


def _name(raw: bytes) -> str:
    return printable(raw.decode("utf-8", "replace"))


def row_changes(file: BinaryIO, name: str, transaction: TransactionChanges) -> list[LoggedRow]:
    """Return the rows that a complete transaction of an open binlog changed, in order.

    Raises DamagedError with the offset if an event is damaged. Raises PreflightError if the row format is unknown, or
    if the transaction changed more than 100,000 rows.
    """
    rows, place = _Rows(transaction.gtid or "GTID"), None
    try:
        decisive = decisive_events(file, name, transaction.end, transaction.start, others=OTHER_EVENTS)
        for event, body in event_bodies(file, decisive):
            place = event.start
            rows.add(event.kind, body)
    except MALFORMED as error:
        raise malformed(name, error, place) from error
    return rows.rows


class _Rows:
    """The changed rows of one transaction that were found so far."""

    def __init__(self, gtid: str) -> None:
        self._gtid = gtid
        self.rows: list[LoggedRow] = []
        self._maps: dict[int, TableMap] = {}
        self._columns: dict[int, tuple[LoggedColumn, ...]] = {}
        self._texts = TEXTS

    def add(self, kind: int, body: EventBytes) -> None:
        """Add the next event. Raise ValueError if the event is malformed."""
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
                    raise ValueError(f"rows of table {head.table} have no table map event before them")
                self._add_rows(head, table_of_rows, body)
            if head.ends_statement:
                self._maps.clear()
                self._columns.clear()
        elif kind == PAYLOAD:
            for _, inner, part in inner_events(payload(body)):
                if inner != PAYLOAD:
                    self.add(inner, part)

    def _add_rows(self, head: RowsHead, table: TableMap, body: EventBytes) -> None:
        schema, name = table.schema.decode("utf-8", "replace"), table.table.decode("utf-8", "replace")
        columns = self._columns[table.id]
        try:
            for before, after in row_images(head, table, body):
                if len(self.rows) >= MOST_ROWS:
                    raise PreflightError(
                        f"the transaction changed more than {MOST_ROWS} rows",
                        hint=rescue_hint(self._gtid, [f"{schema}.{name}"]),
                    )
                self.rows.append(LoggedRow(schema, name, head.kind, columns, before, after))
        except ValueError as error:
            raise PreflightError(
                f"rows of {schema}.{name} cannot be read from the binlog: {error}",
                hint=rescue_hint(self._gtid, [f"{schema}.{name}"]),
            ) from error


def _columns(table: TableMap, metadata: tuple[ColumnMetadata, ...]) -> tuple[LoggedColumn, ...]:
    """Return the columns of a table map; empty if the format of a column is unknown."""
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

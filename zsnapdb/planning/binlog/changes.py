"""Describes the changes of transactions, and finds transactions by their changes. Pure.

A binlog in row format contains the changed rows and their tables. If a statement was logged instead of rows, the
changed rows are unknown, and only the text of the statement shows the tables.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from zsnapdb.base.errors import UsageError

MOST_TABLES = 1000
"""The maximum number of tables of one transaction that are listed one by one."""
MOST_STATEMENTS = 100
"""The maximum number of logged statements of one transaction that are kept."""
MOST_TEXT = 4096
"""The maximum number of characters of a logged statement that are kept."""


class ChangeKind(StrEnum):
    """The kind of a change. `OTHER` is a logged statement with an unknown effect, such as CALL."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    DDL = "ddl"
    OTHER = "other"


SEARCHED_KINDS = (ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.DELETE, ChangeKind.DDL)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The number of rows that a transaction changed in one table, for each kind of change.

    If `is_counted` is False, the real numbers may be higher, because a column with an unreadable format stopped the
    count.
    """

    schema: str
    table: str
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    is_counted: bool = True

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def of_kind(self, kind: ChangeKind) -> int:
        counts = {ChangeKind.INSERT: self.inserted, ChangeKind.UPDATE: self.updated, ChangeKind.DELETE: self.deleted}
        return counts.get(kind, 0)

    def plus(self, kind: ChangeKind, rows: int | None) -> TableChanges:
        """Return the changes with `rows` added for this kind. If the number of rows is unknown, `rows` is None."""
        if rows is None:
            return replace(self, is_counted=False)
        match kind:
            case ChangeKind.INSERT:
                return replace(self, inserted=self.inserted + rows)
            case ChangeKind.UPDATE:
                return replace(self, updated=self.updated + rows)
            case _:
                return replace(self, deleted=self.deleted + rows)

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """A statement in the binlog, with its kind, the default schema of its session, and the start of its text."""

    kind: ChangeKind
    schema: str
    text: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class TransactionChanges:
    """A complete transaction with its changes.

    - `start`, `end`: its byte range in the file
    - `began`: the session's time at the first statement, in whole seconds, as microseconds UTC
    - `committed`: the commit time in microseconds UTC
    - `other_tables`: the number of rows in further tables, if there are more than 1000 tables
    - `other_statements`: the number of further statements, if there are more than 100 statements
    - `annotation`: the statement that the server logged in addition to the rows
    - `is_prepared`: whether this is an XA transaction that a later transaction commits or rolls back
    """

    gtid: str | None
    start: int
    end: int
    began: int
    committed: int
    is_exact: bool
    tables: tuple[TableChanges, ...] = ()
    statements: tuple[LoggedStatement, ...] = ()
    annotation: str | None = None
    other_tables: TableChanges | None = None
    other_statements: int = 0
    is_compressed: bool = False
    is_prepared: bool = False
    has_incident: bool = False

    @property
    def size(self) -> int:
        """The size of the transaction in the binlog, in bytes."""
        return self.end - self.start

    @property
    def every_table(self) -> tuple[TableChanges, ...]:
        return self.tables if self.other_tables is None else (*self.tables, self.other_tables)

    @property
    def rows(self) -> int:
        """The number of changed rows that the binlog lists."""
        return sum(table.rows for table in self.every_table)

    @property
    def are_rows_known(self) -> bool:
        """Whether `rows` is the real number of changed rows. DDL does not change rows one by one."""
        return (
            all(table.is_counted for table in self.every_table)
            and all(statement.kind is ChangeKind.DDL for statement in self.statements)
            and not self.other_statements
            and not self.has_incident
        )

    @property
    def kinds(self) -> tuple[ChangeKind, ...]:
        logged = {statement.kind for statement in self.statements}
        rows = {kind for kind in ChangeKind if any(table.of_kind(kind) for table in self.every_table)}
        return tuple(kind for kind in ChangeKind if kind in logged | rows)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sentences that say which facts about this transaction the binlog does not contain."""
        notes = []
        if any(statement.kind is not ChangeKind.DDL for statement in self.statements):
            notes.append(
                "statement format: the binlog says neither which rows changed nor, beyond the text, which tables"
            )
        uncounted = [table.name for table in self.tables if not table.is_counted]
        if uncounted:
            notes.append(f"rows of {', '.join(uncounted[:5])} could not be counted: a column has an unknown form")
        if self.other_tables is not None:
            notes.append(
                f"only {len(self.tables)} tables are listed; {self.other_tables.rows} rows are of other tables"
            )
        if self.other_statements:
            notes.append(f"{self.other_statements} more statements are not listed")
        if self.is_prepared:
            notes.append("XA: this prepares the changes; a later transaction commits them or rolls them back")
        if self.has_incident:
            notes.append("the server could not log all changes (incident)")
        return tuple(notes)


@dataclass(frozen=True)
class TableFilter:
    """A filter by table name, in one schema or in any schema."""

    schema: str | None
    table: str

    def selects(self, schema: str, table: str) -> bool:
        """Return whether the filter selects the table.

        The comparison ignores case, because some servers store names in lower case.
        """
        is_schema = self.schema is None or self.schema.casefold() == schema.casefold()
        return is_schema and self.table.casefold() == table.casefold()

    def may_be_in(self, statement: LoggedStatement) -> bool:
        """Return whether a statement may affect the table.

        A statement may affect the table if its text is truncated, or if its text contains the table name as a word. The
        text must also contain the schema name, unless the schema is the default schema of the statement.
        """
        is_default = self.schema is None or self.schema.casefold() == statement.schema.casefold()
        names = [self.table] if is_default or self.schema is None else [self.table, self.schema]
        words = [re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])", re.IGNORECASE) for name in names]
        return statement.is_cut or all(word.search(statement.text) for word in words)


@dataclass(frozen=True)
class Period:
    """The times from `begin` to `end` (inclusive), in microseconds UTC."""

    begin: int
    end: int

    def has(self, first: int, last: int) -> bool:
        return first <= self.end and last >= self.begin


class Match(Enum):
    """The result of a search for a transaction.

    `POSSIBLE` means that the binlog does not show whether the transaction matches.
    """

    NO = 0
    POSSIBLE = 1
    YES = 2


@dataclass(frozen=True)
class ChangeFilter:
    """The conditions of a search for transactions. All of them must hold. If `kinds` is empty, any kind matches.

    The limit `rows_at_least` applies to the rows of the requested table and kinds. DDL has no rows, so with
    `rows_at_least`, DDL matches only if it is listed in `kinds`.
    """

    table: TableFilter | None = None
    kinds: frozenset[ChangeKind] = frozenset()
    rows_at_least: int = 0
    committed: Period | None = None
    began: Period | None = None

    def match(self, transaction: TransactionChanges) -> Match:
        latest = transaction.committed if transaction.is_exact else transaction.committed + 999_999
        if self.committed is not None and not self.committed.has(transaction.committed, latest):
            return Match.NO
        if self.began is not None and not self.began.has(transaction.began, transaction.began + 999_999):
            return Match.NO
        if self.table is None and not self.kinds and not self.rows_at_least:
            return Match.YES
        matches = [self._rows(transaction), *map(self._statement, transaction.statements)]
        if transaction.other_statements or transaction.has_incident:
            matches.append(Match.POSSIBLE)
        return max(matches, key=lambda match: match.value)

    def _rows(self, transaction: TransactionChanges) -> Match:
        kinds = self.kinds or frozenset(ChangeKind)
        of_table = [t for t in transaction.tables if self.table is None or self.table.selects(t.schema, t.table)]
        possible = [] if transaction.other_tables is None else [transaction.other_tables]
        least = max(1, self.rows_at_least)
        sure = sum(table.of_kind(kind) for table in of_table for kind in kinds)
        if sure >= least:
            return Match.YES
        more = sum(table.of_kind(kind) for table in possible for kind in kinds)
        is_open = any(not table.is_counted for table in (*of_table, *possible))
        return Match.POSSIBLE if is_open or sure + more >= least else Match.NO

    def _statement(self, statement: LoggedStatement) -> Match:
        if self.table is not None and not self.table.may_be_in(statement):
            return Match.NO
        if statement.kind is ChangeKind.DDL:
            if ChangeKind.DDL in self.kinds or not (self.kinds or self.rows_at_least):
                return Match.POSSIBLE if self.table is not None and statement.is_cut else Match.YES
            return Match.NO
        is_kind = not self.kinds or statement.kind in self.kinds
        is_sure = is_kind and self.table is None and not self.rows_at_least
        if is_sure and statement.kind is not ChangeKind.OTHER:
            return Match.YES
        return Match.POSSIBLE if is_kind or statement.kind is ChangeKind.OTHER else Match.NO


def parse_kinds(text: str) -> frozenset[ChangeKind]:
    """Return the kinds in a comma-separated list. Raises UsageError if a kind is unknown."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    known = {kind.value: kind for kind in SEARCHED_KINDS}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(
            f"{(unknown or [text])[0]!r} is not a kind of change", hint=f"write one or more of {', '.join(known)}"
        )
    return frozenset(known[name] for name in names)


@dataclass(frozen=True)
class ListedTransaction:
    """A transaction that matches a search, with its binlog and its history in the archive.

    The history is None if the binlog is on the server.
    """

    binlog: str
    history: str | None
    match: Match
    changes: TransactionChanges


class TransactionList:
    """The newest or the largest transactions that match a search, with at most `limit` transactions.

    Memory use depends only on `limit`.
    """

    def __init__(self, limit: int, *, by_size: bool) -> None:
        self.matched = 0
        self._limit = limit
        self._by_size = by_size
        self._newest: deque[ListedTransaction] = deque(maxlen=limit)
        self._largest: list[tuple[int, int, int, ListedTransaction]] = []

    def add(self, transaction: ListedTransaction) -> None:
        self.matched += 1
        if not self._by_size:
            self._newest.append(transaction)
            return
        changes = transaction.changes
        heapq.heappush(self._largest, (changes.rows, changes.size, self.matched, transaction))
        if len(self._largest) > self._limit:
            heapq.heappop(self._largest)

    def listed(self) -> tuple[ListedTransaction, ...]:
        """Return the transactions in the order of the binlogs, or largest first (by rows, then by bytes)."""
        if not self._by_size:
            return tuple(self._newest)
        return tuple(entry[3] for entry in sorted(self._largest, key=lambda entry: entry[:3], reverse=True))


def is_within(file_first: int | None, file_last: int | None, conditions: Collection[Period | None]) -> bool:
    """Return whether a binlog may contain transactions within all periods.

    `file_first` and `file_last` are the earliest and latest commit times of the binlog. A transaction starts before its
    commit, so if the periods are compared with start times, `file_first` must be None.
    """
    periods = [period for period in conditions if period is not None]
    return all(
        (file_last is None or file_last + 999_999 >= period.begin) and (file_first is None or file_first <= period.end)
        for period in periods
    )

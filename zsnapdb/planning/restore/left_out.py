"""Counts the transactions that a restore in place leaves out, from the server's GTIDs and its binlogs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains
from zsnapdb.planning.binlog.changes import MOST_TABLES, ChangeKind, TableChanges, TransactionChanges

MOST_NAMED = 10
"""The maximum number of tables that are named. The tables with the most changed rows are named first."""


@dataclass(frozen=True)
class LeftOut:
    """The transactions of a running server that a restored state does not contain.

    - `transactions`: their number; None if it is unknown
    - `is_least`: whether the real number may be higher
    - `first`, `last`: the commit times of the first and the last one in the binlogs, in microseconds UTC; None if
      unknown
    - `tables`: the changed tables with the most changed rows
    - `more_tables`: the number of further changed tables
    - `statements`: the number of statements, such as DDL, whose tables the binlog does not list
    - `unknown`: sentences about unknown facts, with the reasons
    """

    transactions: int | None = None
    is_least: bool = False
    first: int | None = None
    last: int | None = None
    tables: tuple[TableChanges, ...] = ()
    more_tables: int = 0
    statements: int = 0
    unknown: tuple[str, ...] = ()


def count_unknown(reason: str) -> LeftOut:
    """Return the result for an unknown number of transactions, with the reason."""
    return LeftOut(unknown=(f"the number of left-out transactions is unknown: {reason}",))


@dataclass
class LeftOutCounter:
    """Counts the transactions in the server's binlogs that the state `point` lacks.

    `executed` contains the GTIDs that the server has executed.
    """

    flavour: Flavour
    point: Gtids
    executed: Gtids
    _count: int = 0
    _first: int | None = None
    _last: int | None = None
    _tables: dict[tuple[str, str], TableChanges] = field(default_factory=dict)
    _more_rows: bool = False
    _statements: int = 0
    _anonymous: int = 0
    _other_history: bool = False

    def is_all_in(self, gtids: Gtids | None) -> bool:
        """Return whether the state contains all of these GTIDs. The result is False if they are unknown."""
        return gtids is not None and contains(self.point, gtids)

    def start(self, previous: Gtids | None) -> None:
        """Begin with a binlog before which the server had these GTIDs; None if they are unknown."""
        self._other_history = previous is not None and _is_other(self.point, previous)

    def add(self, changes: TransactionChanges) -> None:
        """Add the next transaction of the binlogs. If the state contains the transaction, ignore it."""
        if changes.gtid is None:
            self._anonymous += 1
            return
        own = parse_gtids(self.flavour, changes.gtid)
        if self.is_all_in(own):
            self._other_history = self._other_history or _is_other(self.point, own)
            return
        self._count += 1
        self._first = changes.committed if self._first is None else self._first
        self._last = changes.committed
        self._statements += changes.other_statements + len(changes.statements)
        self._more_rows = self._more_rows or changes.other_tables is not None
        for table in changes.tables:
            self._add_table(table)

    def _add_table(self, table: TableChanges) -> None:
        known = self._tables.get((table.schema, table.table))
        if known is None and len(self._tables) >= MOST_TABLES:
            self._more_rows = True
            return
        merged = known or TableChanges(table.schema, table.table)
        for kind in (ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.DELETE):
            merged = merged.plus(kind, table.of_kind(kind))
        if not table.is_counted:
            merged = merged.plus(ChangeKind.OTHER, None)
        self._tables[table.schema, table.table] = merged

    def result(self, purged: Gtids | None, unread: Sequence[str] = ()) -> LeftOut:
        """Return the result.

        `purged` contains the GTIDs of the transactions before the oldest binlog on the host; None if unknown. `unread`
        says which binlogs were not read, and why.
        """
        if self._other_history or _is_ahead(self.point, self.executed):
            return count_unknown("the point is in another history of the server")
        unknown = list(unread)
        if purged is None or not self.is_all_in(purged):
            unknown.append("the server no longer has the oldest binlogs after the point")
        if self._anonymous:
            unknown.append(f"transactions without a GTID are not counted: {self._anonymous}")
        number, is_least = self._count, bool(unknown)
        if isinstance(self.executed, GtidSet) and isinstance(self.point, GtidSet):
            number, is_least = self.executed.minus(self.point).count(), bool(self._anonymous)
            if number > self._count and not unknown:
                unknown.append(f"the binlogs lack {number - self._count} of these transactions")
        if self._more_rows:
            unknown.append("further tables were changed, which are not listed")
        tables = sorted(self._tables.values(), key=lambda table: -table.rows)
        return LeftOut(
            transactions=number,
            is_least=is_least,
            first=self._first,
            last=None if unread else self._last,
            tables=tuple(tables[:MOST_NAMED]),
            more_tables=len(tables[MOST_NAMED:]),
            statements=self._statements,
            unknown=tuple(unknown),
        )


def _is_other(point: Gtids, included: Gtids) -> bool:
    """Return whether a MariaDB GTID has the sequence number of the point but another server_id."""
    if not isinstance(point, GtidPosition) or not isinstance(included, GtidPosition):
        return False
    heads = ((point.heads.get(domain), head) for domain, head in included.heads.items())
    return any(last is not None and last[1] == own[1] and last[0] != own[0] for last, own in heads)


def _is_ahead(point: Gtids, executed: Gtids) -> bool:
    """Return whether a MariaDB position contains sequence numbers that the server has not reached.

    MySQL servers assign GTIDs of their own UUID, so the difference of two sets is right even between histories.
    """
    return isinstance(point, GtidPosition) and not contains(executed, point)

"""Describes stretches of a binlog file as the archive does, from their transactions."""

from __future__ import annotations

from typing import BinaryIO

from zsnapdb.base.gtid import GtidPosition, Gtids
from zsnapdb.mysql.binlog.events import Event
from zsnapdb.mysql.binlog.made_tables import MadeTables
from zsnapdb.mysql.binlog.transactions import BinlogTransaction, transactions
from zsnapdb.mysql.binlog.walk import Numbers, Walk
from zsnapdb.planning.binlog.commit_times import NO_WITNESS, Stretch, Witness, with_stretch
from zsnapdb.planning.binlog.made_tables import MOST_MADE, MadeTable
from zsnapdb.repository.binlog_descriptions import SpanPart, UndatedPart


class SpanBuilder:
    """Collects the description of a span from its transactions, one after the other.

    `witness` knows which of them were not committed at the time in their events.
    """

    def __init__(self, start: int, end: int, witness: Witness = NO_WITNESS) -> None:
        self.start = start
        self.end = end
        self._witness = witness
        self._undated: tuple[Stretch, ...] = ()
        self._count = 0
        self._numbers = Numbers()
        self._heads: dict[int, tuple[int, int]] = {}
        self._gtids: list[str] = []
        self._times: list[int] = []
        self._is_exact = True
        self._tables = MadeTables()

    @property
    def tables(self) -> tuple[MadeTable, ...]:
        """The tables that statements without ENGINE made in the span."""
        return tuple(self._tables.tables)

    def watch(self, event: Event, walk: Walk, is_end: bool) -> None:
        """Take in an event that begins or ends a transaction of the span."""
        self._tables.see(event, walk, 1, is_end=is_end)

    def add(self, transaction: BinlogTransaction) -> None:
        """Add the next transaction."""
        self.end = transaction.end
        self._count += 1
        self._is_exact = self._is_exact and transaction.is_exact
        first, last = self._times_of(transaction)
        self._times = [min(self._times[0], first), max(self._times[1], last)] if self._times else [first, last]
        if transaction.number is None:
            return
        if len(transaction.number) == 2:
            self._numbers.add(*transaction.number)
        else:
            domain, server, sequence = transaction.number
            self._heads[domain] = (server, sequence)
        gtid = transaction.gtid or ""
        self._gtids = [self._gtids[0], gtid] if self._gtids else [gtid, gtid]

    def _times_of(self, transaction: BinlogTransaction) -> tuple[int, int]:
        """Return the times between which a transaction was committed. No session sets an exact time."""
        stamp, start, end = transaction.committed, transaction.start, transaction.end
        seen = None if transaction.is_exact else self._witness.contradiction(start, end, stamp)
        if seen is None:
            return stamp, stamp
        self._undated = with_stretch(self._undated, Stretch(start, end, seen))
        return (min(stamp, seen.latest) if seen.earliest is None else seen.earliest), seen.latest

    def span(self) -> SpanPart:
        """Return the description of the span so far."""
        gtids: Gtids | None = (
            self._numbers.set()
            if self._numbers
            else GtidPosition(dict(sorted(self._heads.items())))
            if self._heads
            else None
        )
        return SpanPart(
            start=self.start,
            end=self.end,
            transactions=self._count,
            gtids=None if gtids is None else str(gtids),
            first_gtid=self._gtids[0] if self._gtids else None,
            last_gtid=self._gtids[1] if self._gtids else None,
            first_commit=self._times[0] if self._times else None,
            last_commit=self._times[1] if self._times else None,
            is_exact=self._is_exact,
            undated=tuple(UndatedPart.of(stretch) for stretch in self._undated),
            without_engine=tuple(
                table.offset
                for table in self._tables.tables
                if table.is_transactional is False and not table.names_engine and not table.is_dropped
            )[:MOST_MADE],
        )


def whole_span(file: BinaryIO, name: str, witness: Witness = NO_WITNESS) -> SpanPart:
    """Return the span of a file up to the end of its last complete transaction."""
    return span_and_tables(file, name, witness)[0]


def span_and_tables(file: BinaryIO, name: str, witness: Witness = NO_WITNESS) -> tuple[SpanPart, tuple[MadeTable, ...]]:
    """Return that span, and the tables that statements without ENGINE made in it."""
    builder = SpanBuilder(0, 0, witness)
    walk = transactions(file, name, watch=builder.watch)
    while True:
        try:
            builder.add(next(walk))
        except StopIteration as end:
            builder.end = end.value
            return builder.span(), builder.tables

"""Describes stretches of a binlog file as the archive does, from their transactions."""

from __future__ import annotations

from typing import BinaryIO

from zsnapdb.base.gtid import GtidPosition, Gtids
from zsnapdb.mysql.binlog.transactions import BinlogTransaction, transactions
from zsnapdb.mysql.binlog.walk import Numbers
from zsnapdb.repository.binlog_descriptions import SpanPart


class SpanBuilder:
    """Collects the description of a span from its transactions, one after the other."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._count = 0
        self._numbers = Numbers()
        self._heads: dict[int, tuple[int, int]] = {}
        self._gtids: list[str] = []
        self._times: list[int] = []
        self._is_exact = True

    def add(self, transaction: BinlogTransaction) -> None:
        """Add the next transaction."""
        self.end = transaction.end
        self._count += 1
        self._is_exact = self._is_exact and transaction.is_exact
        when = transaction.committed
        self._times = [min(self._times[0], when), max(self._times[1], when)] if self._times else [when, when]
        if transaction.number is None:
            return
        if len(transaction.number) == 2:
            self._numbers.add(*transaction.number)
        else:
            domain, server, sequence = transaction.number
            self._heads[domain] = (server, sequence)
        gtid = transaction.gtid or ""
        self._gtids = [self._gtids[0], gtid] if self._gtids else [gtid, gtid]

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
        )


def whole_span(file: BinaryIO, name: str) -> SpanPart:
    """Return the span of a file up to the end of its last complete transaction."""
    builder = SpanBuilder(0, 0)
    walk = transactions(file, name)
    while True:
        try:
            builder.add(next(walk))
        except StopIteration as end:
            builder.end = end.value
            return builder.span()

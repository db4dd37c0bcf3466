"""The transactions that a search selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.quantities import counted, size
from zsnapdb.documents.binlog import SearchDocument, TransactionDocument
from zsnapdb.jobs.binlog.find import Search
from zsnapdb.planning.binlog.changes import ListedTransaction, Match, TableChanges, TransactionChanges
from zsnapdb.planning.binlog.remedy import remedies
from zsnapdb.report.units import moment
from zsnapdb.report.view import View

_MOST_TABLES = 3
_MOST_TEXT = 100
_WIDTH = 80


@dataclass(frozen=True)
class SearchView(View):
    """The transactions that a search selects, as `zsnapdb binlog find` prints them."""

    instance: str
    search: Search
    kind: ClassVar[str] = "binlog-transactions"
    document_class = SearchDocument
    read_from = "search"

    def text(self) -> str:
        search = self.search
        listed = search.transactions
        lines = [
            f"{counted(search.matched, 'transaction')} found in {counted(len(search.read), 'binlog')}"
            + (f"; {len(listed)} are listed, chosen by --largest and --limit" if self._is_cut else ""),
            *([] if search.asks_archive else ["the archive was not read: name a period to read older binlogs"]),
        ]
        if listed:
            widest = max(len(_gtid(entry)) for entry in listed)
            lines.append(f"{'GTID':{widest}}  COMMITTED             BYTES")
            lines += [line for entry in listed for line in _lines(entry, widest)]
        lines += sorted({f"unknown   {note}" for entry in listed for note in entry.changes.unknown})
        if any(entry.match is Match.POSSIBLE for entry in listed):
            lines.append("unknown   the binlog does not say whether the transactions with a ? match")
        lines += [f"next      `{command}`" for command in remedies(self.instance, listed)]
        return "\n".join([*lines, *(f"problem   {error.message}" for error in search.problems)])

    @property
    def _is_cut(self) -> bool:
        return self.search.matched > len(self.search.transactions)


@dataclass(frozen=True)
class FollowedView(View):
    """One transaction, as `zsnapdb binlog find --follow` prints it: a line, or a document on a line."""

    listed: ListedTransaction
    kind: ClassVar[str] = "binlog-transaction"
    document_class = TransactionDocument
    read_from = "listed"

    def text(self) -> str:
        return "  ".join(_row(self.listed))


def _gtid(entry: ListedTransaction) -> str:
    return (entry.changes.gtid or "(no GTID)") + (" ?" if entry.match is Match.POSSIBLE else "")


def _lines(entry: ListedTransaction, widest: int) -> list[str]:
    """Return the lines about a transaction: its GTID, time to the second and size, and below what it changed."""
    changes = entry.changes
    kinds = "" if changes.statements and not changes.tables else f"{','.join(changes.kinds) or '-'}: "
    unknown = "" if changes.are_rows_known else " + unknown rows"
    what = f"  {kinds}{_changed(changes)}{unknown}"
    first = f"{_gtid(entry):{widest}}  {moment(changes.committed)[:19]}Z  {size(changes.size)}"
    return [first, what if len(what) <= _WIDTH else f"{what[: _WIDTH - 1]}…"]


def _row(entry: ListedTransaction) -> tuple[str, ...]:
    changes = entry.changes
    rows = str(changes.rows) if changes.are_rows_known else f"{changes.rows} + unknown"
    return (
        _gtid(entry),
        moment(changes.committed),
        ",".join(changes.kinds) or "-",
        rows,
        size(changes.size),
        f"{entry.binlog}:{changes.start}",
        _changed(changes),
    )


def _changed(changes: TransactionChanges) -> str:
    tables = [f"{part.name} ({_counts(part)})" for part in changes.tables[:_MOST_TABLES]]
    if len(changes.tables) > _MOST_TABLES:
        tables.append(f"{len(changes.tables) - _MOST_TABLES} more tables")
    texts = [f"{entry.text[:_MOST_TEXT]}{'…' if len(entry.text) > _MOST_TEXT else ''}" for entry in changes.statements]
    return "; ".join([*tables, *texts[:1]]) or "-"


def _counts(part: TableChanges) -> str:
    counts = ((part.inserted, "inserted"), (part.updated, "updated"), (part.deleted, "deleted"))
    parts = [f"{count} {word}" for count, word in counts if count]
    return ", ".join(parts if part.is_counted else [*parts, "not counted"])

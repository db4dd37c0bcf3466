"""Views of the binlog archive, searches in binlogs, and undone transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from zsnapdb.base.patterns import printable
from zsnapdb.base.quantities import format_duration, quantity, size
from zsnapdb.documents import binlog as documents
from zsnapdb.jobs.binlog.archive_round import Round
from zsnapdb.jobs.binlog.find import Search
from zsnapdb.jobs.binlog.undo import Conflict, Undo
from zsnapdb.planning.binlog.changes import ListedTransaction, Match, TableChanges, TransactionChanges
from zsnapdb.planning.binlog.purge import PurgePlan
from zsnapdb.planning.binlog.route import missing_before
from zsnapdb.planning.binlog.row_values import SqlValue
from zsnapdb.planning.binlog.suggested_commands import remedies, sample_changed_rows
from zsnapdb.planning.binlog.undo import RowChange
from zsnapdb.report.view import View, moment, table, truncate_to_second
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Incarnation


class ArchivingView(View, kind="binlog-archive", document=documents.ArchivingDocument, read_from="outcome"):
    """The result of one round of binlog archiving."""

    instance: str
    outcome: Round

    def text(self) -> str:
        outcome = self.outcome
        lines = [
            f"binlogs of {self.instance} are archived"
            + (f" to {outcome.end.file}:{outcome.end.offset}" if outcome.end else ": there is no binlog yet")
        ]
        if outcome.gtids is not None:
            lines.append(f"  gtids     {outcome.gtids}")
        if outcome.last_commit is not None:
            lines.append(f"  newest    {moment(outcome.last_commit)}")
        if outcome.complete_until is not None:
            lines.append(f"  complete  until {moment(outcome.complete_until)}")
        lines.append(
            "  by        the archiver that is running"
            if outcome.is_by_another
            else f"  new       {outcome.transactions} transactions, {size(outcome.plain_size)}"
            + (f"; rotated {', '.join(outcome.rotated)}" if outcome.rotated else "")
        )
        if outcome.new_incarnation:
            lines.append(f"  begun     a new incarnation: {outcome.new_incarnation}")
        lines += [f"  GAP       {gap}" for gap in outcome.gaps]
        if outcome.unprotected is not None:
            lines.append(
                "  needed    a backup: nothing that the server writes now can be restored before it:"
                f" {outcome.unprotected.reason}"
            )
        lines += [f"  REPEATED  {repeated.text}; {repeated.hint}" for repeated in outcome.repeated]
        lines += [f"  left out  {problem}" for problem in outcome.problems]
        return "\n".join(lines)


class PlacedBinlog(NamedTuple):
    """An archived binlog, with the gap directly before it (None if there is no gap)."""

    file: ArchivedFile
    gap: str | None


class ShownHistory(NamedTuple):
    """An incarnation with its archived binlogs."""

    incarnation: Incarnation
    files: Sequence[PlacedBinlog]


def _placed_binlogs(files: Sequence[ArchivedFile]) -> list[PlacedBinlog]:
    before = [None, *files[:-1]] if files else []
    gaps = (missing_before(last, file) if last else file.gap for last, file in zip(before, files, strict=True))
    return list(map(PlacedBinlog, files, gaps))


class BinlogArchiveView(View, kind="binlogs", document=documents.BinlogArchiveDocument):
    """The archived binlogs, by incarnation."""

    archive: Archive

    def text(self) -> str:
        if not self.archive.incarnations:
            return "no binlogs are archived"
        lines = []
        for incarnation, files in self.histories:
            server = f"server_id {incarnation.server_id}" + (
                f", server_uuid {incarnation.server_uuid}" if incarnation.server_uuid else ""
            )
            lines += [f"incarnation {incarnation.id} of {incarnation.flavour}: {incarnation.reason}", f"  {server}"]
            rows = [
                (
                    file.name,
                    "rotated" if file.is_rotated else "active",
                    size(file.end),
                    size(file.stored_size),
                    str(file.span.transactions),
                    truncate_to_second(file.span.last_commit) if file.span.last_commit is not None else "-",
                )
                for file, _ in files
            ]
            lines.append(table(("BINLOG", "STATE", "BYTES", "STORED", "COMMITS", "LAST COMMIT"), rows))
            lines += [f"GAP before {file.name}: {gap}" for file, gap in files if gap]
        lines += [f"damaged: {error.message}" for error in self.archive.damaged]
        return "\n".join(lines)

    @property
    def histories(self) -> Sequence[ShownHistory]:
        archive = self.archive
        return [ShownHistory(one, _placed_binlogs(archive.of(one.id))) for one in archive.incarnations]


class PurgePlanView(View, kind="binlog-purge-plan", document=documents.PurgeDocument, read_from="plan"):
    """The plan of a purge."""

    plan: PurgePlan
    verb: ClassVar[str] = "would be removed"

    def text(self) -> str:
        names = self.plan.names
        lines = [f"{len(names)} binlogs {self.verb}" + (f": {names[0]} to {names[-1]}" if names else "")]
        if self.plan.unread:
            lines.append(f"  read      the archived copies of {len(self.plan.unread)} of them, before they are removed")
        lines.append(f"  then      {self.plan.stays}")
        return "\n".join([*lines, *(f"  warning   {text}" for text in self.plan.warnings)])


class PurgeView(PurgePlanView, kind="binlog-purge"):
    """A finished purge."""

    verb: ClassVar[str] = "removed"


_MOST_TABLES = 3
_MOST_TEXT = 100
_WIDTH = 80


class SearchView(View, kind="binlog-transactions", document=documents.SearchDocument, read_from="search"):
    """The transactions that a search finds, for `zsnapdb binlog find`."""

    instance: str
    search: Search

    def text(self) -> str:
        search = self.search
        listed = search.transactions
        lines = [
            f"{quantity(search.matched, 'transaction')} found in {quantity(len(search.read), 'binlog')}"
            + (f"; {len(listed)} are listed (--limit)" if search.matched > len(listed) else ""),
            *([] if search.asks_archive else [_SERVER_ONLY]),
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


class FollowedView(View, kind="binlog-transaction", document=documents.TransactionDocument, read_from="listed"):
    """One transaction for `zsnapdb binlog find --follow`, as one line of text or as a JSON document on one line."""

    listed: ListedTransaction

    def text(self) -> str:
        return "  ".join(_row(self.listed))


def _gtid(entry: ListedTransaction) -> str:
    return (entry.changes.gtid or "(no GTID)") + (" ?" if entry.match is Match.POSSIBLE else "")


def _lines(entry: ListedTransaction, widest: int) -> list[str]:
    """Return the lines about a transaction: first its GTID, time (in whole seconds) and size, then its changes."""
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
    tables = [f"{part.name} ({counts(part)})" for part in changes.tables[:_MOST_TABLES]]
    if len(changes.tables) > _MOST_TABLES:
        tables.append(f"{len(changes.tables) - _MOST_TABLES} more tables")
    texts = [f"{entry.text[:_MOST_TEXT]}{'…' if len(entry.text) > _MOST_TEXT else ''}" for entry in changes.statements]
    return "; ".join([*tables, *texts[:1]]) or "-"


def counts(part: TableChanges) -> str:
    """Return the numbers of changed rows of a table, such as `3 inserted, 1 deleted`."""
    rows = ((part.inserted, "inserted"), (part.updated, "updated"), (part.deleted, "deleted"))
    parts = [f"{count} {word}" for count, word in rows if count]
    return ", ".join(parts if part.is_counted else [*parts, "not counted"])


_MOST_LISTED = 20
_SERVER_ONLY = "not searched: the archive; `--between` with an earlier start searches it"


class UndoView(View, kind="undo", document=documents.UndoDocument, read_from="undo"):
    """The rows that a transaction changed and the conflicts that prevent an undo, for `zsnapdb undo`."""

    undo: Undo
    sets_kept: float = 0.0
    """The time in seconds for which the received sets of the test stay after their last use."""

    def rows(self) -> list[str]:
        """Return the lines about the transaction and the rows that it changed."""
        undo = self.undo
        return [
            f"transaction {undo.gtid} of {moment(undo.transaction.committed)} changed {len(undo.changes)} rows",
            *(f"  {_line(change)}" for change in undo.changes[:_MOST_LISTED]),
            *_more(len(undo.changes)),
        ]

    def text(self) -> str:
        undo, lines = self.undo, self.rows()
        if undo.is_applied:
            lines.append("undone    on the server, in one transaction: every row is as before")
        elif undo.conflicts:
            lines.append(f"{undo.changed_since}; while they are, nothing is undone:")
            lines += [f"  {_conflict(conflict)}" for conflict in undo.conflicts[:_MOST_LISTED]]
            lines += _more(len(undo.conflicts))
        else:
            lines.append("no row was changed since: all of them can be undone now")
        if undo.is_tried:
            lines.append("tried     on a clone of the server: every row was as before the transaction")
            lines += _kept_sets(undo.instance, self.sets_kept)
        if undo.file is not None:
            lines.append(f"written   {undo.file}")
        if undo.file is not None and not undo.is_applied:
            lines.append("next      run it with the client of the server")
        elif undo.conflicts:
            lines.append("next      show the rows before the transaction:")
            changed = [conflict.change for conflict in undo.conflicts]
            lines += [f"  {command}" for command in sample_changed_rows(undo.instance, undo.gtid, changed)]
        elif not undo.is_applied:
            lines.append(
                "next      `--into FILE` proves and writes the SQL, `--apply` proves and runs it; nothing was changed"
            )
        return "\n".join(lines)


def _kept_sets(instance: str, seconds: float) -> list[str]:
    """Return lines about the received sets that the test of an undo leaves on this host."""
    return [
        "kept      the data right before and right after it, as received sets, for later clones",
        f"          reap destroys them {format_duration(seconds)} after their last use (clones.keep_unused)",
        "          `zsnapdb reap --plan` lists them; to destroy one at once:",
        f"          `zsnapdb clone prepare {instance} --from received/NAME --remove`",
    ]


def _more(count: int) -> list[str]:
    return [f"  … and {count - _MOST_LISTED} more; --json lists all"] if count > _MOST_LISTED else []


def _line(change: RowChange) -> str:
    name = printable(change.shape.name)
    if change.before is None:
        return f"insert {name} {_row_text(change.after or {})}"
    if change.after is None:
        return f"delete {name} {_row_text(change.before)}"
    differing = {column: value for column, value in change.after.items() if change.before.get(column) != value}
    before = {column: change.before[column] for column in differing if column in change.before}
    return f"update {name} {_row_text(change.key)}: {_row_text(before)} became {_row_text(differing)}"


def _conflict(conflict: Conflict) -> str:
    what = "exists again" if conflict.is_new else "differs from what the transaction left, or is gone"
    return f"{printable(conflict.change.shape.name)} {_row_text(conflict.change.key)} {what}"


def _row_text(values: dict[str, SqlValue]) -> str:
    return "(" + ", ".join(f"{printable(name)}={value.shown}" for name, value in values.items()) + ")"

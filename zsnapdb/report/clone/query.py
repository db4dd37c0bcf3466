"""Writers of query answers and table differences: as a table, CSV or one JSON document, row by row.

A writer gets a function that writes text, then the rows, then the result that is known only after the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from typing_extensions import TypedDict

from zsnapdb.base.printed import printed
from zsnapdb.jobs.clone.query import Answer, Difference
from zsnapdb.jobs.clone.state_at import Moment
from zsnapdb.planning.clone.diff import Change, DifferenceKind, Shape
from zsnapdb.report.document import VERSION

PlainValue = str | int | float | None
"""A value in a document: numbers as numbers, everything else as text."""


class MomentFields(TypedDict):
    """The state of the data that a query or comparison saw."""

    requested: str
    backup_id: str | None
    made: str | None
    position: str | None
    match: str
    exact: bool
    reason: str | None
    history: str | None


class AnswerDocument(TypedDict):
    """The answer to a query."""

    columns: list[str]
    rows: list[list[PlainValue]]
    count: int
    moment: MomentFields


class ChangeFields(TypedDict):
    """A row that differs. `before` and `after` are null where the row is not."""

    change: str
    key: list[PlainValue]
    before: list[PlainValue] | None
    after: list[PlainValue] | None


class _DifferenceFields(TypedDict):
    columns: list[str]
    changes: list[ChangeFields]
    table: str
    added: int
    removed: int
    changed: int
    to: MomentFields
    only_before: list[str]
    only_after: list[str]


_Beginning = TypedDict("_Beginning", {"from": MomentFields})


class DifferenceDocument(_DifferenceFields, _Beginning):
    """The rows of a table that differ between two moments."""


Write = Callable[[str], object]

_MEASURED_ROWS = 200
"""The number of rows that decide how wide the columns of a table are; a wider cell after them shifts its line."""


def plain(value: Any) -> Any:
    """Return a value for a JSON document.

    Numbers stay numbers. Decimals and times become text. Bytes, which only columns without a character set have
    (BINARY, BLOB, BIT), become 0x and hexadecimal digits, whatever they contain: so a column has one form.
    """
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return time_text(value)
    if isinstance(value, date | datetime):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    return value


def time_text(value: timedelta) -> str:
    """Return a TIME as the server writes it: hours up to 838, and a sign (refman 8.4, "The TIME Type")."""
    microseconds = abs(value) // timedelta(microseconds=1)
    seconds, fraction = divmod(microseconds, 1_000_000)
    hours, rest = divmod(seconds, 3600)
    digits = f".{fraction:06d}" if fraction else ""
    return f"{'-' if value < timedelta(0) else ''}{hours:02d}:{rest // 60:02d}:{rest % 60:02d}{digits}"


def text(value: Any) -> str:
    """Return a value as the text of a cell: always one line, NULL for None."""
    if value is None:
        return "NULL"
    return printed(str(plain(value)).replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t"))


def _table_rows(columns: tuple[str, ...], rows: Iterator[Sequence[Any]], write: Write) -> None:
    """Write rows as aligned columns under their names."""
    first = [tuple(text(value) for value in row) for row in islice(rows, _MEASURED_ROWS)]
    widths = [max(len(line[n]) for line in (columns, *first)) for n in range(len(columns))]
    for line in chain([tuple(map(printed, columns))], first, (tuple(text(value) for value in row) for row in rows)):
        write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _csv_rows(columns: tuple[str, ...], rows: Iterator[Sequence[Any]], write: Write) -> None:
    """Write rows as CSV (RFC 4180) under their names; NULL is an empty field without quotes, text is always quoted."""
    for row in chain([columns], rows):
        write(",".join(_csv_field(value) for value in row) + "\n")


def _csv_field(value: Any) -> str:
    shown = plain(value)
    if shown is None or isinstance(shown, int | float):
        return "" if shown is None else str(shown)
    return '"' + str(shown).replace('"', '""') + '"'


def _json_rows(columns: tuple[str, ...], rows: Iterator[Sequence[Any]], write: Write) -> None:
    """Write the first part of the answer's document, up to its rows; `_json_answer_end` writes the rest."""
    write(f'{{"version": {VERSION}, "kind": "answer", "columns": {json.dumps(columns)}, "rows": [')
    for number, row in enumerate(rows):
        write((", " if number else "") + json.dumps([plain(value) for value in row]))
    write("]")


def _json_answer_end(answer: Answer, write: Write) -> None:
    """Write the end of the answer's document: the number of rows and the moment."""
    write(f', "count": {answer.rows}, "moment": {json.dumps(_moment(answer.moment))}}}\n')


def _moment(moment: Moment) -> MomentFields:
    made = moment.made.isoformat() if moment.made is not None else None
    return {
        "requested": moment.requested,
        "backup_id": moment.backup_id,
        "made": made,
        "position": moment.position or None,
        "match": moment.match.value,
        "exact": moment.is_exact,
        "reason": moment.reason or None,
        "history": moment.history,
    }


_SIGNS = {DifferenceKind.ADDED: "+", DifferenceKind.REMOVED: "-", DifferenceKind.CHANGED: "~"}


def change_lines(shape: Shape, changes: Iterable[Change]) -> Iterator[str]:
    """Yield one line for each change: + added, - removed, ~ changed (only the changed columns, before and after)."""
    names = [column.name for column in shape.common]
    keys = [column.name for column in shape.key]
    for change in changes:
        key = " ".join(f"{name}={text(value)}" for name, value in zip(keys, change.key, strict=True))
        if change.before is not None and change.after is not None:
            pairs = zip(names, change.before, change.after, strict=True)
            shown = ((name, text(old), text(new)) for name, old, new in pairs)
            rest = [f"{name}: {old} -> {new}" for name, old, new in shown if old != new]
        else:
            values = change.after if change.after is not None else change.before
            rest = [
                f"{name}={text(value)}" for name, value in zip(names, values or (), strict=True) if name not in keys
            ]
        yield f"{_SIGNS[change.kind]} {key}  {'  '.join(rest)}".rstrip()


def change_fields(change: Change) -> ChangeFields:
    """Return a row that differs as a document has it."""
    before, after = (
        None if values is None else [plain(value) for value in values] for values in (change.before, change.after)
    )
    return {
        "change": change.kind.value,
        "key": [plain(value) for value in change.key],
        "before": before,
        "after": after,
    }


def _summary(result: Difference) -> str:
    """Return the last lines of a comparison."""
    lines = [f"{result.table}: {result.added} rows added, {result.removed} removed, {result.changed} changed"]
    lines += [f"  from  {result.begin.describe()}", f"  to    {result.end.describe()}"]
    for words, names in (
        ("  only in the first", result.shape.only_before),
        ("  only in the second", result.shape.only_after),
    ):
        lines += [f"{words}, not compared: {', '.join(names)}"] if names else []
    return "\n".join(lines)


def _json_changes(shape: Shape, changes: Iterator[Change], write: Write) -> None:
    """Write the first part of the comparison's document, up to its changes; `_json_difference_end` writes the rest."""
    write(
        f'{{"version": {VERSION}, "kind": "difference", "columns":'
        f' {json.dumps([column.name for column in shape.common])}, "changes": ['
    )
    for number, change in enumerate(changes):
        write((", " if number else "") + json.dumps(change_fields(change)))
    write("]")


def _json_difference_end(result: Difference, write: Write) -> None:
    """Write the end of the comparison's document."""
    rest = {
        "table": result.table,
        "added": result.added,
        "removed": result.removed,
        "changed": result.changed,
        "from": _moment(result.begin),
        "to": _moment(result.end),
        "only_before": list(result.shape.only_before),
        "only_after": list(result.shape.only_after),
    }
    write(", " + json.dumps(rest)[1:] + "\n")


class TableAnswer:
    """Writes an answer as aligned columns."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def rows(self, columns: tuple[str, ...], rows: Iterator[Sequence[Any]]) -> None:
        """Write the rows under their names."""
        _table_rows(columns, rows, self._write)

    def end(self, answer: Answer) -> None:
        """Write what comes after the rows: nothing."""


class CsvAnswer(TableAnswer):
    """Writes an answer as CSV."""

    def rows(self, columns: tuple[str, ...], rows: Iterator[Sequence[Any]]) -> None:
        _csv_rows(columns, rows, self._write)


class JsonAnswer(TableAnswer):
    """Writes an answer as one document."""

    def rows(self, columns: tuple[str, ...], rows: Iterator[Sequence[Any]]) -> None:
        _json_rows(columns, rows, self._write)

    def end(self, answer: Answer) -> None:
        _json_answer_end(answer, self._write)


class TextDifference:
    """Writes a comparison as one line for each change and a summary."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def rows(self, shape: Shape, changes: Iterator[Change]) -> None:
        """Write the changes."""
        for line in change_lines(shape, changes):
            self._write(line + "\n")

    def end(self, result: Difference) -> None:
        """Write the numbers of changes, and the two moments."""
        self._write(_summary(result) + "\n")


class JsonDifference(TextDifference):
    """Writes a comparison as one document."""

    def rows(self, shape: Shape, changes: Iterator[Change]) -> None:
        _json_changes(shape, changes, self._write)

    def end(self, result: Difference) -> None:
        _json_difference_end(result, self._write)

"""Writers that write query answers and table differences row by row, as a table, CSV or one JSON document.

A writer gets a function that writes text, then the rows, and last the result, which is known only after the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from typing_extensions import TypedDict

from zsnapdb.base.untrusted_text import printed
from zsnapdb.documents.comparison import AnswerDocument, ChangeFields, DifferenceDocument, MomentFields, plain
from zsnapdb.jobs.clone.query import Answer, Difference
from zsnapdb.planning.clone.diff import Change, DifferenceKind, Shape
from zsnapdb.report.view import VERSION

_Beginning = TypedDict("_Beginning", {"from": MomentFields})


Write = Callable[[str], object]

_MEASURED_ROWS = 200
"""The number of rows that determine the widths of a table's columns. Wider cells in later rows shift their lines."""


def text(value: Any) -> str:
    """Return a value as text for a cell. The text is always one line, and NULL stands for None."""
    if value is None:
        return "NULL"
    return printed(str(plain(value)).replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t"))


def _csv_field(value: Any) -> str:
    shown = plain(value)
    if shown is None or isinstance(shown, int | float):
        return "" if shown is None else str(shown)
    return '"' + str(shown).replace('"', '""') + '"'


_SIGNS = {DifferenceKind.ADDED: "+", DifferenceKind.REMOVED: "-", DifferenceKind.CHANGED: "~"}


def change_lines(shape: Shape, changes: Iterable[Change]) -> Iterator[str]:
    """Yield one line for each change: + for an added row, - for a removed row, ~ for a row with changed columns."""
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


def _summary(result: Difference) -> str:
    lines = [f"{result.table}: {result.added} rows added, {result.removed} removed, {result.changed} changed"]
    lines += [f"  from  {result.begin.describe()}", f"  to    {result.end.describe()}"]
    for words, names in (
        ("  only in the first", result.shape.only_before),
        ("  only in the second", result.shape.only_after),
    ):
        lines += [f"{words}, not compared: {', '.join(names)}"] if names else []
    return "\n".join(lines)


class TableAnswer:
    """Writes an answer as aligned columns."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def rows(self, columns: tuple[str, ...], rows: Iterator[Sequence[Any]]) -> None:
        """Write the rows under their column names."""
        first = [tuple(text(value) for value in row) for row in islice(rows, _MEASURED_ROWS)]
        widths = [max(len(line[n]) for line in (columns, *first)) for n in range(len(columns))]
        for line in chain([tuple(map(printed, columns))], first, (tuple(text(value) for value in row) for row in rows)):
            self._write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")

    def end(self, answer: Answer) -> None:
        """Write nothing, because this format has no end."""


class CsvAnswer(TableAnswer):
    """Writes an answer as CSV (RFC 4180). NULL is an empty field without quotes; a text always has quotes."""

    def rows(self, columns: tuple[str, ...], rows: Iterator[Sequence[Any]]) -> None:
        for row in chain([columns], rows):
            self._write(",".join(_csv_field(value) for value in row) + "\n")


class JsonAnswer(TableAnswer):
    """Writes an answer as one JSON document."""

    kind = "answer"
    document_class = AnswerDocument

    def rows(self, columns: tuple[str, ...], rows: Iterator[Sequence[Any]]) -> None:
        self._write(f'{{"version": {VERSION}, "kind": "answer", "columns": {json.dumps(columns)}, "rows": [')
        for number, row in enumerate(rows):
            self._write((", " if number else "") + json.dumps([plain(value) for value in row]))
        self._write("]")

    def end(self, answer: Answer) -> None:
        moment = json.dumps(MomentFields.of_result(answer.moment).json_fields())
        self._write(f', "count": {answer.rows}, "moment": {moment}}}\n')


class TextDifference:
    """Writes a comparison as one line for each change and a summary."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def rows(self, shape: Shape, changes: Iterator[Change]) -> None:
        for line in change_lines(shape, changes):
            self._write(line + "\n")

    def end(self, result: Difference) -> None:
        """Write the numbers of changes and the times of the two states."""
        self._write(_summary(result) + "\n")


class JsonDifference(TextDifference):
    """Writes a comparison as one JSON document."""

    kind = "difference"
    document_class = DifferenceDocument

    def rows(self, shape: Shape, changes: Iterator[Change]) -> None:
        columns = json.dumps([column.name for column in shape.common])
        self._write(f'{{"version": {VERSION}, "kind": "difference", "columns": {columns}, "changes": [')
        for number, change in enumerate(changes):
            self._write((", " if number else "") + json.dumps(ChangeFields.of_result(change).json_fields()))
        self._write("]")

    def end(self, result: Difference) -> None:
        rest = {
            "table": result.table,
            "added": result.added,
            "removed": result.removed,
            "changed": result.changed,
            "from": MomentFields.of_result(result.begin).json_fields(),
            "to": MomentFields.of_result(result.end).json_fields(),
            "only_before": list(result.shape.only_before),
            "only_after": list(result.shape.only_after),
        }
        self._write(", " + json.dumps(rest)[1:] + "\n")

"""Views, which print a result as text for people or as a JSON document for programs."""

from __future__ import annotations

import json
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.patterns import printable
from zsnapdb.documents.base import Document
from zsnapdb.documents.base import Dumped as Dumped
from zsnapdb.documents.base import ErrorDocument as ErrorDocument
from zsnapdb.documents.base import ErrorFields as ErrorFields
from zsnapdb.documents.base import error_fields as error_fields
from zsnapdb.documents.base import errors_fields as errors_fields
from zsnapdb.documents.base import moment as moment
from zsnapdb.planning.repository.host_backup_record import StoredFinding, StoredKind

if TYPE_CHECKING:
    from zsnapdb.jobs.dataset_copies.catalogue import UnreadableCopy
    from zsnapdb.planning.backup.fitness import FitnessFinding

VERSION = 1


def document_json(kind: str, **fields: Any) -> str:
    """Return a document of the given kind as one line of JSON."""
    return json.dumps({"version": VERSION, "kind": kind, **fields})


def error_json(error: ZsnapdbError) -> str:
    """Return the JSON document for an error."""
    return document_json("error", **ErrorDocument.of_result(error).json_fields())


def truncate_to_second(microseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, without fractions of a second, for tables."""
    return f"{datetime.fromtimestamp(microseconds // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def paragraph(head: str, text: str) -> list[str]:
    """Return the head followed by the text, in lines of at most 80 columns unless a word is longer."""
    return textwrap.wrap(
        text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return columns aligned to their widest cell, headings first."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


Fields = Mapping[str, Any]
"""The fields of a document, by their names."""


@dataclass_transform(frozen_default=True)
class View(ABC):
    """A result that can be printed as text for a person or as one JSON document for a program.

    A class with a kind becomes a frozen dataclass. The fields of its document are read from the view's attribute
    `read_from`, or from the view itself if `read_from` is empty.
    """

    kind: ClassVar[str]
    document_class: ClassVar[type[Document]]
    read_from: ClassVar[str] = ""

    def __init_subclass__(
        cls, kind: str | None = None, document: type[Document] | None = None, read_from: str | None = None
    ) -> None:
        for name, value in (("kind", kind), ("document_class", document), ("read_from", read_from)):
            if value is not None:
                setattr(cls, name, value)
        if kind is not None:
            dataclass(frozen=True)(cls)

    @abstractmethod
    def text(self) -> str:
        """Return the result as lines for a person, without a trailing newline."""

    def fields(self) -> Fields:
        """Return the fields of the document, without `version` and `kind`."""
        return self.document_class.of_result(attrgetter(self.read_from)(self) if self.read_from else self).json_fields()

    def document(self) -> str:
        """Return the result as one line of JSON."""
        return document_json(self.kind, **self.fields())


@dataclass(frozen=True)
class Table:
    """Columns below their headings. Each row has a cell for each heading; `empty` is shown if the table has no rows.

    If `lines` is not empty, the text shows these lines instead of the columns.
    """

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    empty: str = ""
    lines: Sequence[str] = ()

    @property
    def text(self) -> str:
        return "\n".join(self.lines) if self.lines else table(self.headings, self.rows)


T = TypeVar("T")


def columns(items: Iterable[T], cells: Mapping[str, Callable[[T], str]], empty: str = "") -> Table:
    """Return a table with a row for each item.

    `cells` maps the heading of each column to the function that returns the cells.
    """
    return Table(tuple(cells), [tuple(cell(one) for cell in cells.values()) for one in items], empty)


class Labelled(Table):
    """Lines that start with a label, or with spaces if they continue the line above."""

    @classmethod
    def at(cls, lines: Sequence[str], width: int) -> Labelled:
        """Return lines that have their labels in the first `width` characters."""
        return cls((), [(line[:width].rstrip(), line[width:]) for line in lines], lines=lines)


Part = str | Table


class TabularView(View):
    """A result with tables."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """Return the lines and tables of the result, in order."""

    def text(self) -> str:
        return "\n".join(part if isinstance(part, str) else part.text for part in self.parts())


def empty_note(parts: Sequence[Part]) -> str:
    """Return the sentence for an empty list; "" if the list has rows.

    The caller prints the sentence only on terminals.
    """
    if any(isinstance(part, str) or part.rows or part.lines for part in parts):
        return ""
    return "; ".join(part.empty for part in parts if isinstance(part, Table))


def spaced(blocks: Iterable[Sequence[Part]]) -> list[Part]:
    """Return the parts of all blocks, with an empty line between two blocks."""
    parts: list[Part] = []
    for block in blocks:
        parts += ["", *block] if parts else block
    return parts


_LABELS = {
    StoredKind.EXPIRED_MISSING: "expired",
    StoredKind.FOREIGN: "foreign",
    StoredKind.REWRITTEN: "REWRITTEN",
    StoredKind.OTHER_WRITER: "other",
    StoredKind.NOT_COMPARED: "skipped",
    StoredKind.FROM_FUTURE: "FUTURE",
}


def finding_lines(findings: Sequence[FitnessFinding]) -> list[str]:
    """Return one line per check, and a line with its hint, if any."""
    lines = []
    for item in findings:
        lines.append(f"{item.severity:<8} {item.what:<15} {item.detail}")
        if item.hint:
            lines.append(f"{'':<8} {'':<15} hint: {item.hint}")
    return lines


def missing_lines(findings: Sequence[StoredFinding], width: int, indent: str = "") -> list[str]:
    """Return a line for each difference from this host's records, and a line with the difference's hint.

    `width` is the width of the label in characters.
    """
    lines = []
    for item in findings:
        lines.append(f"{indent}{_LABELS.get(item.kind, 'MISSING'):<{width}}{item.text}")
        lines.append(f"{indent}{'':<{width}}hint: {item.hint}")
    return lines


def unreadable_lines(copies: Sequence[UnreadableCopy]) -> list[str]:
    """Return a line for each clone or machine with unreadable properties: its name, the reason, and the hint."""
    return [printable(f"the {one.what} {one.name} cannot be read: {one.reason} (hint: {one.hint})") for one in copies]

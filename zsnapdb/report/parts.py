"""The parts of a result for a person: lines and tables. A terminal shows tables in its own way, a pipe as text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.report.units import table
from zsnapdb.report.view import View


class Tabular(Protocol):
    """Rows of cells. `headings` is empty if the columns have none; `empty` says what it means that there is no row."""

    @property
    def headings(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> Sequence[tuple[str, ...]]: ...

    @property
    def empty(self) -> str: ...

    @property
    def text(self) -> str:
        """The rows as plain text."""
        ...


@dataclass(frozen=True)
class Table:
    """Columns below their headings. Each row has a cell for each heading."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    empty: str

    @property
    def text(self) -> str:
        return table(self.headings, self.rows)


@dataclass(frozen=True)
class Labelled:
    """Lines that begin with labels, or with blanks, and the same as rows of labels and text."""

    lines: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    empty: str = ""

    @classmethod
    def at(cls, lines: Sequence[str], width: int) -> Labelled:
        """Return lines whose labels are in their first `width` characters."""
        return cls(lines, [(line[:width].rstrip(), line[width:]) for line in lines])

    @property
    def headings(self) -> tuple[str, ...]:
        return ()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


Part = str | Tabular


class TabularView(View):
    """A result with tables."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """Return the lines and tables of the result, in order."""

    def text(self) -> str:
        return "\n".join(part if isinstance(part, str) else part.text for part in self.parts())


def spaced(blocks: Iterable[Sequence[Part]]) -> list[Part]:
    """Return the parts of all blocks, with an empty line between two blocks."""
    parts: list[Part] = []
    for block in blocks:
        parts += ["", *block] if parts else block
    return parts

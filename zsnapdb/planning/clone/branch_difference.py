"""How the tables of two states of a clone differ: which are there, how many rows each has, which rows differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from zsnapdb.planning.clone.diff import Change, DifferenceKind, Shape
from zsnapdb.planning.table_name import TableName


@dataclass(frozen=True)
class ComparedTable:
    """A table at two states: its numbers of rows (None: it is not there), and what differs.

    `added`, `removed` and `changed` count rows by primary key, and `changes` are the first of them; `shape` has their
    columns. Where rows cannot be told apart, `reason` says why; then `is_same` is by number and checksum of the rows.
    """

    name: TableName
    before: int | None
    after: int | None
    is_same: bool
    added: int = 0
    removed: int = 0
    changed: int = 0
    changes: tuple[Change, ...] = ()
    shape: Shape | None = None
    reason: str = ""


@dataclass
class DifferenceCount:
    """Counts the rows of both sides and what differs, and keeps the first of the differences: at most `most`."""

    most: int
    before: int = 0
    after: int = 0
    numbers: dict[DifferenceKind, int] = field(default_factory=lambda: dict.fromkeys(DifferenceKind, 0))
    first: list[Change] = field(default_factory=list)

    def rows_before(self, rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
        """Yield the rows of the earlier state, counted."""
        for row in rows:
            self.before += 1
            yield row

    def rows_after(self, rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
        """Yield the rows of the later state, counted."""
        for row in rows:
            self.after += 1
            yield row

    def take(self, changes: Iterable[Change]) -> None:
        """Count the differences, all of them."""
        for change in changes:
            self.numbers[change.kind] += 1
            if len(self.first) < self.most:
                self.first.append(change)

    def table(self, name: TableName, shape: Shape) -> ComparedTable:
        """Return what was counted."""
        numbers = self.numbers
        return ComparedTable(
            name,
            self.before,
            self.after,
            is_same=not any(numbers.values()) and not shape.only_before and not shape.only_after,
            added=numbers[DifferenceKind.ADDED],
            removed=numbers[DifferenceKind.REMOVED],
            changed=numbers[DifferenceKind.CHANGED],
            changes=tuple(self.first),
            shape=shape,
        )

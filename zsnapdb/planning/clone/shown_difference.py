"""How much of a difference is shown: so many rows of each table, and so much text in all. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from zsnapdb.planning.clone.diff import Change


@dataclass
class ShownDifference:
    """What of a difference may still be shown: of each table so many rows, and so many characters in all.

    `is_cut`: something that differs is not shown.
    """

    rows: int
    characters: int
    is_cut: bool = False

    def fitting_lines(self, text: str) -> str:
        """Return the first lines of the text, as many as there is room for; they take it."""
        if len(text) > self.characters:
            # No part of a line: it would look like another definition.
            text, self.is_cut = text[: text.rfind("\n", 0, self.characters + 1) + 1].rstrip("\n"), True
        self.characters -= len(text)
        return text

    def fitting_rows(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Return the first changes of a table, as many as there is room for; they take it.

        The one after them may have been taken from `changes` as well.
        """
        found = list[Change]()
        for change in islice(changes, self.rows):
            needed = sum(_length(value) for row in (change.key, change.before, change.after) for value in row or ())
            if needed > self.characters:
                break
            self.characters -= needed
            found.append(change)
        return tuple(found)


def _length(value: Any) -> int:
    """Return how many characters a value has at least where it is shown: bytes are shown in hexadecimal digits."""
    return 2 * len(value) if isinstance(value, bytes | bytearray) else len(str(value))

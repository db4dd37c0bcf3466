"""What an upgrade rehearsal compares, and how it judges the differences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.model import Flavour
from zsnapdb.planning.facts import release_of
from zsnapdb.planning.family import family

_BAD = ("error", "corrupt", "warning")
_GOOD_TEXTS = ("ok", "table is already up to date")
_CANNOT = "doesn't support check"
"""An engine without CHECK TABLE says so in a note: nothing speaks against the table."""


@dataclass(frozen=True)
class Result:
    """The result of a query: the number of rows, and the SHA-256 of the rows in the order they came."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class Compared:
    """A query and its results before and after the upgrade; `after` None: it failed, `problem` says how."""

    query: str
    before: Result
    after: Result | None
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True)
class Checked:
    """A table and the answer of the new server's CHECK TABLE: its status or its complaints."""

    table: str
    answer: str
    is_good: bool


def unknown_modes(flavour: Flavour, version: str, sql_mode: str) -> tuple[str, ...]:
    """Return the modes in `sql_mode` that a server of this version does not know."""
    facts = family(flavour)
    if release_of(version) < facts.removed_modes_from:
        return ()
    return tuple(mode for mode in sql_mode.split(",") if mode in facts.removed_modes)


def judged(table: str, rows: Sequence[tuple[str, str]]) -> Checked:
    """Return what the rows (type, text) of CHECK TABLE mean.

    The table is good only if its status is OK, or its engine has no check, and no row is an error or a warning.
    """
    complaints = [f"{kind}: {text}" for kind, text in rows if kind.lower() in _BAD]
    last = rows[-1][1] if rows else "(no answer)"
    good = not complaints and (last.lower() in _GOOD_TEXTS or _CANNOT in last.lower())
    return Checked(table, "; ".join(complaints) or last, good)


def complaints(log: str) -> tuple[str, ...]:
    """Return the warnings and errors in a server's log, each text once."""
    messages: dict[str, None] = {}
    for line in log.splitlines():
        for mark in ("[Warning]", "[ERROR]"):
            if mark in line:
                messages[line[line.index(mark) :]] = None
    return tuple(messages)

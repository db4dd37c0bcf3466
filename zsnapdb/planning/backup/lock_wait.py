"""Which statements block a lock, and how long to wait before the next attempt. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0
_COMMENT = re.compile(r"^(?:\s|/\*(?!M?!).*?\*/|--[^\n]*\n|#[^\n]*\n)*", re.DOTALL)
"""Comments and spaces that may stand before a statement. `/*! … */` is no comment: the server runs its content."""

_VICTIMS = (
    "Waiting for table flush",
    "Waiting for global read lock",
    "Waiting for backup lock",
    "Waiting for commit lock",
)
_READS = ("select", "table", "(select")
"""WITH is not in the list, because DELETE and UPDATE may follow it."""


@dataclass(frozen=True)
class Statement:
    """A statement that runs on the server: its connection, its run time (seconds), its text."""

    connection_id: int
    seconds: int
    user: str
    text: str

    @property
    def only_reads(self) -> bool:
        """Whether the statement begins like a query. To kill such a statement loses only its answer."""
        return self.text[_COMMENT.match(self.text).end() :].lower().startswith(_READS)  # type: ignore[union-attr]

    def describe(self) -> str:
        """Return the statement in one line."""
        return f"connection {self.connection_id} ({self.user}), {self.seconds} s: {' '.join(self.text.split())[:80]}"


def long_statements(processes: Iterable[Mapping[str, Any]], own: frozenset[int], longest: float) -> list[Statement]:
    """Return the statements running for at least `longest` seconds, longest first, from rows of SHOW FULL PROCESSLIST.

    `own` are our connections. Threads of the server itself, such as replication, are left out: they are no statements
    that end. Statements that wait for a flush or a global lock themselves are left out too: they block nothing.
    """
    statements = []
    for row in processes:
        name, text = str(row.get("User") or ""), row.get("Info")
        is_statement = (
            str(row.get("Command")) in ("Query", "Execute") and text and name not in ("system user", "event_scheduler")
        )
        is_victim = str(row.get("State") or "").startswith(_VICTIMS)
        if is_statement and not is_victim and int(row["Id"]) not in own and float(row.get("Time") or 0) >= longest:
            statements.append(Statement(int(row["Id"]), int(row.get("Time") or 0), name, str(text)))
    return sorted(statements, key=lambda statement: -statement.seconds)


def to_kill(statements: Iterable[Statement], allowed: str) -> list[Statement]:
    """Return the statements that `allowed` permits to kill: `never`, `select` or `all`."""
    return [s for s in statements if allowed == "all" or (allowed == "select" and s.only_reads)]


def delays() -> Iterator[float]:
    """Yield the seconds to wait after each attempt: doubled every time, up to 15."""
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(delay * 2, _LONGEST_DELAY)

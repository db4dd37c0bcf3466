"""Chooses the weakest lock that gives a consistent snapshot of a server, and gives the reason. Pure.

Each strategy describes itself in its own class in `mysql/locks.py`. This module names no strategy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.planning.schema_content import survives_a_crash
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.server_family import family

_ROW_VERSION_FLAW = ((8, 0, 29), (8, 0, 32))
"""The MySQL releases whose redo log is unreliable for tables with row versions.

The pair contains the first such release, and the first later release without the flaw. Percona XtraBackup refuses these
releases and accepts 8.0.32. Percona Server never had the flaw: 8.0.29-21 was released with the fix (XtraBackup 8.0
manual, "Found tables with row versions").
"""


def unsafe_engines(facts: ServerFacts) -> dict[str, int]:
    """Return the engines whose files may be torn after a crash, each with its number of user tables."""
    return {name: count for name, count in facts.engines.items() if not survives_a_crash(name)}


def row_versions_are_flawed(flavour: Flavour, release: tuple[int, ...]) -> bool:
    """Return whether this release handles row versions unreliably.

    If it handles them reliably, tables with row versions need not be counted.
    """
    first, sound = _ROW_VERSION_FLAW
    return flavour is Flavour.MYSQL and first <= release < sound


def has_flawed_row_versions(facts: ServerFacts) -> bool:
    """Return whether tables have row versions, and crash recovery of such tables is unreliable in this release."""
    return facts.row_versions > 0 and row_versions_are_flawed(facts.flavour, facts.release) and not facts.is_percona


def lock_free_objections(facts: ServerFacts) -> tuple[str, ...]:
    """Return why an atomic snapshot without a lock would be no consistent backup; empty if it would be consistent."""
    objections = []
    others = unsafe_engines(facts)
    if others:
        objections.append(f"user tables of engines without crash recovery: {listing(others)}")
    atomic_from = family(facts.flavour).atomic_ddl_from
    if facts.release < atomic_from:
        first_release = ".".join(str(number) for number in atomic_from)
        objections.append(f"DDL is atomic from {facts.flavour} {first_release} on, this is {facts.version}")
    if has_flawed_row_versions(facts):
        objections.append(
            f"{facts.row_versions} table(s) with row versions, whose recovery is unsound in {facts.version}"
        )
    return tuple(objections)


def listing(engines: dict[str, int]) -> str:
    """Return one line that lists the engines, each with its number of tables."""
    return ", ".join(f"{count} {name}" for name, count in sorted(engines.items()))


AUTO = "auto"
"""The value of `lock.strategy` with which this module chooses the strategy."""


def _none(_: ServerFacts) -> str | None:
    return None


@dataclass(frozen=True)
class LockProperties:
    """The properties of a lock strategy for its choice, description and use.

    - `name`: the name of the strategy in `lock.strategy` and in the manifest
    - `statement`: a statement that only servers with this kind of lock accept; empty if all servers have the lock
    - `merit`: the reason to choose the strategy
    - `waits`: the statements that wait until the lock is released
    - `refused`: a function that returns why the server would refuse the lock, or None
    - `privileges`: the account needs one of these privileges; empty if it needs no privilege
    """

    name: str
    merit: str
    waits: str
    statement: str = ""
    writers_wait: bool = False
    """Whether every write waits, from the request for the lock until its release."""
    needs_crash_safe: bool = False
    """Whether the lock is sufficient only if every user table is crash-safe."""
    holds_ddl: bool = True
    """Whether the lock blocks DDL. A strategy that does not block DDL blocks no statements."""
    falls_back: bool = False
    """Whether zsnapdb uses a sufficient strategy that blocks nothing if the lock is not granted immediately."""
    refused: Callable[[ServerFacts], str | None] = _none
    privileges: tuple[str, ...] = ()

    @property
    def waited(self) -> str:
        """The text for the statements that waited for the lock.

        Only a lock that blocks writes is called a pause in the text.
        """
        return self.waits if self.writers_wait or not self.holds_ddl else f"only {self.waits}"

    def is_known_to(self, facts: ServerFacts) -> bool:
        return not self.statement or self.statement in facts.lock_statements

    def shortcomings(self, facts: ServerFacts) -> tuple[str, ...]:
        """Return why a snapshot under the lock would not be a consistent backup; empty if it would be consistent."""
        if not self.holds_ddl:
            return lock_free_objections(facts)
        others = unsafe_engines(facts) if self.needs_crash_safe else {}
        return (f"it does not stop changes to tables of other engines: {listing(others)}",) if others else ()

    def is_enough(self, facts: ServerFacts) -> bool:
        """Return whether the server would grant the lock, and a snapshot under it would be a consistent backup."""
        return self.is_known_to(facts) and self.refused(facts) is None and not self.shortcomings(facts)


@dataclass(frozen=True)
class LockChoice:
    """The chosen strategy and the reason. The strategy `fallback` is used if the lock is not granted immediately."""

    lock: LockProperties
    reason: str
    fallback: LockChoice | None = None

    @property
    def name(self) -> str:
        return self.lock.name

    def describe(self) -> str:
        if self.fallback is None:
            return f"{self.name}: {self.reason}"
        other = self.fallback.name if self.fallback.lock.holds_ddl else "no lock"
        return f"{self.name}: {self.reason}; falls back to {other} if not granted at once: {self.fallback.reason}"


def check_name(name: str, strategies: Sequence[LockProperties]) -> None:
    """Raise ConfigError if the setting is not `auto` and not the name of a strategy."""
    names = [lock.name for lock in strategies]
    if name not in (AUTO, *names):
        raise ConfigError(
            f"lock.strategy = {name!r} is not a lock strategy", hint=f"choose from {', '.join((AUTO, *names))}"
        )


def choose(facts: ServerFacts, setting: str, strategies: Sequence[LockProperties]) -> LockChoice:
    """Return the configured strategy.

    If `auto` is configured, return the first sufficient strategy in `strategies` (weakest lock first). Raises
    ConfigError if the configured strategy does not exist, and PreflightError if it is not sufficient for this server.
    """
    check_name(setting, strategies)
    if setting != AUTO:
        return _forced(facts, next(lock for lock in strategies if lock.name == setting), strategies)
    place, chosen = next((place, lock) for place, lock in enumerate(strategies) if lock.is_enough(facts))
    is_past_lock_free = any(not lock.holds_ddl for lock in strategies[:place])
    reasons = (chosen.merit, *(lock_free_objections(facts) if is_past_lock_free else ()))
    free = (LockChoice(lock, lock.merit) for lock in strategies if not lock.holds_ddl and lock.is_enough(facts))
    fallback = next(free, None) if chosen.falls_back else None
    return LockChoice(chosen, "; ".join(reason for reason in reasons if reason), fallback)


def still_enough(choice: LockChoice, facts: ServerFacts) -> str | None:
    """Return why the chosen lock is no longer sufficient for a server with these facts; None if it is sufficient."""
    others = unsafe_engines(facts)
    if others and choice.lock.needs_crash_safe:
        return f"there are now user tables of engines without crash recovery: {listing(others)}"
    return None


def _forced(facts: ServerFacts, lock: LockProperties, strategies: Sequence[LockProperties]) -> LockChoice:
    if not lock.is_known_to(facts):
        there = ", ".join(other.name for other in strategies if other.is_known_to(facts))
        raise PreflightError(
            f"lock.strategy = {lock.name!r}: {facts.flavour} {facts.version} does not have it",
            hint=f"use auto, {there}",
        )
    shortcomings = lock.shortcomings(facts)
    if shortcomings:
        raise PreflightError(
            f"lock.strategy = {lock.name!r} would not give a consistent backup: {'; '.join(shortcomings)}",
            hint="use auto",
        )
    refusal = lock.refused(facts)
    if refusal is not None:
        raise PreflightError(f"lock.strategy = {lock.name!r}: {refusal}", hint="use auto")
    return LockChoice(lock, "forced by lock.strategy")


_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0
_COMMENT = re.compile(r"^(?:\s|/\*(?!M?!).*?\*/|--[^\n]*\n|#[^\n]*\n)*", re.DOTALL)
"""Comments and spaces before a statement. `/*! … */` is not a comment, because the server runs its content."""

_VICTIMS = (
    "Waiting for table flush",
    "Waiting for global read lock",
    "Waiting for backup lock",
    "Waiting for commit lock",
)
_READS = ("select", "table", "(select")
"""The first words of queries. WITH is not listed, because DELETE and UPDATE may follow it."""


@dataclass(frozen=True)
class Statement:
    """A running statement: its connection, run time (seconds) and text."""

    connection_id: int
    seconds: int
    user: str
    text: str

    @property
    def only_reads(self) -> bool:
        """Whether the statement starts like a query. If a query is killed, only its result is lost."""
        return self.text[_COMMENT.match(self.text).end() :].lower().startswith(_READS)  # type: ignore[union-attr]

    def describe(self) -> str:
        return f"connection {self.connection_id} ({self.user}), {self.seconds} s: {' '.join(self.text.split())[:80]}"


def long_statements(processes: Iterable[Mapping[str, Any]], own: frozenset[int], longest: float) -> list[Statement]:
    """Return the statements of SHOW FULL PROCESSLIST that have run for at least `longest` seconds, longest first.

    `own` contains the connection ids of zsnapdb. Server threads, such as replication, are omitted, because their
    statements do not end. Statements that wait for a flush or a global lock are also omitted, because they block
    nothing.
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
    """Return the statements that may be killed according to `allowed`: `never`, `select` or `all`."""
    return [s for s in statements if allowed == "all" or (allowed == "select" and s.only_reads)]


def delays() -> Iterator[float]:
    """Yield the number of seconds to wait after each attempt. It doubles each time, up to 15 seconds."""
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(delay * 2, _LONGEST_DELAY)

"""Which lock a server needs: the least that gives a consistent snapshot, and why. Pure.

Each strategy describes itself in its own file in `mysql/locks`. This module knows no strategy by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.planning.backup.crash_safety import listing, lock_free_objections, unsafe_engines
from zsnapdb.planning.facts import ServerFacts

AUTO = "auto"
"""The value of lock.strategy with which this module chooses the strategy."""


def _none(_: ServerFacts) -> str | None:
    return None


@dataclass(frozen=True)
class LockProperties:
    """The properties of a lock strategy by which it is chosen, described and used.

    `name` is its name in `lock.strategy` and in the manifest. `statement` is the statement that the server's parser
    must understand (empty: every server has the lock). `merit` is the reason to choose the strategy. `waits` names what
    waits until the lock is released. `refused` returns why the server would refuse the lock, or None. `privileges` are
    those of which the account needs one (empty: none).
    """

    name: str
    merit: str
    waits: str
    statement: str = ""
    writers_wait: bool = False
    """Every write waits from the request for the lock until its release."""
    needs_crash_safe: bool = False
    """The lock is enough only as long as every user table survives a crash."""
    holds_ddl: bool = True
    """No DDL statement runs under the lock. A strategy that does not stop DDL stops nothing at all."""
    falls_back: bool = False
    """If the lock is not granted at once, a strategy that stops nothing is used instead, where that is enough."""
    refused: Callable[[ServerFacts], str | None] = _none
    privileges: tuple[str, ...] = ()

    @property
    def waited(self) -> str:
        """What waited while the lock was held, for a sentence: a lock that lets writes go on is no pause."""
        return self.waits if self.writers_wait or not self.holds_ddl else f"only {self.waits}"

    def is_known_to(self, facts: ServerFacts) -> bool:
        """Whether the server knows the statement of the lock."""
        return not self.statement or self.statement in facts.lock_statements

    def shortcomings(self, facts: ServerFacts) -> tuple[str, ...]:
        """Return why a snapshot under the lock would not be a consistent backup; empty if it would be consistent."""
        if not self.holds_ddl:
            return lock_free_objections(facts)
        others = unsafe_engines(facts) if self.needs_crash_safe else {}
        return (f"it does not stop changes to tables of other engines: {listing(others)}",) if others else ()

    def is_enough(self, facts: ServerFacts) -> bool:
        """Whether the server has the lock and would grant it, and a snapshot under the lock is a consistent backup."""
        return self.is_known_to(facts) and self.refused(facts) is None and not self.shortcomings(facts)


@dataclass(frozen=True)
class LockChoice:
    """The chosen strategy and the reason; `fallback` is used instead if the lock is not granted at once."""

    lock: LockProperties
    reason: str
    fallback: LockChoice | None = None

    @property
    def name(self) -> str:
        """The strategy's name."""
        return self.lock.name

    def describe(self) -> str:
        """Return both in one line, with the fallback if there is one."""
        if self.fallback is None:
            return f"{self.name}: {self.reason}"
        other = self.fallback.name if self.fallback.lock.holds_ddl else "no lock"
        return f"{self.name}: {self.reason}; falls back to {other} if not granted at once: {self.fallback.reason}"


def check_name(name: str, strategies: Sequence[LockProperties]) -> None:
    """Raise ConfigError unless the setting names a strategy, or `auto`."""
    names = [lock.name for lock in strategies]
    if name not in (AUTO, *names):
        raise ConfigError(
            f"lock.strategy = {name!r} is no lock strategy", hint=f"choose from {', '.join((AUTO, *names))}"
        )


def choose(facts: ServerFacts, setting: str, strategies: Sequence[LockProperties]) -> LockChoice:
    """Return the first of the strategies, least lock first, that gives a consistent snapshot, or the one that is set.

    ConfigError if the one that is set does not exist, PreflightError if it is not enough here.
    """
    check_name(setting, strategies)
    if setting != AUTO:
        return _forced(facts, next(lock for lock in strategies if lock.name == setting), strategies)
    place, chosen = next((place, lock) for place, lock in enumerate(strategies) if lock.is_enough(facts))
    is_past_lock_free = any(not lock.holds_ddl for lock in strategies[:place])
    reasons = (chosen.merit, *(lock_free_objections(facts) if is_past_lock_free else ()))
    return LockChoice(
        chosen,
        "; ".join(reason for reason in reasons if reason),
        _fallback(facts, strategies) if chosen.falls_back else None,
    )


def still_enough(choice: LockChoice, facts: ServerFacts) -> str | None:
    """Return why the chosen lock is not enough for the server as it is now, or None if it is."""
    others = unsafe_engines(facts)
    if others and choice.lock.needs_crash_safe:
        return f"there are now user tables of engines without crash recovery: {listing(others)}"
    return None


def _fallback(facts: ServerFacts, strategies: Sequence[LockProperties]) -> LockChoice | None:
    return next(
        (LockChoice(lock, lock.merit) for lock in strategies if not lock.holds_ddl and lock.is_enough(facts)), None
    )


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

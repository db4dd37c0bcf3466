"""The summary of a retention says what stays only as a base of others, and what shorter chains would free."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zsnapdb.planning.repository.retention import NEEDED_BY, ChainCost, Decision, FullEvery, chain_cost

BEGIN = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
FULL, INCREMENT = 1000, 100


@dataclass(frozen=True)
class Stored:
    """A backup a day, of which the first of a chain is full."""

    backup_id: str
    stored_size: int
    is_full: bool


def daily(days: int, full_every: int) -> list[Stored]:
    return [
        Stored(
            f"{BEGIN + timedelta(days=day):%Y%m%dT%H%M%SZ}-{day:04x}",
            INCREMENT if day % full_every else FULL,
            day % full_every == 0,
        )
        for day in range(days)
    ]


def last(stored: list[Stored], count: int) -> list[Decision]:
    """The decisions of `last = count`: the chain below the oldest of them stays too."""
    first = max(n for n, backup in enumerate(stored[: len(stored) - count + 1]) if backup.is_full)
    decisions = []
    for number, backup in enumerate(stored):
        reason = "last" if number >= len(stored) - count else f"{NEEDED_BY}{stored[number - 1].backup_id}"
        decisions.append(Decision(backup.backup_id, number >= first, (reason,)))
    return decisions


def test_what_stays_only_as_a_base_is_counted_and_a_shorter_full_every_named() -> None:
    """Of a chain of 60 days `last = 2` needs 60 backups. With a full backup every 3 days it would need 3 of them."""
    stored = daily(60, 60)
    cost = chain_cost(last(stored, 2), stored)
    assert cost.only_needed == tuple(backup.backup_id for backup in stored[:58])
    assert cost.size == FULL + 57 * INCREMENT
    assert cost.better == FullEvery(every=3 * 86400.0, fewer=57, freed=57 * INCREMENT)


def test_a_shorter_chain_that_costs_more_than_it_frees_is_not_named() -> None:
    stored = daily(4, 4)
    cost = chain_cost(last(stored, 3), stored)
    assert len(cost.only_needed) == 1
    assert cost.better is None
    assert cost.describe(4, "1000 B", "") == (
        "1 of 4 backups stay only because newer ones need them (1000 B); a shorter full_every would free nothing"
    )


def test_without_such_backups_nothing_is_said() -> None:
    stored = daily(7, 1)
    cost = chain_cost(last(stored, 3), stored)
    assert cost == ChainCost((), 0, None)
    assert cost.describe(3, "0 B", "") == ""


def test_the_words_have_the_numbers() -> None:
    cost = ChainCost(("a", "b"), 10, FullEvery(7 * 86400.0, 2, 5))
    assert cost.describe(5, "10 B", "5 B") == (
        "2 of 5 backups stay only because newer ones need them (10 B); with full_every = 7d the policy would keep 2"
        " backups and about 5 B less"
    )

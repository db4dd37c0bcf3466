"""What chains cost: backups that stay only because newer ones need them, and what shorter chains would free. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from zsnapdb.base.quantities import format_setting
from zsnapdb.planning.repository.retention import NEEDED_BY, Decision, time_of

_CANDIDATES = (30 * 86400.0, 14 * 86400.0, 7 * 86400.0, 3 * 86400.0, 86400.0)
"""Values of full_every that are tried, in seconds."""


class SizedBackup(Protocol):
    """A stored backup with its size in bytes."""

    @property
    def backup_id(self) -> str: ...
    @property
    def stored_size(self) -> int: ...
    @property
    def is_full(self) -> bool: ...


@dataclass(frozen=True)
class FullEvery:
    """A value of `full_every` (seconds) with which the same policy would keep fewer bytes.

    `freed` is the difference in bytes, with the larger full backups counted; `fewer` is that of the kept backups. Both
    are estimates: each additional full backup is taken to be as large as the newest one.
    """

    every: float
    fewer: int
    freed: int


@dataclass(frozen=True)
class ChainCost:
    """The backups that no rule keeps and that stay as bases of others; their bytes; the best other `full_every`."""

    only_needed: tuple[str, ...]
    size: int
    better: FullEvery | None

    def describe(self, kept: int, size_text: str, freed_text: str) -> str:
        """Return the cost in words; `kept` is the number of all backups that stay, the texts are the sizes in words."""
        if not self.only_needed:
            return ""
        text = f"{len(self.only_needed)} of {kept} backups stay only because newer ones need them ({size_text})"
        if self.better is None:
            return f"{text}; a shorter full_every would free nothing"
        return (
            f"{text}; with full_every = {format_setting(self.better.every)} the policy would keep {self.better.fewer}"
            f" backups and about {freed_text} less"
        )


def chain_cost(decisions: Sequence[Decision], stored: Sequence[SizedBackup]) -> ChainCost:
    """Return what the chains below the kept backups cost, and the `full_every` that would free most.

    `stored` is oldest first.
    """
    backups = list(stored)
    kept = {d.backup_id for d in decisions if d.keep}
    ruled = {d.backup_id for d in decisions if d.keep and not all(r.startswith(NEEDED_BY) for r in d.reasons)}
    needed = kept - ruled
    only_needed = [backup for backup in backups if backup.backup_id in needed]
    now = sum(backup.stored_size for backup in backups if backup.backup_id in kept)
    tried = [_with(every, backups, ruled, len(kept), now) for every in _CANDIDATES] if only_needed else []
    best = max(tried, key=lambda one: one.freed, default=None)
    size = sum(backup.stored_size for backup in only_needed)
    return ChainCost(
        tuple(b.backup_id for b in only_needed), size, best if best is not None and best.freed > 0 else None
    )


def _with(every: float, backups: Sequence[SizedBackup], ruled: Collection[str], kept: int, now: int) -> FullEvery:
    """Return what the policy would keep if there had been a full backup at least so often."""
    full_size = next((backup.stored_size for backup in reversed(backups) if backup.is_full), 0)
    chains: list[list[tuple[str, int]]] = []
    started = None
    for backup in backups:
        made = time_of(backup.backup_id)
        is_due = started is None or made - started >= timedelta(seconds=every)
        if backup.is_full or is_due:
            started = made
            chains.append([(backup.backup_id, max(backup.stored_size, full_size if is_due else 0))])
        else:
            chains[-1].append((backup.backup_id, backup.stored_size))
    count = size = 0
    for chain in chains:
        last = max((number for number, (name, _) in enumerate(chain) if name in ruled), default=-1)
        count += last + 1
        size += sum(stored for _, stored in chain[: last + 1])
    return FullEvery(every, kept - count, now - size)

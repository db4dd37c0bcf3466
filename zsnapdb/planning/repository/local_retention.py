"""Which local snapshot sets stay on the host, and why. The sets of `zsnapdb snapshot` expire by rules of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.config.repository import KeepRules
from zsnapdb.planning.chain import VolumeLink
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.retention import Decision, RetentionFacts


@dataclass(frozen=True)
class LocalSet:
    """A snapshot set on this host: its snapshots by role, its position as text, and the bytes that only it keeps.

    `state` is that of its snapshots. `users` are the clones and holds that need it. A set that is not `is_complete`
    lacks a volume: it can be used for nothing.
    """

    backup_id: str
    state: str
    names: dict[str, str]
    position: str
    used: int
    users: tuple[str, ...]
    is_complete: bool

    @property
    def volumes(self) -> Sequence[VolumeLink]:
        """Nothing: a set on a host needs no other set."""
        return ()


def decide_local(
    sets: Sequence[LocalSet], rules: KeepRules, now: datetime, *, is_sure: bool = False
) -> tuple[Decision, ...]:
    """Return which of the sets of `zsnapdb snapshot` (oldest first) stay at `now`, and why, in their order.

    A set that somebody needs stays. A set that is not complete takes no place of a complete one, and stays no shorter
    than a complete one would: it may be whole by the volumes of its time. `is_sure`: a time in the future is wrong.
    """
    known = RetentionFacts(in_use={one.backup_id: ", ".join(one.users) for one in sets if one.users}, is_sure=is_sure)
    complete = [one for one in sets if one.is_complete]
    decided = list(retention.decide(complete, rules, now, known).decisions)
    for one in sets:
        if not one.is_complete:
            beside = [other for other in sets if other.is_complete or other is one]
            decisions = retention.decide(beside, rules, now, known).decisions
            decided.append(next(decision for decision in decisions if decision.backup_id == one.backup_id))
    order = {one.backup_id: at for at, one in enumerate(sets)}
    return tuple(sorted(decided, key=lambda decision: order[decision.backup_id]))

"""Which local snapshot sets stay on the host, and why. The sets of `zsnapdb snapshot` expire by rules of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.config import KeepRules
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


def decide(sets: Sequence[LocalSet], rules: KeepRules, now: datetime) -> tuple[Decision, ...]:
    """Return which of the sets of `zsnapdb snapshot` stay at `now`, and why, oldest first.

    The rules apply to complete sets. A set that somebody needs stays. One that is not complete goes.
    """
    complete = [one for one in sets if one.is_complete]
    needed = {one.backup_id: ", ".join(one.users) for one in sets if one.users}
    decided = list(retention.decide(complete, rules, now, RetentionFacts(in_use=needed)).decisions)
    for one in sets:
        if not one.is_complete:
            because = f"in use: {needed[one.backup_id]}" if one.users else "incomplete: a volume has no snapshot of it"
            decided.append(Decision(one.backup_id, bool(one.users), (because,)))
    return tuple(sorted(decided, key=lambda decision: decision.backup_id))

"""Whether the clock of a host can be trusted to say how old backups are; which are from the future. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from zsnapdb.planning.repository.retention import time_of

FAR = timedelta(days=1)
"""How far two clocks may differ.

Retention counts in hours at the least, and no time zone that was taken for UTC is more than 14 hours away. A clock that
is wrong by more than a day lets backups go that the rules would keep.
"""


class ClockDoubtKind(StrEnum):
    """What the clock of the host disagrees with."""

    STORE = "store"
    NEWEST_BACKUP = "newest-backup"


@dataclass(frozen=True)
class ClockDoubt:
    """Why the clock is not trusted, as a kind and in words."""

    kind: ClockDoubtKind
    reason: str


def clock_doubt(now: datetime, store: datetime | None, backups: Sequence[datetime]) -> ClockDoubt | None:
    """Return why the clock that says `now` is not trusted; None if nothing speaks against it.

    `store` is the clock of the store (None: unknown). `backups` are the times of the backups, oldest first. The newest
    backup may be as old as twice the longest pause between two backups so far, and a day. With fewer than two backups
    nothing is expected, nor with a store whose own clock agrees.
    """
    if store is not None and abs(now - store) > FAR:
        side = "ahead of" if now > store else "behind"
        return ClockDoubt(
            ClockDoubtKind.STORE, f"the clock of this host is {_days(abs(now - store))} {side} the clock of the store"
        )
    if store is not None:
        return None
    past = [time for time in backups if time <= now]
    pauses = [later - earlier for earlier, later in pairwise(past)]
    if pauses and now - past[-1] > FAR + 2 * max(*pauses, timedelta()):
        return ClockDoubt(
            ClockDoubtKind.NEWEST_BACKUP,
            f"the newest backup is {_days(now - past[-1])} old by the clock of this host, and no pause between two"
            f" backups was longer than {_days(max(pauses))}",
        )
    return None


def from_future(backup_ids: Iterable[str], now: datetime, own: Collection[str]) -> Mapping[str, datetime]:
    """Return the times of the backups whose ids are from more than a day after `now`, by backup id.

    Anybody who can write to a repository can put such a backup there, to be taken for the newest one. `own` are the ids
    of the backups that this host stored: for these the clock was wrong, then or now, and they are never returned.
    """
    times = {name: time_of(name) for name in backup_ids}
    latest = now + FAR
    return {name: time for name, time in times.items() if time > latest and name not in own}


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):.1f} days"

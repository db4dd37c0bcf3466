"""Backups that this host does not know, of a later time than now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from zsnapdb.planning.clock_guard import FAR
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.host_record import StoredFinding, StoredKind, count_of, names_of


def from_future(backup_ids: Iterable[str], now: datetime, own: Collection[str]) -> Mapping[str, datetime]:
    """Return the times of the backups whose ids are from more than a day after `now`, by backup id.

    Anybody who can write to a repository can put such a backup there, to be taken for the newest one. `own` are the ids
    of the backups that this host stored: for these the clock was wrong, then or now, and they are never returned.
    """
    times = {name: retention.time_of(name) for name in backup_ids}
    return {name: time for name, time in times.items() if time - now > FAR and name not in own}


def judge_future(instance: str, future: Mapping[str, datetime], now: datetime) -> tuple[StoredFinding, ...]:
    """Return a finding if there are backups from the future, given by their ids and times."""
    names = tuple(sorted(future))
    if not names:
        return ()
    return (
        StoredFinding(
            StoredKind.FROM_FUTURE,
            f"the repository has {count_of(names)} from the future that this host did not store ({names_of(names)}):"
            f" the newest says {future[names[-1]]:%Y-%m-%d %H:%M} UTC, and this host has {now:%Y-%m-%d %H:%M} UTC;"
            " nothing chooses such a backup",
            "check `date -u` here and on the host that stored it. If a clock was wrong, name the id, as in `zsnapdb"
            f" restore {instance} --to {names[-1]}`; otherwise somebody else wrote it",
            names,
        ),
    )

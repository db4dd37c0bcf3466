"""Chooses which backups to verify, and determines which other backups are affected if they are damaged. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.backup_chain import Lineage, Link


def due(
    whole_since: Mapping[str, datetime | None], now: datetime, older_than: float | None, limit: int | None
) -> tuple[str, ...]:
    """Return the backups to verify, the most urgent first.

    The argument `whole_since` maps the backups, oldest first, to the time of the last verification without damage. The
    time is None if the backup was never verified or is damaged. A time in the future counts as None, because a clock
    was wrong. First come the backups without a time, newest backup first. Then come the backups with a time, oldest
    time first. Backups that were verified without damage in the last `older_than` seconds are left out.
    """
    checked = {name: since for name, since in whole_since.items() if since is not None and since <= now}
    never = [name for name in reversed(list(whole_since)) if name not in checked]
    known = sorted(
        (
            (since, name)
            for name, since in checked.items()
            if older_than is None or since <= now - timedelta(seconds=older_than)
        )
    )
    return tuple([*never, *(name for _, name in known)][:limit])


@dataclass(frozen=True)
class Consequences:
    """The consequences of damage for the other backups.

    The field `dependents` maps each damaged backup to the backups that need it. The field `broken` maps a backup to a
    text about the break in its chain. The field `restorable` contains the backups that can be restored, oldest first.
    """

    dependents: Mapping[str, tuple[str, ...]]
    broken: Mapping[str, str]
    restorable: tuple[str, ...]


def consequences(links: Sequence[Link], damaged: Collection[str]) -> Consequences:
    """Return the consequences that the damaged backups have for the readable backups."""
    lineage, known = Lineage(links, damaged), dict[str, tuple[str, ...] | DamagedError]()
    dependents: dict[str, list[str]] = {name: [] for name in damaged}
    broken: dict[str, str] = {}
    restorable = []
    for link in links:
        bad = _damaged_in_chain(link, lineage, dependents, known)
        if isinstance(bad, DamagedError):
            broken[link.backup_id] = bad.message
            continue
        for name in bad:
            if name != link.backup_id:
                dependents[name].append(link.backup_id)
        if not bad:
            restorable.append(link.backup_id)
    return Consequences({name: tuple(needing) for name, needing in dependents.items()}, broken, tuple(restorable))


def _damaged_in_chain(
    link: Link, lineage: Lineage[Link], damaged: Collection[str], known: dict[str, tuple[str, ...] | DamagedError]
) -> tuple[str, ...] | DamagedError:
    """Return the damaged backups in the chain of `link`, oldest first, or the error if the chain is broken.

    The function stores the result for each backup of the chain in `known`. So it examines each base of a long chain
    only once.
    """
    walked: dict[str, Link] = {}
    here: Link | None = link
    below: tuple[str, ...] | DamagedError = ()
    while here is not None and here.backup_id not in known:
        if here.backup_id in walked:
            # The chain is a loop. Each backup that leads to the loop gets its own message.
            return _way_round(link, lineage)
        walked[here.backup_id] = here
        try:
            here = lineage.base(here)
        except DamagedError as error:
            below = error
            break
    else:
        below = known[here.backup_id] if here is not None else ()
    for name in reversed(walked):
        if not isinstance(below, DamagedError) and name in damaged:
            below = (*below, name)
        known[name] = below
    return known[link.backup_id]


def _way_round(link: Link, lineage: Lineage[Link]) -> DamagedError:
    try:
        lineage.chain(link)
    except DamagedError as error:
        return error
    raise AssertionError(f"the chain of {link.backup_id} has an end")

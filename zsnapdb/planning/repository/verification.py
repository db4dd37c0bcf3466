"""Which backups are to be verified now, and what damage means for the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zsnapdb.errors import DamagedError
from zsnapdb.planning.chain import Lineage, Link


def due(
    whole_since: Mapping[str, datetime | None], now: datetime, older_than: float | None, limit: int | None
) -> tuple[str, ...]:
    """Return the backups to verify, the most pressing first.

    `whole_since` says of each when it was last found whole (None: never, or damage is known). Those come first, the
    newest of them before the others; then those that were not looked at for the longest time. `older_than` leaves out
    what was found whole within so many seconds.
    """
    wanted = [
        name
        for name, since in whole_since.items()
        if older_than is None or since is None or not now - timedelta(seconds=older_than) < since <= now
    ]
    never = sorted((name for name in wanted if whole_since[name] is None), reverse=True)
    known = sorted(
        (name for name in wanted if whole_since[name] is not None),
        key=lambda name: (whole_since[name] or datetime.min.replace(tzinfo=UTC), name),
    )
    return tuple([*never, *known][:limit])


@dataclass(frozen=True)
class Consequences:
    """What damage means: which backups need each damaged one, which have a hole below them (and where), and which can be restored, oldest first."""

    dependents: Mapping[str, tuple[str, ...]]
    holes: Mapping[str, str]
    restorable: tuple[str, ...]


def consequences(links: Sequence[Link], damaged: Collection[str]) -> Consequences:
    """Return what can still be restored of the readable backups, given the damaged ones."""
    lineage = Lineage(links)
    dependents: dict[str, list[str]] = {name: [] for name in damaged}
    holes: dict[str, str] = {}
    restorable = []
    for link in links:
        try:
            chain = lineage.chain(link)
        except DamagedError as error:
            holes[link.backup_id] = error.message
            continue
        bad = [below.backup_id for below in chain if below.backup_id in dependents]
        for name in bad:
            if name != link.backup_id:
                dependents[name].append(link.backup_id)
        if not bad:
            restorable.append(link.backup_id)
    return Consequences({name: tuple(found) for name, found in dependents.items()}, holes, tuple(restorable))

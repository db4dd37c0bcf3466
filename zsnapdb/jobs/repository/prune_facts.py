"""Reads what a prune must know of the repository beside its manifests: locks of the store, and leftovers of runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from zsnapdb.base.model import is_backup_id
from zsnapdb.planning.repository.sweep import Leftover
from zsnapdb.repository import layout
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.known_damage import known_damage
from zsnapdb.repository.pins import pins
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.unfinished import Unfinished
from zsnapdb.store.base import ObjectHold

_PARALLEL_REQUESTS = 8
"""The number of parallel requests for the holds of objects."""


def pinned(repository: Repository, instance: str, here: Sequence[str]) -> dict[str, str]:
    """Return why each pinned backup stays. `here` are the backups that this host pinned, by its own record."""
    hidden = {
        name: f"this host pinned it, the repository lacks the pin; `zsnapdb pin {instance} {name} --remove` ends that"
        for name in here
    }
    return hidden | {name: pin.reason for name, pin in pins(repository, instance).items()}


def faulty(repository: Repository, instance: str) -> dict[str, str]:
    """Return what checks found wrong with each backup that is known to be damaged."""
    return {
        name: f"{damage.by} found {'; '.join(damage.findings[:2])}"
        for name, damage in known_damage(repository, instance).stored().items()
    }


def locked(repository: Repository, instance: str, names: Sequence[str]) -> dict[str, str]:
    """Return which of the backups the store itself locks, and until when.

    Only the manifest of a backup is checked: it was written last, so its lock ends last.
    """

    def hold_of(name: str) -> ObjectHold | None:
        return repository.hold(layout.manifest(instance, name))

    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="hold") as pool:
        holds = dict(zip(names, pool.map(hold_of, names), strict=True))
    return {
        name: f"until {hold.until:%Y-%m-%d %H:%M} UTC" if hold.until else "by a legal hold"
        for name, hold in holds.items()
        if hold is not None
    }


def leftovers(repository: Repository, instance: str, backups: Summaries, marks: Sequence[Unfinished]) -> list[Leftover]:
    """Return the leftovers of ids without a manifest. Lists the ids once, then the objects of each such id."""
    there = {backup.backup_id for backup in backups.backups} | set(backups.unread)
    marked = {mark.backup_id: mark for mark in marks if mark.backup_id not in there}
    names = set(filter(is_backup_id, repository.folders(layout.all_chunks(instance)))) - there
    leftovers = []
    for name in sorted(names | set(marked)):
        objects, foreign, size = 0, 0, 0
        written: list[datetime | None] = [marked[name].modified] if name in marked else []
        for listed in repository.list_all(layout.chunks_of_backup(instance, name)):
            if listed is None:
                foreign += 1
                continue
            objects, size = objects + 1, size + listed.size
            written.append(listed.modified)
        if not objects and name not in marked:
            continue
        times = [time for time in written if time is not None]
        newest = max(times) if len(times) == len(written) and times else None
        is_of_others = name in marked and marked[name].is_foreign
        leftovers.append(Leftover(name, objects, size, newest, name in marked, foreign, is_of_others))
    return leftovers


def guids(backups: Sequence[Summary], backup_ids: Sequence[str]) -> dict[str, frozenset[int]]:
    """Return the GUIDs of the snapshots of the chosen backups, by backup."""
    chosen = set(backup_ids)
    return {b.backup_id: frozenset(volume.guid for volume in b.volumes) for b in backups if b.backup_id in chosen}


def in_use(
    backups: Sequence[Summary], base: Summary | None, marks: Sequence[Unfinished], moment: datetime, after: float
) -> dict[str, str]:
    """Return the backups that later runs may need: the base of the next increment, and bases of unfinished backups."""
    needed = {base.backup_id: "it is the base of the next increment"} if base is not None else {}
    stored = {backup.backup_id for backup in backups}
    for mark in marks:
        if mark.backup_id in stored or (mark.modified is not None and (moment - mark.modified).total_seconds() > after):
            continue
        for backup in backups:
            if mark.may_build_on({volume.guid for volume in backup.volumes}):
                needed.setdefault(
                    backup.backup_id, f"it may be the base of the unfinished backup {mark.backup_id} on {mark.host}"
                )
    return needed

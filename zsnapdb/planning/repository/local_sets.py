"""Which snapshots and bookmarks of stored backups a prune removes from this host, and why.

A bookmark cannot carry our property. It is ours if it has the name we give it and stands for the snapshot that a
manifest, or a snapshot that does carry our property, names by GUID.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LocalSnapshot:
    """A snapshot of a stored backup: its full name, who needs it, and the bytes that only it keeps in the pool.

    `repository` is the id of the repository that has the backup ("": not known).
    """

    name: str
    backup_id: str
    guid: int
    repository: str
    holds: int
    clones: tuple[str, ...]
    used: int


@dataclass(frozen=True)
class LocalBookmark:
    """A bookmark with a name of ours."""

    name: str
    backup_id: str
    guid: int


@dataclass(frozen=True)
class RepositoryAfterPrune:
    """What the repository holds after the plan.

    `kept` are the ids that stay, `removed` the GUIDs of those that go, `base` the id the next increment builds on
    ("": none).
    """

    id: str
    kept: Collection[str]
    removed: Mapping[str, Collection[int]]
    base: str


@dataclass(frozen=True)
class LocalDecision:
    """Whether a snapshot or bookmark goes, and why."""

    name: str
    backup_id: str
    guid: int
    size: int
    remove: bool
    reason: str


def decide(
    snapshots: Sequence[LocalSnapshot],
    bookmarks: Sequence[LocalBookmark],
    there: RepositoryAfterPrune,
    limit: int | None,
) -> tuple[LocalDecision, ...]:
    """Return a decision for each. Of the sets whose backups stay, the newest `limit` also stay on this host."""
    newest = max(there.kept, default="")
    ids = sorted({s.backup_id for s in snapshots if s.backup_id in there.kept}, reverse=True)
    staying = set(ids if limit is None else ids[:limit]) | {there.base}
    decided = [_snapshot(item, there, staying, newest, limit) for item in snapshots]
    going = {(d.backup_id, d.guid) for d in decided if d.remove}
    decided += [_bookmark(item, there, going) for item in bookmarks]
    return tuple(sorted(decided, key=lambda d: (d.backup_id, d.name)))


def _snapshot(
    item: LocalSnapshot, there: RepositoryAfterPrune, staying: Collection[str], newest: str, limit: int | None
) -> LocalDecision:
    def decision(remove: bool, reason: str) -> LocalDecision:
        return LocalDecision(item.name, item.backup_id, item.guid, item.used, remove, reason)

    if item.backup_id in staying:
        return decision(
            False, "the next increment builds on this snapshot" if item.backup_id == there.base else "its backup stays"
        )
    if item.backup_id in there.removed:
        if item.guid not in there.removed[item.backup_id]:
            return decision(False, "its backup was made of another snapshot with this name")
        why = "its backup is removed"
    elif item.backup_id in there.kept:
        why = f"its backup stays in the repository; this host keeps the newest {limit}"
    elif item.repository == there.id and item.backup_id < newest:
        why = "its backup was removed from the repository before"
    else:
        return decision(False, "its backup is not in this repository")
    if item.clones:
        return decision(False, f"{why}, but {', '.join(item.clones)} is a clone of it")
    if item.holds:
        return decision(False, f"{why}, but the snapshot is held: see `zfs holds {item.name}`")
    return decision(True, why)


def _bookmark(item: LocalBookmark, there: RepositoryAfterPrune, going: Collection[tuple[str, int]]) -> LocalDecision:
    def decision(remove: bool, reason: str) -> LocalDecision:
        return LocalDecision(item.name, item.backup_id, item.guid, 0, remove, reason)

    if item.backup_id in there.kept:
        return decision(False, "its backup stays")
    if item.guid in there.removed.get(item.backup_id, ()):
        return decision(True, "its backup is removed")
    if item.backup_id not in there.removed and (item.backup_id, item.guid) in going:
        return decision(True, "its backup was removed from the repository before")
    return decision(False, "no backup in this repository proves that this bookmark is ours")

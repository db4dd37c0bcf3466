"""Decides which of a host's own snapshots, bookmarks and local sets a prune removes, with reasons.

A prune never relies only on the list in a repository, because every account that can write to the bucket can change
that list. A prune removes a snapshot in three cases:

- The prune removes the backup of the snapshot.
- The record of this host shows that an earlier prune removed that backup.
- The backup stays, but the host keeps only a limited number of sets.

The newest sets of this host always stay.

A bookmark cannot have user properties such as those of zsnapdb. A bookmark belongs to zsnapdb if its name matches
zsnapdb's pattern and the GUID of its snapshot is known. The GUID is known from a manifest, from the record, or from a
snapshot with zsnapdb's property. Separate rules decide when the sets of `zsnapdb snapshot` expire.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from zsnapdb.config.repository import KeepRules
from zsnapdb.planning import creation_order
from zsnapdb.planning.backup_chain import VolumeLink
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.retention import Decision, RetentionFacts

_COPY_OF_SET = re.compile(r".+/(?P<kind>received|prepared)/(?P<name>[^/]+)/c(/.+)?")
"""A dataset of a received or prepared set."""


@dataclass(frozen=True)
class LocalSnapshot:
    """A snapshot of a stored backup: its full name, its holds and clones, and its size.

    The field `used` is the number of bytes that only this snapshot keeps in the pool. Its transaction group is
    `createtxg`. The field `repository` is the id of the repository that contains the backup, or "" if unknown.
    """

    name: str
    backup_id: str
    guid: int
    repository: str
    holds: int
    clones: tuple[str, ...]
    used: int
    createtxg: int = 0


@dataclass(frozen=True)
class LocalBookmark:
    """A bookmark whose name matches zsnapdb's pattern."""

    name: str
    backup_id: str
    guid: int


@dataclass(frozen=True)
class RepositoryAfterPrune:
    """The state of the repository after the planned prune.

    - `kept`: the ids of the backups that stay
    - `removed`: the GUIDs of the backups that this prune removes, by id
    - `removed_before`: the GUIDs of the backups that earlier prunes removed according to this host's record, by id
    - `base`: the id of the next increment's base ("" if there is none)
    - `staying`: for each GUID, the latest kept backup with this snapshot, because of which the snapshot stays
    - `damaged`: the backups that cannot be restored. Their snapshots may be the last intact copy of the data.
    """

    id: str
    kept: Collection[str]
    removed: Mapping[str, Collection[int]]
    base: str
    removed_before: Mapping[str, Collection[int]]
    staying: Mapping[int, str] = field(default_factory=dict)
    damaged: Collection[str] = ()

    def backup_of(self, item: LocalSnapshot | LocalBookmark) -> str:
        """Return the id of the latest kept backup that contains this snapshot.

        If there is none, return the id in the snapshot's name.
        """
        return self.staying.get(item.guid, item.backup_id)


@dataclass(frozen=True)
class LocalLimits:
    """The number of sets that stay on this host.

    At most `most` sets whose backups stay are kept on this host (None for no limit). At least the `least` newest sets
    are kept.
    """

    most: int | None
    least: int


@dataclass(frozen=True)
class LocalDecision:
    """The decision whether a snapshot or bookmark is removed, with its reason."""

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
    limits: LocalLimits,
) -> tuple[LocalDecision, ...]:
    """Return a decision for each snapshot and bookmark."""
    # The transaction groups of this pool determine the order, not a clock.
    made = [
        there.backup_of(item) for item in reversed(creation_order.by_creation(snapshots, lambda item: item.createtxg))
    ]
    newest_first = list(dict.fromkeys(made))
    complete = _complete(snapshots, there)
    ids = [name for name in newest_first if name in there.kept and name not in there.damaged]
    staying = set(ids if limits.most is None else _newest(ids, complete, limits.most)) | {there.base}
    least = limits.least if limits.most is None else min(limits.least, limits.most)
    recent = _newest(newest_first, complete, least)
    decided = [
        LocalDecision(item.name, item.backup_id, item.guid, item.used, *_snapshot(item, there, staying, recent, limits))
        for item in snapshots
    ]
    going = {(d.backup_id, d.guid) for d in decided if d.remove}
    decided += [
        LocalDecision(item.name, item.backup_id, item.guid, 0, *_bookmark(item, there, recent, going))
        for item in bookmarks
    ]
    return tuple(sorted(decided, key=lambda d: (d.backup_id, d.name)))


def _complete(snapshots: Sequence[LocalSnapshot], there: RepositoryAfterPrune) -> set[str]:
    """Return the backups of this repository whose snapshots all exist on this host.

    A set that lost a snapshot, for example by `zfs rename`, does not count as one of the newest sets. A set of another
    repository does not count either.
    """
    here: dict[str, set[int]] = {}
    for item in snapshots:
        here.setdefault(there.backup_of(item), set()).add(item.guid)
    made: dict[str, set[int]] = {name: set() for name in there.kept}
    for guid, name in there.staying.items():
        made.setdefault(name, set()).add(guid)
    for known in (there.removed_before, there.removed):
        made |= {name: set(guids) for name, guids in known.items()}
    return {name for name, guids in here.items() if name in made and made[name] <= guids}


def _newest(newest_first: Sequence[str], complete: Collection[str], count: int) -> set[str]:
    """Return the newest sets, down to the one that is number `count` among the complete sets."""
    chosen = set[str]()
    for name in newest_first:
        if count <= 0:
            break
        chosen.add(name)
        count -= name in complete
    return chosen


def _snapshot(
    item: LocalSnapshot,
    there: RepositoryAfterPrune,
    staying: Collection[str],
    recent: Collection[str],
    limits: LocalLimits,
) -> tuple[bool, str]:
    """Return whether the snapshot is removed, with the reason."""
    stored_as = there.backup_of(item)
    if stored_as in staying:
        if stored_as == there.base:
            return False, "the next increment builds on this snapshot"
        return False, "its backup stays" if stored_as == item.backup_id else f"{stored_as} has it, and stays"
    if stored_as == item.backup_id and item.backup_id in there.removed:
        if item.guid not in there.removed[item.backup_id]:
            return False, "its backup was made of another snapshot with this name"
        why = "its backup is removed"
    elif stored_as in there.damaged:
        return False, "its backup stays, and is damaged"
    elif stored_as in there.kept:
        why = f"its backup stays in the repository; this host keeps the newest {limits.most}"
    elif item.repository == there.id and item.guid in there.removed_before.get(item.backup_id, ()):
        why = "its backup was removed from the repository before"
    elif item.repository == there.id:
        return False, "its backup is not in this repository, and no prune of this host removed it"
    else:
        return False, "its backup is not in this repository"
    if stored_as in recent:
        return False, f"{why}, but this host always keeps its newest {len(recent)} (local_minimum)"
    if item.clones:
        return False, f"{why}, but {', '.join(item.clones)} is a clone of it"
    if item.holds:
        return False, f"{why}, but the snapshot is held: see `zfs holds {item.name}`"
    return True, why


def _bookmark(
    item: LocalBookmark, there: RepositoryAfterPrune, recent: Collection[str], going: Collection[tuple[str, int]]
) -> tuple[bool, str]:
    if there.backup_of(item) in there.kept:
        return False, "its backup stays"
    if there.backup_of(item) in recent:
        return False, "its snapshot stays on this host"
    if item.guid in there.removed.get(item.backup_id, ()):
        return True, "its backup is removed"
    if item.guid in there.removed_before.get(item.backup_id, ()):
        return True, "its backup was removed from the repository before"
    if item.backup_id not in there.removed and (item.backup_id, item.guid) in going:
        return True, "its backup was removed from the repository before"
    return False, "no backup in this repository proves that this bookmark is ours"


def describe_user(dataset: str, instance: str) -> str:
    """Return the kind and name of a dataset that depends on a snapshot: a received set, a prepared set or a clone.

    zsnapdb creates the copy of a set below `received` or `prepared`. Clones of a server are never there.
    """
    copy = _COPY_OF_SET.fullmatch(dataset)
    if copy is None:
        return f"clone {dataset}"
    kind, name = copy["kind"], copy["name"]
    return f"{kind} set {name}, removed by `zsnapdb clone prepare {instance} --from {kind}/{name} --remove`"


@dataclass(frozen=True)
class LocalSet:
    """A snapshot set on this host: its snapshots by role, their state, and its position as text.

    The field `used` is the number of bytes that only this set keeps in the pool. The field `users` contains the clones
    and holds that need the set. If `is_complete` is False, the set lacks a volume and is unusable.
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
        """Always empty, because a set on a host does not depend on any other set."""
        return ()


def decide_local(
    sets: Sequence[LocalSet], rules: KeepRules, now: datetime, *, is_sure: bool = False, unsure: Collection[str] = ()
) -> tuple[Decision, ...]:
    """Return, for each set of `zsnapdb snapshot`, the decision whether it is removed at `now`, with the reason.

    The sets are ordered oldest first, and so are the decisions. A set with users stays. Incomplete sets do not count
    when the rules choose complete sets. An incomplete set stays as long as a complete set of the same age would stay,
    because it may have been complete when it was created. If `is_sure` is set, times in the future are wrong. The
    argument `unsure` contains the sets that were created while the clock may have been behind.
    """
    in_use = {one.backup_id: ", ".join(one.users) for one in sets if one.users}
    known = RetentionFacts(in_use=in_use, is_sure=is_sure, unsure=unsure)
    complete = [one for one in sets if one.is_complete]
    decided = list(retention.decide(complete, rules, now, known).decisions)
    for one in sets:
        if not one.is_complete:
            beside = [other for other in sets if other.is_complete or other is one]
            decisions = retention.decide(beside, rules, now, known).decisions
            decided.append(next(decision for decision in decisions if decision.backup_id == one.backup_id))
    order = {one.backup_id: at for at, one in enumerate(sets)}
    return tuple(sorted(decided, key=lambda decision: order[decision.backup_id]))

"""Facts that a prune needs in addition to manifests: the store's locks, and leftovers of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.domain_types import SNAPSHOT_PREFIX, backup_time, is_backup_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import own_snapshots
from zsnapdb.jobs.base.snapshot_set_properties import BACKUP_PROPERTY, REPOSITORY_PROPERTY, STORED, snapshot_name
from zsnapdb.jobs.host.binlog_spans import points_of
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.planning.binlog import purge
from zsnapdb.planning.binlog.purge import BinlogDecision, RetainedBackups
from zsnapdb.planning.repository.leftover_sweep import BinlogLeftover, Leftover, SweepDecision, decide_binlogs
from zsnapdb.planning.repository.local_snapshot_sets import LocalBookmark, LocalSnapshot
from zsnapdb.repository import layout
from zsnapdb.repository.backup_marks import Unfinished, pins
from zsnapdb.repository.binlog_archive import BinlogArchive, undescribed
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.manifest import is_of_server
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.store.base import ObjectHold
from zsnapdb.zfs import datasets, snapshots

_PARALLEL_REQUESTS = 8
"""The number of parallel requests for the locks of objects."""


def pinned(repository: Repository, instance: str, here: Sequence[str]) -> dict[str, str]:
    """Return the reason for each pin, by backup id. `here` contains the backups that this host recorded as pinned."""
    hidden = {
        name: f"this host pinned it, the repository lacks the pin; `zsnapdb pin {instance} {name} --remove` ends that"
        for name in here
    }
    return hidden | {name: pin.reason for name, pin in pins(repository, instance).items()}


def faulty(repository: Repository, instance: str) -> dict[str, str]:
    """Return the findings about each backup that is recorded as damaged, by backup id."""
    return {
        name: f"{damage.by} found {'; '.join(damage.findings[:2])}"
        for name, damage in known_damage(repository, instance).stored().items()
    }


def locked(repository: Repository, instance: str, names: Sequence[str]) -> dict[str, str]:
    """Return the backups that the store has locked, each with the time at which its lock ends.

    Only the lock of the manifest is checked. The lock of the manifest ends last, because the manifest was written last.
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
    """Return the leftovers of backups: the objects under each backup id that has no manifest.

    The store is first asked for all backup ids, and then for the objects of each id without a manifest.
    """
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
    """Return the snapshot GUIDs of the chosen backups, by backup id."""
    chosen = set(backup_ids)
    return {b.backup_id: frozenset(volume.guid for volume in b.volumes) for b in backups if b.backup_id in chosen}


def in_use(
    backups: Sequence[Summary], base: Summary | None, marks: Sequence[Unfinished], moment: datetime, after: float
) -> dict[str, str]:
    """Return the backups that later runs may need: the bases of the next increment and of unfinished backups."""
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


@dataclass(frozen=True, slots=True)
class OldBinlog:
    """The decision whether to remove an archived binlog. `size` is the binlog's size in bytes in the store."""

    decision: BinlogDecision
    file: ArchivedFile

    @property
    def size(self) -> int:
        return self.file.stored_size


def plan(
    instance: Instance,
    repository: Repository,
    kept: Collection[str],
    summaries: Sequence[Summary],
    order: Sequence[str],
    strangers: Collection[str] = (),
    *,
    knows_any: bool,
) -> tuple[OldBinlog, ...]:
    """Return for each archived binlog of the instance whether to remove it. The backups in `kept` stay.

    `order` contains the ids of all backups, oldest first; unreadable backups may be missing from it. `strangers`
    contains the ids of backups that this host did not store. Unreadable parts of the archive and foreign binlogs are
    kept. A host that knows no backup removes nothing.
    """
    old = expired(instance.archive(repository), kept, summaries, order, strangers)
    files = [one.file for one in old]
    known = own_archived_binlogs.known_binlogs(instance, repository, files) if knows_any and files else frozenset()
    return tuple(OldBinlog(_of_known(one.decision, known), one.file) for one in old)


def expired(
    archive: BinlogArchive,
    kept: Collection[str],
    summaries: Sequence[Summary],
    order: Sequence[str],
    strangers: Collection[str] = (),
) -> tuple[OldBinlog, ...]:
    """Return for each archived binlog of the instance's servers whether to remove it. The backups in `kept` stay."""
    files = archive.load().files
    if not files:
        return ()
    times = [round(backup_time(name).timestamp()) * 1_000_000 for name in kept if name not in strangers]
    # Only backups of servers need binlogs.
    others = {summary.backup_id for summary in summaries if not is_of_server(summary)}
    backups = RetainedBackups(points_of(summaries), frozenset(kept) - others, order, frozenset(strangers))
    decisions = purge.decide(backups, min(times, default=None), files)
    return tuple(OldBinlog(decision, files[decision.at]) for decision in decisions)


def _of_known(decision: BinlogDecision, known: Collection[tuple[str, str]]) -> BinlogDecision:
    if not decision.remove or (decision.incarnation, decision.name) in known:
        return decision
    return replace(decision, remove=False, reason="foreign: this host did not archive it as it is described")


def binlog_leftovers(
    instance: Instance, repository: Repository, moment: datetime, after: float, *, knows_any: bool
) -> tuple[SweepDecision[BinlogLeftover], ...]:
    """Decide which binlog objects without a description to remove. `after` is the minimum age in seconds."""
    undescribed_binlogs = []
    for (incarnation, name), objects in undescribed(BinlogArchive(repository, instance.name)).items():
        times = [item.modified for item in objects if item.modified is not None]
        newest = max(times) if len(times) == len(objects) else None
        undescribed_binlogs.append(
            BinlogLeftover(
                incarnation, name, frozenset(item.key for item in objects), sum(item.size for item in objects), newest
            )
        )
    archived = own_archived_binlogs.archived_here(instance, repository) if undescribed_binlogs else frozenset()
    return decide_binlogs(undescribed_binlogs, moment, after, archived, knows_any=knows_any)


@dataclass(frozen=True)
class LocalLeftovers:
    """Snapshots and bookmarks of an instance's backups on this host.

    `guids` contains the GUIDs of the possible bases, by role.
    """

    snapshots: tuple[LocalSnapshot, ...]
    bookmarks: tuple[LocalBookmark, ...]
    guids: Mapping[str, frozenset[int]]


NOTHING_LOCAL = LocalLeftovers((), (), {})
"""The value for no local leftovers.

It is used on a host without the instance, and for a repository other than the instance's own.
"""


def read_local_sets(instance: Instance, backups: Sequence[Summary]) -> LocalLeftovers:
    """Return the snapshots and bookmarks of the instance's backups on this host.

    If no volumes are configured, the volumes of the newest backup are used.
    """
    if instance.settings.volumes is None and backups:
        instance = instance.with_volumes({volume.role: volume.dataset for volume in backups[-1].volumes})
    if instance.settings.volumes is None or not all(datasets.exists(dataset) for dataset in instance.volumes.values()):
        return NOTHING_LOCAL
    kept, own_bookmarks, guids = [], [], {}
    volumes = list(instance.volumes.values())
    for marked in own_snapshots(instance, volumes, (REPOSITORY_PROPERTY, *snapshots.USES), states=(STORED,)):
        snapshot, marks = marked.snapshot, marked.properties
        kept.append(
            LocalSnapshot(
                snapshot.full_name,
                marks[BACKUP_PROPERTY],
                snapshot.guid,
                marks[REPOSITORY_PROPERTY].replace(datasets.UNSET, ""),
                marked.use.holds,
                marked.use.clones,
                marked.use.used,
                snapshot.createtxg,
            )
        )
    points = snapshots.send_points(volumes)
    for role, dataset in instance.volumes.items():
        for guid, name in points[dataset].bookmarks.items():
            backup_id = name.partition("#")[2].removeprefix(SNAPSHOT_PREFIX)
            if is_backup_id(backup_id) and name == f"{dataset}#{snapshot_name(backup_id)}":
                own_bookmarks.append(LocalBookmark(name, backup_id, guid))
        guids[role] = frozenset(points[dataset].names)
    return LocalLeftovers(tuple(kept), tuple(own_bookmarks), guids)

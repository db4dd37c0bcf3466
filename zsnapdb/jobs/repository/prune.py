"""Prune: what the keep rules let go leaves the repository and this host, archived binlogs that no backup needs too, and leftovers are swept.

Invariants, each kept by the order of the steps:
- Nothing goes without the instance's lease: no backup runs meanwhile.
- An increment goes before what it is an increment of. A run that is ended at any moment leaves every backup that is
  listed whole.
- Of one backup: its local snapshots and bookmarks, then its manifest (from then on it is no backup), then its
  chunks. What a run leaves behind is
  garbage, which a later run finds and sweeps when it is old enough.
- What is removed is read again right before: a manifest that cannot be read now, or says something else than the
  plan, stops everything.
- Only objects whose keys have our layout, and only snapshots that carry our property, are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.errors import CommandError, ConsistencyError, DamagedError, NotOursError, PreflightError
from zsnapdb.jobs.exclusion import writing
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.repository import prune_binlogs
from zsnapdb.jobs.repository.prune_binlogs import OldBinlog
from zsnapdb.jobs.set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    REPOSITORY_PROPERTY,
    STATE_PROPERTY,
    STORED,
    snapshot_name,
)
from zsnapdb.model import SNAPSHOT_PREFIX, is_backup_id
from zsnapdb.planning.chain import Lineage, choose_base
from zsnapdb.planning.repository import local_sets, retention, sweep
from zsnapdb.planning.repository.local_sets import LocalBookmark, LocalDecision, LocalSnapshot
from zsnapdb.planning.repository.retention import Retention, RetentionFacts
from zsnapdb.planning.repository.retention import Unrestorable as Unrestorable
from zsnapdb.planning.repository.sweep import BinlogLeftover, Leftover, SweepDecision, SweptBinlog
from zsnapdb.repository import binlog_removal, layout, verifications
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.pins import pins
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.unfinished import Unfinished, unfinished
from zsnapdb.store.base import Afterlife, ObjectHold
from zsnapdb.zfs import datasets, owned, snapshots

_ASKING = 8
"""Requests in flight when many objects are asked about."""


@dataclass(frozen=True)
class LocalLeftovers:
    """What backups of the instance left on this host, and what an increment could start from: GUIDs per role."""

    snapshots: tuple[LocalSnapshot, ...]
    bookmarks: tuple[LocalBookmark, ...]
    guids: Mapping[str, frozenset[int]]


NOTHING_LOCAL = LocalLeftovers((), (), {})
"""For a host that does not have the instance, and for a repository that is not the instance's own."""


@dataclass(frozen=True)
class PrunePlan:
    """What a prune would do, and why; sizes in bytes, by backup id, of every backup that can be read."""

    instance: str
    backups: Summaries
    retention: Retention
    leftovers: tuple[SweepDecision, ...]
    local: tuple[LocalDecision, ...]
    afterlife: Afterlife
    base: str
    binlogs: tuple[OldBinlog, ...] = ()
    binlog_leftovers: tuple[SweptBinlog, ...] = ()

    @property
    def sizes(self) -> Mapping[str, int]:
        return {backup.backup_id: backup.stored_size for backup in self.backups.backups}

    @property
    def freed(self) -> int:
        """Bytes that leave the repository: chunks of backups, leftovers and archived binlogs."""
        sizes = self.sizes
        backups = sum(sizes[name] for name in self.retention.removal_order)
        swept = sum(s.leftover.size for s in self.leftovers if s.remove) + sum(
            s.leftover.size for s in self.binlog_leftovers if s.remove
        )
        return backups + swept + sum(b.size for b in self.binlogs if b.decision.remove)

    @property
    def freed_locally(self) -> int:
        """Bytes that leave the pool at least: those that one snapshot alone keeps."""
        return sum(d.size for d in self.local if d.remove)


@dataclass(frozen=True)
class PruneResult:
    """What a prune did: the ids that are gone, objects and bytes removed, local snapshots and bookmarks destroyed, and what was left and why."""

    plan: PrunePlan
    removed: tuple[str, ...]
    swept: tuple[str, ...]
    objects: int
    size: int
    destroyed: tuple[str, ...]
    binlogs: tuple[str, ...]
    notes: tuple[str, ...]


def look_locally(instance: Instance, backups: Sequence[Summary]) -> LocalLeftovers:
    """Return what backups of the instance left on this host.

    Volumes that are not configured are those of the newest backup.
    """
    if instance.settings.volumes is None and backups:
        instance = instance.with_volumes({volume.role: volume.dataset for volume in backups[-1].volumes})
    if instance.settings.volumes is None or not all(datasets.exists(dataset) for dataset in instance.volumes.values()):
        return NOTHING_LOCAL
    found, marks_found, guids = [], [], {}
    for role, dataset in instance.volumes.items():
        uses = snapshots.uses(dataset)
        for marked_snapshot in snapshots.owned(
            dataset, [BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY, REPOSITORY_PROPERTY]
        ):
            at, said = marked_snapshot.snapshot, marked_snapshot.properties
            use = uses.get(at.full_name)
            is_own = is_backup_id(said[BACKUP_PROPERTY]) and at.name == snapshot_name(said[BACKUP_PROPERTY])
            if (
                is_own
                and use is not None
                and (said[INSTANCE_PROPERTY], said[STATE_PROPERTY]) == (instance.name, STORED)
            ):
                repository = said[REPOSITORY_PROPERTY].replace(datasets.UNSET, "")
                found.append(
                    LocalSnapshot(
                        at.full_name, said[BACKUP_PROPERTY], at.guid, repository, use.holds, use.clones, use.used
                    )
                )
        marked = snapshots.bookmarks(dataset)
        for guid, name in marked.items():
            backup_id = name.partition("#")[2].removeprefix(SNAPSHOT_PREFIX)
            if is_backup_id(backup_id) and name == f"{dataset}#{snapshot_name(backup_id)}":
                marks_found.append(LocalBookmark(name, backup_id, guid))
        guids[role] = frozenset(marked) | frozenset(snapshots.by_guid(dataset))
    return LocalLeftovers(tuple(found), tuple(marks_found), guids)


def plan(
    instance: Instance, *, local: LocalLeftovers | None = None, unrestorable: Unrestorable = Unrestorable.KEEP
) -> PrunePlan:
    """Return what a prune would do now; changes nothing.

    `local` replaces what is found on this host. ConfigError without keep rules.
    """
    instance.keep_rules()
    return _plan(instance, instance.open_repository(), local, unrestorable)


def _plan(
    instance: Instance, repository: Repository, local: LocalLeftovers | None, unrestorable: Unrestorable
) -> PrunePlan:
    rules, moment = instance.keep_rules(), instance.host.now()
    backups = instance.summaries(repository)
    here = local if local is not None else look_locally(instance, backups.backups)
    begun = unfinished(repository, instance.name)
    base = choose_base(backups.backups, here.guids, instance.send_flags(), now=moment).base if here.guids else None
    known = RetentionFacts(
        unreadable={name: error.message for name, error in backups.unreadable.items()},
        faulty={
            name: f"verify found {'; '.join(damage[:2])}"
            for name, damage in verifications.read(repository, instance.name).damaged().items()
        },
        pinned={name: pin.reason for name, pin in pins(repository, instance.name).items()},
        in_use=_in_use(backups.backups, base, begun, moment, rules.sweep_after),
    )
    decided = retention.decide(backups.backups, rules, moment, known, unrestorable)
    afterlife = repository.afterlife()
    if afterlife.has_locks and decided.removal_order:
        known = replace(known, locked=_locked(repository, instance.name, decided.removal_order))
        decided = retention.decide(backups.backups, rules, moment, known, unrestorable)
    leftovers = sweep.decide(_leftovers(repository, instance.name, backups, begun), moment, rules.sweep_after)
    binlogs = prune_binlogs.plan(repository, instance.name, decided.kept, backups.backups)
    there = local_sets.RepositoryAfterPrune(
        repository.id, set(decided.kept), _guids(backups.backups, decided.removal_order), base.backup_id if base else ""
    )
    local_decisions = local_sets.decide(here.snapshots, here.bookmarks, there, rules.local)
    parts = prune_binlogs.leftovers(repository, instance.name, moment, rules.sweep_after)
    return PrunePlan(instance.name, backups, decided, leftovers, local_decisions, afterlife, there.base, binlogs, parts)


def _guids(backups: Sequence[Summary], wanted: Sequence[str]) -> dict[str, frozenset[int]]:
    chosen = set(wanted)
    return {b.backup_id: frozenset(volume.guid for volume in b.volumes) for b in backups if b.backup_id in chosen}


def _in_use(
    backups: Sequence[Summary], base: Summary | None, begun: Sequence[Unfinished], moment: datetime, after: float
) -> dict[str, str]:
    """Return what runs to come build on: the base of the next increment, and those of backups that were begun and may go on."""
    found = {base.backup_id: "the next increment builds on it"} if base is not None else {}
    stored = {backup.backup_id for backup in backups}
    for mark in begun:
        if mark.backup_id in stored or (mark.modified is not None and (moment - mark.modified).total_seconds() > after):
            continue
        for backup in backups:
            if mark.may_build_on({volume.guid for volume in backup.volumes}):
                found.setdefault(backup.backup_id, f"the unfinished {mark.backup_id} on {mark.host} may build on it")
    return found


def _locked(repository: Repository, instance: str, names: Sequence[str]) -> dict[str, str]:
    """Return which of the backups the store itself keeps.

    The manifest is asked for all: it was written last, so its lock ends last.
    """

    def ask(name: str) -> ObjectHold | None:
        return repository.hold(layout.manifest(instance, name))

    with ThreadPoolExecutor(_ASKING, thread_name_prefix="hold") as pool:
        answers = dict(zip(names, pool.map(ask, names), strict=True))
    return {
        name: f"until {hold.until:%Y-%m-%d %H:%M} UTC" if hold.until else "by a legal hold"
        for name, hold in answers.items()
        if hold is not None
    }


def _leftovers(
    repository: Repository, instance: str, backups: Summaries, begun: Sequence[Unfinished]
) -> list[Leftover]:
    """Return what lies below ids that have no manifest. One listing of the ids, then one of each such id."""
    there = {backup.backup_id for backup in backups.backups} | set(backups.unreadable)
    marked = {mark.backup_id: mark for mark in begun if mark.backup_id not in there}
    names = set(filter(is_backup_id, repository.folders(layout.all_chunks(instance)))) - there
    found = []
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
        found.append(Leftover(name, objects, size, newest, name in marked, foreign))
    return found


def prune(
    instance: Instance,
    *,
    local: LocalLeftovers | None = None,
    unrestorable: Unrestorable = Unrestorable.KEEP,
) -> PruneResult:
    """Do what the plan says. Afterwards every backup that is listed is whole, and what the rules let go is gone.

    DamagedError, with nothing more removed, if a manifest has become unreadable since the plan; RepositoryError if the
    store refuses.
    """
    instance.keep_rules()
    repository = instance.open_repository()
    with writing(instance, repository, "pruning") as still_alone:
        planned = _plan(instance, repository, local, unrestorable)
        return _Run(instance, repository, planned, still_alone).run()


class _Run:
    """One prune under way: what was done so far. `still_alone` raises if the lease is lost."""

    def __init__(
        self,
        instance: Instance,
        repository: Repository,
        planned: PrunePlan,
        still_alone: Callable[[], None],
    ) -> None:
        self._name, self._repository, self._plan = instance.name, repository, planned
        self._still_alone, self._events = still_alone, instance.events
        self._backups = {backup.backup_id: backup for backup in planned.backups.backups}
        self._removed: list[str] = []
        self._swept: list[str] = []
        self._destroyed: list[str] = []
        self._binlogs: list[str] = []
        self._notes: list[str] = []
        self._objects = self._size = 0

    def run(self) -> PruneResult:
        """Do everything, in the order that the invariants need."""
        order = self._plan.retention.removal_order
        if order:
            self._check_what_stays()
        local: dict[str, list[LocalDecision]] = {}
        for decision in self._plan.local:
            if decision.remove:
                local.setdefault(decision.backup_id, []).append(decision)
        for name in order:
            self._remove(name, local.pop(name, []))
        for swept in self._plan.leftovers:
            if swept.remove:
                self._sweep(swept.leftover)
        for name, decisions in local.items():
            self._destroy_of_no_backup(name, decisions)
        for old in self._plan.binlogs:
            if old.decision.remove:
                self._remove_binlog(old)
        for parts in self._plan.binlog_leftovers:
            if parts.remove:
                self._sweep_binlog(parts.leftover)
        done = (
            tuple(self._removed),
            tuple(self._swept),
            self._objects,
            self._size,
            tuple(self._destroyed),
            tuple(self._binlogs),
            tuple(self._notes),
        )
        return PruneResult(self._plan, *done)

    def _check_what_stays(self) -> None:
        """Read again, from the store, the newest backup that stays and can be restored, with its whole chain."""
        lineage = Lineage(self._plan.backups.backups)
        stays = set(self._plan.retention.kept)
        for backup in reversed(self._plan.backups.backups):
            try:
                chain = lineage.chain(backup)
            except DamagedError:
                continue
            if backup.backup_id in stays:
                for link in chain:
                    self._read_again(link)
                return
        raise ConsistencyError(
            "no backup that can be restored would stay", hint="nothing was removed; this is a bug worth reporting"
        )

    def _read_again(self, planned: Summary) -> None:
        found = Summary.of(self._repository.manifest(self._name, planned.backup_id))
        if found != planned:
            raise DamagedError(
                f"manifest {layout.manifest(self._name, planned.backup_id)} is not what it was when it was first read",
                hint=(
                    "it was altered; nothing more was removed. Remove this host's cache below /var/cache/zsnapdb and"
                    " look at `zsnapdb prune --plan`"
                ),
            )

    def _remove(self, name: str, local: Sequence[LocalDecision]) -> None:
        """Remove one backup: what is local, then the manifest, then the chunks."""
        self._read_again(self._backups[name])
        if self._repository.exists(layout.pin(self._name, name)):
            raise PreflightError(
                f"backup {name} was pinned while it was to be pruned", hint="nothing more was removed; run it again"
            )
        self._destroy(local)
        self._still_alone()
        self._repository.delete(layout.manifest(self._name, name))
        self._removed.append(name)
        self._delete_chunks(name)
        self._repository.delete(layout.unfinished_backup(self._name, name))
        self._events.tell(f"removed backup {name}")

    def _delete_chunks(self, name: str) -> None:
        sizes = self._repository.sizes(layout.chunks_of_backup(self._name, name))
        self._repository.delete_many(list(sizes))
        self._objects += len(sizes)
        self._size += sum(sizes.values())

    def _sweep(self, leftover: Leftover) -> None:
        """Remove what an interrupted run left: its mark first, so that none goes on with chunks that are going."""
        name = leftover.backup_id
        if self._has_manifest(name):
            self._notes.append(f"{name} has a manifest that the store did not list; its chunks were left alone")
            return
        self._still_alone()
        self._repository.delete(layout.unfinished_backup(self._name, name))
        self._delete_chunks(name)
        self._swept.append(name)
        self._events.tell(f"swept leftovers of {name}")

    def _remove_binlog(self, old: OldBinlog) -> None:
        """Remove one archived binlog. They go oldest first, so that what is left has no hole in it."""
        self._still_alone()
        self._objects += binlog_removal.remove(BinlogArchive(self._repository, self._name), old.file)
        self._size += old.size
        self._binlogs.append(old.file.name)
        self._events.tell(f"removed archived binlog {old.file.name}")

    def _sweep_binlog(self, leftover: BinlogLeftover) -> None:
        self._still_alone()
        archive = BinlogArchive(self._repository, self._name)
        removed = binlog_removal.sweep(archive, leftover.incarnation, leftover.name, leftover.keys)
        if not removed:
            self._notes.append(f"parts of {leftover.name} were left alone: they are gone, or somebody archives it now")
            return
        self._objects += removed
        self._size += leftover.size
        self._swept.append(f"{leftover.incarnation}/{leftover.name}")
        self._events.tell(f"swept leftovers of binlog {leftover.name}")

    def _has_manifest(self, name: str) -> bool:
        """Whether there is one, read or not."""
        return self._repository.exists(layout.manifest(self._name, name))

    def _destroy_of_no_backup(self, name: str, decisions: Sequence[LocalDecision]) -> None:
        """Destroy what is left here of a backup that stays in the repository, or that is gone from it (which is asked again)."""
        if name not in self._plan.retention.kept and self._has_manifest(name):
            self._notes.append(f"{name} has a manifest that the store did not list; its snapshots were left alone")
            return
        self._still_alone()
        self._destroy(decisions)

    def _destroy(self, decisions: Sequence[LocalDecision]) -> None:
        """Destroy snapshots and bookmarks.

        One that somebody took hold of meanwhile stays and is told; it stops nothing.
        """
        for decision in decisions:
            try:
                if "#" in decision.name:
                    owned.destroy_bookmark(decision.name, decision.guid)
                else:
                    owned.destroy_stored(decision.name, decision.guid, decision.backup_id)
            except (CommandError, NotOursError) as error:
                self._notes.append(f"{decision.name} stays: {error.message}")
                continue
            self._destroyed.append(decision.name)

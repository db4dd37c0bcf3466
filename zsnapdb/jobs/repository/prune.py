"""Prune: removes expired backups from the repository and this host, and unneeded archived binlogs; sweeps leftovers.

Invariants, each kept by the order of the steps:
- Nothing is removed without the lease of the instance, so that no backup runs at the same time.
- An increment is removed before its base. A run that is interrupted at any moment leaves every listed backup complete.
- The removal of a backup is recorded on this host first. Then go its local snapshots and bookmarks, then its manifest
  (from then on it is no backup), then its chunks. The leftovers of an interrupted run are swept by a later run, when
  they are old enough.
- A manifest is read again right before its removal. A manifest that cannot be read now, or differs from the plan,
  stops the run.
- Only objects with keys of the repository's layout, and only snapshots with zsnapdb's property, are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.errors import CommandError, ConsistencyError, DamagedError, NotOursError, PreflightError
from zsnapdb.jobs.base.exclusion import writing
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.removal_time import confirm, removal_time
from zsnapdb.jobs.record import host_record
from zsnapdb.jobs.repository import prune_binlogs, prune_facts
from zsnapdb.jobs.repository.local_leftovers import LocalLeftovers, look_locally
from zsnapdb.jobs.repository.prune_binlogs import OldBinlog
from zsnapdb.planning.chain import Lineage, choose_base
from zsnapdb.planning.repository import local_sets, retention, sweep
from zsnapdb.planning.repository.chain_cost import ChainCost, chain_cost
from zsnapdb.planning.repository.clock import FAR, clock_doubt
from zsnapdb.planning.repository.host_record import RemovedBackup, StoredFinding
from zsnapdb.planning.repository.local_sets import LocalDecision, LocalLimits
from zsnapdb.planning.repository.retention import Retention, RetentionFacts
from zsnapdb.planning.repository.retention import Unrestorable as Unrestorable
from zsnapdb.planning.repository.sweep import BinlogLeftover, Leftover, SweepDecision, SweptBinlog
from zsnapdb.planning.repository.writers import by_backup, writers
from zsnapdb.repository import binlog_removal, layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.known_damage import known_damage
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.unfinished import unfinished
from zsnapdb.store.base import Afterlife
from zsnapdb.zfs import owned


@dataclass(frozen=True)
class PrunePlan:
    """What a prune would do, and why. `sizes` are in bytes, by id, of every readable backup."""

    instance: str
    backups: Summaries
    retention: Retention
    leftovers: tuple[SweepDecision, ...]
    local: tuple[LocalDecision, ...]
    afterlife: Afterlife
    base: str
    binlogs: tuple[OldBinlog, ...] = ()
    binlog_leftovers: tuple[SweptBinlog, ...] = ()
    missing: tuple[StoredFinding, ...] = ()
    """What the repository lacks of what this host stored."""

    @property
    def sizes(self) -> Mapping[str, int]:
        return {backup.backup_id: backup.stored_size for backup in self.backups.backups}

    @property
    def chain_cost(self) -> ChainCost:
        """The backups that stay only because others need them, and what shorter chains would free."""
        return chain_cost(self.retention.decisions, self.backups.backups)

    @property
    def freed(self) -> int:
        """Bytes freed in the repository: chunks of backups, leftovers and archived binlogs."""
        sizes = self.sizes
        backups = sum(sizes[name] for name in self.retention.removal_order)
        swept = sum(s.leftover.size for s in self.leftovers if s.remove) + sum(
            s.leftover.size for s in self.binlog_leftovers if s.remove
        )
        return backups + swept + sum(b.size for b in self.binlogs if b.decision.remove)

    @property
    def freed_locally(self) -> int:
        """Bytes freed in the pool at least: the bytes that a single snapshot alone keeps."""
        return sum(d.size for d in self.local if d.remove)


@dataclass(frozen=True)
class PruneResult:
    """What a prune did: the removed ids, objects and bytes, the destroyed local snapshots and bookmarks.

    `notes` say what was left, and why.
    """

    plan: PrunePlan
    removed: tuple[str, ...]
    swept: tuple[str, ...]
    objects: int
    size: int
    destroyed: tuple[str, ...]
    binlogs: tuple[str, ...]
    notes: tuple[str, ...]


def plan(
    instance: Instance,
    *,
    local: LocalLeftovers | None = None,
    unrestorable: Unrestorable = Unrestorable.KEEP,
    trusts_clock: bool = False,
) -> PrunePlan:
    """Return what a prune would do now; changes nothing.

    `local` replaces the leftovers on this host. ConfigError without a retention policy. PreflightError if the clock of
    this host is far from that of the newest backup, unless the caller trusts it.
    """
    instance.retention_policy()
    moment = instance.host.now() if trusts_clock else removal_time(instance.host).at
    planned = _plan(instance, instance.open_repository(), local, unrestorable, moment)
    if not trusts_clock:
        _refuse_wrong_clock(instance, planned.backups, None)
    return planned


def _refuse_wrong_clock(instance: Instance, backups: Summaries, store: datetime | None) -> None:
    times = [retention.time_of(backup.backup_id) for backup in backups.backups]
    doubt, time = clock_doubt(instance.host.now(), store, times), removal_time(instance.host)
    reasons = [doubt.reason] if doubt is not None else []
    if time.wall - time.at > FAR:
        reasons.append(time.doubt)
    if reasons:
        raise PreflightError(
            f"pruning instance {instance.name} is refused, as its rules count time: {'; '.join(reasons)}",
            hint="nothing was removed. Check `date -u`; if the clock is right, back up first, or use --trust-clock",
        )


def _plan(
    instance: Instance,
    repository: Repository,
    local: LocalLeftovers | None,
    unrestorable: Unrestorable,
    moment: datetime,
) -> PrunePlan:
    policy = instance.retention_policy()
    backups = instance.summaries(repository)
    here = local if local is not None else look_locally(instance, backups.backups)
    marks = unfinished(repository, instance.name)
    checked = host_record.check(instance, repository, backups.backups, tuple(backups.unreadable))
    base: Summary | None = None
    if here.guids:
        flags = instance.send_flags()
        base = choose_base(backups.backups, here.guids, flags, now=moment, future=checked.future).base
    known = RetentionFacts(
        unreadable={name: error.message for name, error in backups.unreadable.items()},
        faulty={
            name: f"{damage.by} found {'; '.join(damage.findings[:2])}"
            for name, damage in known_damage(repository, instance.name).stored().items()
        },
        pinned=prune_facts.pinned(repository, instance.name, host_record.pinned_here(instance, repository)),
        writers=by_backup(writers(backups.backups, moment)),
        in_use=prune_facts.in_use(backups.backups, base, marks, moment, policy.sweep_after),
        order=checked.order,
    )
    decided = retention.decide(backups.backups, policy, moment, known, unrestorable)
    afterlife = repository.afterlife()
    if afterlife.has_locks and decided.removal_order:
        known = replace(known, locked=prune_facts.locked(repository, instance.name, decided.removal_order))
        decided = retention.decide(backups.backups, policy, moment, known, unrestorable)
    leftovers = sweep.decide(
        prune_facts.leftovers(repository, instance.name, backups, marks), moment, policy.sweep_after
    )
    binlogs = prune_binlogs.plan(repository, instance.name, decided.kept, backups.backups)
    there = local_sets.RepositoryAfterPrune(
        repository.id,
        decided.kept,
        prune_facts.guids(backups.backups, decided.removal_order),
        base.backup_id if base else "",
        host_record.removed_here(instance, repository),
        {v.guid: b.backup_id for b in backups.backups if b.backup_id in decided.kept for v in b.volumes},
    )
    limits = LocalLimits(policy.local, policy.local_minimum)
    local_decisions = local_sets.decide(here.snapshots, here.bookmarks, there, limits)
    parts = prune_binlogs.leftovers(repository, instance.name, moment, policy.sweep_after)
    return PrunePlan(
        instance.name,
        backups,
        decided,
        leftovers,
        local_decisions,
        afterlife,
        there.base,
        binlogs,
        parts,
        checked.findings,
    )


def prune(
    instance: Instance,
    *,
    local: LocalLeftovers | None = None,
    unrestorable: Unrestorable = Unrestorable.KEEP,
    trusts_clock: bool = False,
) -> PruneResult:
    """Carry out the plan. Afterwards expired backups are gone, and every listed backup is complete.

    PreflightError if the clock of this host is far from that of the store, or from that of the newest backup, unless
    the caller trusts it. DamagedError if a manifest has changed or become unreadable since the plan: nothing more is
    removed then. RepositoryError if the store refuses.
    """
    instance.retention_policy()
    if trusts_clock:
        confirm(instance.host)
    repository = instance.open_repository()
    with writing(instance, repository, "pruning") as still_alone:
        # A clock that jumped ahead lets nothing go before its time.
        planned = _plan(instance, repository, local, unrestorable, removal_time(instance.host).at)
        if not trusts_clock:
            # The lease was written just now, so its time is the clock of the store.
            written = repository.modified(layout.lease(f"{instance.name}/writer"))
            _refuse_wrong_clock(instance, planned.backups, written)
        return _Run(instance, repository, planned, still_alone).run()


class _Run:
    """A running prune, with what it has done so far. `still_alone` raises LeaseError if the lease is lost."""

    def __init__(
        self,
        instance: Instance,
        repository: Repository,
        planned: PrunePlan,
        still_alone: Callable[[], None],
    ) -> None:
        self._instance, self._name, self._repository, self._plan = instance, instance.name, repository, planned
        self._still_alone, self._events = still_alone, instance.events
        self._backups = {backup.backup_id: backup for backup in planned.backups.backups}
        self._removed: list[str] = []
        self._swept: list[str] = []
        self._destroyed: list[str] = []
        self._binlogs: list[str] = []
        self._notes: list[str] = []
        self._objects = self._size = 0

    def run(self) -> PruneResult:
        """Remove everything in the order of the invariants."""
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
        if self._plan.local:
            left = {decision.backup_id for decision in self._plan.local if decision.name not in self._destroyed}
            host_record.note_settled(self._instance, self._repository, left)
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
        """Read the newest restorable backup that stays again from the store, with its complete chain."""
        lineage = Lineage(self._plan.backups.backups)
        future = {name for finding in self._plan.missing if finding.is_future for name in finding.backups}
        stays = self._plan.retention.kept - future
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
        current = Summary.of(self._repository.manifest(self._name, planned.backup_id))
        if current != planned:
            raise DamagedError(
                f"manifest {layout.manifest(self._name, planned.backup_id)} differs from what this host read before",
                hint=(
                    "nothing more was removed. Remove the cache of this host below /var/cache/zsnapdb, and check"
                    " `zsnapdb prune --plan`"
                ),
            )

    def _remove(self, name: str, local: Sequence[LocalDecision]) -> None:
        """Remove one backup: record that, then its local snapshots and bookmarks, its manifest, and its chunks."""
        self._read_again(self._backups[name])
        if self._repository.exists(layout.pin(self._name, name)):
            raise PreflightError(
                f"backup {name} was pinned during this prune", hint="nothing more was removed; run the prune again"
            )
        guids = tuple(volume.guid for volume in self._backups[name].volumes)
        if (successor := self._plan.retention.replaced.get(name)) is not None:
            host_record.note_successor(self._instance, self._repository, name, self._backups[successor])
        host_record.note_removed(self._instance, self._repository, [RemovedBackup(backup_id=name, guids=guids)])
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
        """Remove the leftovers of an interrupted run: its mark first, so that no run continues with lost chunks."""
        name = leftover.backup_id
        if self._has_manifest(name):
            self._notes.append(f"{name} has a manifest that the store did not list; its chunks stay")
            return
        self._still_alone()
        self._repository.delete(layout.unfinished_backup(self._name, name))
        self._delete_chunks(name)
        self._swept.append(name)
        self._events.tell(f"swept leftovers of {name}")

    def _remove_binlog(self, old: OldBinlog) -> None:
        """Remove one archived binlog. The oldest binlog goes first, so that no gap appears."""
        self._still_alone()
        host_record.note_binlog_removed(self._instance, self._repository, old.file.incarnation, old.file.name)
        self._objects += binlog_removal.remove(BinlogArchive(self._repository, self._name), old.file)
        self._size += old.size
        self._binlogs.append(old.file.name)
        self._events.tell(f"removed archived binlog {old.file.name}")

    def _sweep_binlog(self, leftover: BinlogLeftover) -> None:
        self._still_alone()
        archive = BinlogArchive(self._repository, self._name)
        removed = binlog_removal.sweep(archive, leftover.incarnation, leftover.name, leftover.keys)
        if not removed:
            self._notes.append(
                f"parts of {leftover.name} stay or are already gone: somebody may be archiving this binlog now"
            )
            return
        self._objects += removed
        self._size += leftover.size
        self._swept.append(f"{leftover.incarnation}/{leftover.name}")
        self._events.tell(f"swept leftovers of binlog {leftover.name}")

    def _has_manifest(self, name: str) -> bool:
        """Whether the backup has a manifest, readable or not."""
        return self._repository.exists(layout.manifest(self._name, name))

    def _destroy_of_no_backup(self, name: str, decisions: Sequence[LocalDecision]) -> None:
        """Destroy the local leftovers of a backup that stays in the repository, or is gone from it.

        The store is asked once more whether the backup is gone.
        """
        if name not in self._plan.retention.kept and self._has_manifest(name):
            self._notes.append(f"{name} has a manifest that the store did not list; its snapshots stay")
            return
        self._still_alone()
        self._destroy(decisions)

    def _destroy(self, decisions: Sequence[LocalDecision]) -> None:
        """Destroy snapshots and bookmarks.

        A snapshot that somebody holds or cloned in the meantime stays, with a note. The run continues.
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

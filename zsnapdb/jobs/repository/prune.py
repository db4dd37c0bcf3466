"""Removes expired backups from the repository and this host, unneeded archived binlogs, and leftovers.

The order of the steps guarantees these invariants:
- Every removal needs the lease of the instance, so no backup runs at the same time.
- An increment is removed before its base. So even if a prune is interrupted, every listed backup is complete.
- A backup is removed in this order: its removal is recorded on this host, its local snapshots and bookmarks are
  destroyed, its manifest is removed, and its chunks are removed. Without the manifest, the backup no longer exists. A
  later run removes leftovers that have the minimum age.
- A manifest is read again directly before its removal. If the manifest is now unreadable or differs from the plan, the
  run stops.
- The prune removes an object only if its key belongs to the repository's layout, and a snapshot only if it has
  zsnapdb's property.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from zsnapdb.base.errors import (
    ClockDoubtError,
    CommandError,
    ConsistencyError,
    DamagedError,
    NotOursError,
    PreflightError,
)
from zsnapdb.jobs.base.clock_record import confirm, removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import hold_writer_lease
from zsnapdb.jobs.record import host_backup_record, own_archived_binlogs
from zsnapdb.jobs.record.record_file import StoredCheck
from zsnapdb.jobs.repository import prune_facts, verify
from zsnapdb.jobs.repository.prune_facts import LocalLeftovers, OldBinlog, read_local_sets
from zsnapdb.planning.backup_chain import Lineage, choose_base
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.repository import leftover_sweep, local_snapshot_sets, retention
from zsnapdb.planning.repository.backup_writers import by_backup, writers
from zsnapdb.planning.repository.host_backup_record import RemovedBackup, StoredFinding
from zsnapdb.planning.repository.known_backups import Provenance
from zsnapdb.planning.repository.leftover_sweep import BinlogLeftover, Leftover, SweepDecision
from zsnapdb.planning.repository.local_snapshot_sets import LocalDecision, LocalLimits
from zsnapdb.planning.repository.retention import ChainCost, Retention, RetentionFacts, chain_cost
from zsnapdb.planning.repository.retention import Unrestorable as Unrestorable
from zsnapdb.planning.repository.verification import consequences
from zsnapdb.repository import binlog_archive, layout
from zsnapdb.repository.backup_marks import unfinished
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.store.base import DeletionPolicy
from zsnapdb.zfs import destruction

_PARALLEL_LISTINGS = 8
"""The number of backups whose chunks are listed in parallel."""


@dataclass(frozen=True)
class PrunePlan:
    """The plan of a prune, with reasons. `sizes` contains the size in bytes of every readable backup, by id."""

    instance: str
    backups: Summaries
    retention: Retention
    leftovers: tuple[SweepDecision[Leftover], ...]
    local: tuple[LocalDecision, ...]
    afterlife: DeletionPolicy
    base: str
    binlogs: tuple[OldBinlog, ...] = ()
    binlog_leftovers: tuple[SweepDecision[BinlogLeftover], ...] = ()
    missing: tuple[StoredFinding, ...] = ()
    """Differences between the repository and the backups that this host stored."""
    provenance: Provenance = field(default_factory=Provenance)
    """The backups that this host knows. Other backups are neither counted nor removed."""

    @property
    def counted(self) -> tuple[Summary, ...]:
        """The backups that this host knows, oldest first."""
        return tuple(backup for backup in self.backups.backups if backup.backup_id in self.provenance.proofs)

    @property
    def sizes(self) -> Mapping[str, int]:
        return {backup.backup_id: backup.stored_size for backup in self.backups.backups}

    @property
    def chain_cost(self) -> ChainCost:
        """The backups that are kept only because others need them, and the bytes that shorter chains would free."""
        return chain_cost(self.retention.decisions, self.backups.backups)

    @property
    def freed(self) -> int:
        """The bytes that are freed in the repository: chunks of backups, leftovers and archived binlogs."""
        sizes = self.sizes
        backups = sum(sizes[name] for name in self.retention.removal_order)
        swept = sum(s.leftover.size for s in self.leftovers if s.remove) + sum(
            s.leftover.size for s in self.binlog_leftovers if s.remove
        )
        return backups + swept + sum(b.size for b in self.binlogs if b.decision.remove)

    @property
    def freed_locally(self) -> int:
        """The minimum number of bytes that are freed in the pool.

        Bytes that several snapshots share are not counted.
        """
        return sum(d.size for d in self.local if d.remove)


@dataclass(frozen=True)
class PruneResult:
    """The result of a prune: removed backup ids, objects and bytes, and destroyed local snapshots and bookmarks.

    `notes` lists the objects that were kept, with reasons.
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
    """Return the removals that a prune would make now; change nothing.

    `local` contains the leftovers on this host. If `local` is None, this function reads them.

    Raises:
        ConfigError: there is no retention policy.
        ClockDoubtError: this host's clock differs too much from the newest backup's time, and the caller does not trust
            the clock.
    """
    instance.retention_policy()
    time, now = removal_time(instance.host), instance.host.now()
    if trusts_clock:
        time = RemovalTime(now, now)
    planned = _plan(instance, instance.open_repository(), local, unrestorable, time)
    if not trusts_clock:
        _refuse_wrong_clock(instance, planned.counted, None)
    return planned


def _refuse_wrong_clock(instance: Instance, counted: Sequence[Summary], store: datetime | None) -> None:
    times = [retention.time_of(backup.backup_id) for backup in counted]
    doubt = removal_time(instance.host).prune_doubt(store, times)
    if doubt:
        raise ClockDoubtError(
            f"pruning instance {instance.name} is refused, because its retention rules depend on the clock: {doubt}",
            hint="nothing was removed. Check `date -u`; if the clock is right, back up first, or use --trust-clock",
        )


def _plan(
    instance: Instance,
    repository: Repository,
    local: LocalLeftovers | None,
    unrestorable: Unrestorable,
    time: RemovalTime,
) -> PrunePlan:
    policy, moment = instance.retention_policy(), time.at
    backups, checked = host_backup_record.checked_backups(instance, repository)
    here = local if local is not None else read_local_sets(instance, backups.backups)
    marks = unfinished(repository, instance.name)
    provenance = checked.provenance.for_removal
    base: Summary | None = None
    if here.guids:
        trusted = provenance.trusted(backups.backups)
        base = choose_base(trusted, here.guids, instance.send_flags(), now=moment, unchosen=checked.unchosen).base
    known = replace(
        _pruning_facts(instance, repository, backups, checked, moment),
        in_use=prune_facts.in_use(backups.backups, base, marks, moment, policy.sweep_after),
        is_sure=time.is_sure,
        unsure={name for name in provenance.stored if time.is_unsure(retention.time_of(name))},
    )
    decided = retention.decide(backups.backups, policy, moment, known, unrestorable)
    afterlife = repository.afterlife()
    if afterlife.has_locks and decided.removal_order:
        known = replace(known, locked=prune_facts.locked(repository, instance.name, decided.removal_order))
        decided = retention.decide(backups.backups, policy, moment, known, unrestorable)
    left, knows_any = prune_facts.leftovers(repository, instance.name, backups, marks), provenance.knows_any
    leftovers = leftover_sweep.decide(left, moment, policy.sweep_after, provenance.stored, knows_any=knows_any)
    strangers = frozenset(provenance.foreign) - provenance.stored
    binlogs = prune_facts.plan(
        instance, repository, decided.kept, backups.backups, checked.order, strangers, knows_any=knows_any
    )
    kept = decided.kept & provenance.proofs.keys()
    there = local_snapshot_sets.RepositoryAfterPrune(
        repository.id,
        kept,
        prune_facts.guids(backups.backups, decided.removal_order),
        base.backup_id if base else "",
        # Without a record, nothing proves that this host removed a backup.
        checked.record.removed_guids() if checked.record is not None else {},
        {v.guid: b.backup_id for b in backups.backups if b.backup_id in kept for v in b.volumes},
        kept - set(consequences(provenance.trusted(backups.backups), known.faulty).restorable),
    )
    parts = prune_facts.binlog_leftovers(instance, repository, moment, policy.sweep_after, knows_any=knows_any)
    return PrunePlan(
        instance.name,
        backups,
        decided,
        leftovers,
        local_snapshot_sets.decide(
            here.snapshots, here.bookmarks, there, LocalLimits(policy.local, policy.local_minimum)
        ),
        afterlife,
        there.base,
        binlogs,
        parts,
        checked.findings,
        provenance,
    )


def _pruning_facts(
    instance: Instance, repository: Repository, backups: Summaries, checked: StoredCheck, moment: datetime
) -> RetentionFacts:
    """Return the facts on which decisions about backups depend, except the retention policy."""
    provenance = checked.provenance.for_removal
    counted = [backup for backup in backups.backups if backup.backup_id in provenance.proofs]
    return RetentionFacts(
        # A manifest that was replaced may be put back later. So keep the bases of the original, as for a damaged
        # manifest.
        unreadable={
            name: error.message
            for name, error in backups.unread.items()
            if name not in provenance.unread and (name in backups.unreadable or name in provenance.stored)
        },
        faulty=prune_facts.faulty(repository, instance.name),
        pinned=prune_facts.pinned(repository, instance.name, host_backup_record.pinned_here(instance, repository)),
        writers=by_backup(writers(counted, moment)),
        foreign=provenance.foreign,
        untrusted=provenance.untrusted | provenance.unread,
        begun=provenance.begun,
        order=checked.order,
    )


def prune(
    instance: Instance,
    *,
    local: LocalLeftovers | None = None,
    unrestorable: Unrestorable = Unrestorable.KEEP,
    trusts_clock: bool = False,
) -> PruneResult:
    """Execute the plan. Afterwards expired backups are removed, and every listed backup is complete.

    Raises:
        ConfigError: there is no retention policy.
        ClockDoubtError: this host's clock differs too much from the store's clock or the newest backup's time, and the
            caller does not trust this clock.
        DamagedError: a manifest has changed or become unreadable since the plan. Later removals were not executed.
        RepositoryError: the store refuses a request.
    """
    instance.retention_policy()
    if trusts_clock:
        confirm(instance.host)
    repository = instance.open_repository()
    with hold_writer_lease(instance, repository, "pruning") as still_alone:
        # A clock that jumped ahead must not cause an early removal.
        planned = _plan(instance, repository, local, unrestorable, removal_time(instance.host))
        if not trusts_clock:
            # The lease was just written, so the store's time for its object shows the store's clock.
            written = repository.modified(layout.lease(f"{instance.name}/writer"))
            _refuse_wrong_clock(instance, planned.counted, written)
        host_backup_record.note_digests(instance, repository, planned.provenance, planned.backups.backups)
        return _Run(instance, repository, planned, still_alone, unrestorable).run()


class _Run:
    """A running prune, with its results so far. `still_alone` raises LeaseError if the lease is lost."""

    def __init__(
        self,
        instance: Instance,
        repository: Repository,
        planned: PrunePlan,
        still_alone: Callable[[], None],
        unrestorable: Unrestorable,
    ) -> None:
        self._instance, self._name, self._repository, self._plan = instance, instance.name, repository, planned
        self._still_alone, self._events, self._unrestorable = still_alone, instance.events, unrestorable
        self._backups = {backup.backup_id: backup for backup in planned.backups.backups}
        self._removed: list[str] = []
        self._swept: list[str] = []
        self._destroyed: list[str] = []
        self._binlogs: list[str] = []
        self._notes: list[str] = []
        self._objects = self._size = 0

    def run(self) -> PruneResult:
        """Execute all removals of the plan, in the order that the invariants require."""
        order = self._plan.retention.removal_order
        if order:
            if self._unrestorable is Unrestorable.REMOVE:
                self._check_faulty()
            self._check_what_stays()
        elif any(decision.remove for decision in self._plan.local):
            self._check_chunks(self._stays)
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
            listed = [one.sequence for one in self._plan.counted if one.backup_id not in self._removed]
            host_backup_record.note_settled(self._instance, self._repository, left, listed)
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

    @property
    def _stays(self) -> frozenset[str]:
        """The backups known to this host that the plan keeps, except backups with a future time."""
        future = {name for finding in self._plan.missing if finding.is_future for name in finding.backups}
        return (self._plan.retention.kept & self._plan.provenance.proofs.keys()) - future

    def _check_what_stays(self) -> None:
        """Read again the complete chain of the newest restorable backup that the plan keeps."""
        lineage = Lineage(self._plan.provenance.trusted(self._plan.backups.backups))
        stays = self._stays
        self._check_chunks(stays)
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
            "no restorable backup would remain", hint="nothing was removed; this is a bug worth reporting"
        )

    def _check_chunks(self, stays: Collection[str]) -> None:
        """Raise DamagedError if a kept backup lacks chunks and this damage is not recorded yet.

        Without this check, the prune could keep such a damaged backup and remove a good one.
        """
        faulty = known_damage(self._repository, self._name).stored().keys()
        names = sorted(stays - faulty)
        with ThreadPoolExecutor(_PARALLEL_LISTINGS, thread_name_prefix="chunks") as pool:
            found = pool.map(lambda name: verify.damage_of(self._repository, self._name, name), names)
            for name, damage in zip(names, found, strict=True):
                if damage:
                    raise DamagedError(
                        f"backup {name}, which would stay, is damaged: {damage[0]}",
                        hint=f"nothing was removed. Run `zsnapdb verify {self._name}`, which records the damage; the"
                        f" backup then no longer counts for retention",
                    )

    def _check_faulty(self) -> None:
        """Raise PreflightError if a backup is recorded as damaged but is intact.

        This is checked only if this host trusts no signatures, because then anybody who can write to the repository can
        record damage.
        """
        if self._repository.keyring.trusted:
            return
        faulty = known_damage(self._repository, self._name).stored().keys() & self._plan.provenance.proofs.keys()
        for name in sorted(faulty):
            if not verify.damage_of(
                self._repository, self._name, name, verify.reader(self._instance, self._repository)
            ):
                raise PreflightError(
                    f"a check in the repository marks backup {name} as damaged, but it is intact",
                    hint=f"nothing was removed. Run `zsnapdb verify {self._name} --deep`, which clears it",
                )

    def _read_again(self, planned: Summary) -> None:
        current = Summary.read(self._repository, self._name, planned.backup_id)
        if current != planned:
            raise DamagedError(
                f"manifest {layout.manifest(self._name, planned.backup_id)} differs from what this host read before",
                hint=(
                    "nothing more was removed. Remove the cache of this host below /var/cache/zsnapdb, and check"
                    " `zsnapdb prune --plan`"
                ),
            )

    def _remove(self, name: str, local: Sequence[LocalDecision]) -> None:
        """Record the removal of a backup. Then remove local snapshots and bookmarks, the manifest, and the chunks."""
        self._read_again(self._backups[name])
        if self._repository.exists(layout.pin(self._name, name)):
            raise PreflightError(
                f"backup {name} was pinned during this prune", hint="nothing more was removed; run the prune again"
            )
        backup = self._backups[name]
        guids = tuple(volume.guid for volume in backup.volumes)
        removed = RemovedBackup(backup_id=name, guids=guids, sequence=backup.sequence)
        if (successor := self._plan.retention.replaced.get(name)) is not None:
            host_backup_record.note_successor(self._instance, self._repository, name, self._backups[successor])
        host_backup_record.note_removed(self._instance, self._repository, [removed])
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
        """Remove the leftovers of an interrupted backup.

        The mark of an unfinished backup is removed first, so that no run continues this backup.
        """
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
        """Remove one archived binlog. The caller must begin with the oldest binlog, so that the archive has no gap."""
        self._still_alone()
        own_archived_binlogs.note_binlog_removed(self._instance, self._repository, old.file.incarnation, old.file.name)
        self._objects += binlog_archive.remove(BinlogArchive(self._repository, self._name), old.file)
        own_archived_binlogs.note_binlog_gone(self._instance, self._repository, old.file.incarnation, old.file.name)
        self._size += old.size
        self._binlogs.append(old.file.name)
        self._events.tell(f"removed archived binlog {old.file.name}")

    def _sweep_binlog(self, leftover: BinlogLeftover) -> None:
        self._still_alone()
        archive = BinlogArchive(self._repository, self._name)
        removed = binlog_archive.sweep(archive, leftover.incarnation, leftover.name, leftover.keys)
        if not removed:
            self._notes.append(
                f"parts of {leftover.name} stay or are already gone: somebody may be archiving this binlog now"
            )
            return
        self._objects += removed
        self._size += leftover.size
        own_archived_binlogs.note_binlog_gone(self._instance, self._repository, leftover.incarnation, leftover.name)
        self._swept.append(f"{leftover.incarnation}/{leftover.name}")
        self._events.tell(f"swept leftovers of binlog {leftover.name}")

    def _has_manifest(self, name: str) -> bool:
        """Return whether the backup has a manifest, readable or not."""
        return self._repository.exists(layout.manifest(self._name, name))

    def _destroy_of_no_backup(self, name: str, decisions: Sequence[LocalDecision]) -> None:
        """Destroy the local leftovers of a backup that stays in the repository or no longer exists there.

        If the backup no longer exists, first check again that the store has no manifest of the backup.
        """
        if name not in self._plan.retention.kept and self._has_manifest(name):
            self._notes.append(f"{name} has a manifest that the store did not list; its snapshots stay")
            return
        self._still_alone()
        self._destroy(decisions)

    def _destroy(self, decisions: Sequence[LocalDecision]) -> None:
        """Destroy snapshots and bookmarks.

        If a snapshot has a hold or a clone now, it is kept, a note is added, and the run continues.
        """
        for decision in decisions:
            try:
                if "#" in decision.name:
                    destruction.destroy_bookmark(decision.name, decision.guid)
                else:
                    destruction.destroy_stored(decision.name, decision.guid, decision.backup_id)
            except (CommandError, NotOursError) as error:
                self._notes.append(f"{decision.name} stays: {error.message}")
                continue
            self._destroyed.append(decision.name)

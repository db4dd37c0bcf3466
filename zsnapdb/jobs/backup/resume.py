"""Decides for each interrupted backup of this host whether to continue, finish, abandon or leave the backup.

The function `sweep` removes the leftovers of runs that have no journal.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.errors import DamagedError, NotFound, RepositoryError, ZsnapdbError
from zsnapdb.jobs.backup import local_snapshot, send
from zsnapdb.jobs.backup.send import keep_as_base, settle
from zsnapdb.jobs.base import instance_snapshots
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import SetsHere
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    BASE_TAG,
    LOCAL,
    REPOSITORY_PROPERTY,
    STATE_PROPERTY,
    STORED,
)
from zsnapdb.jobs.host.local_snapshot_sets import unfinished
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.host_backup_record import note_stored
from zsnapdb.planning.backup.resume import Cause, Interrupted, ResumeDecision, ResumeJudgement, Surroundings, judge
from zsnapdb.repository.backup_journal import DISK, BackupJournal, StartedBackup, StartedVolume, journals
from zsnapdb.repository.backup_marks import remove_mark
from zsnapdb.repository.backup_marks import unfinished as announced
from zsnapdb.repository.catalogue import Summaries
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.zfs import destruction, holds, snapshots
from zsnapdb.zfs.snapshots import OwnedSnapshot


@dataclass(frozen=True)
class InterruptedBackup:
    """An interrupted backup of this host, and the decision about this backup.

    The journal is None if it cannot be read.
    """

    backup_id: str
    file: Path
    journal: BackupJournal | None
    judgement: ResumeJudgement


def folder(instance: Instance) -> Path:
    """Return the folder on this host that contains the backup journals of the instance."""
    return instance.host.journals / instance.name


def is_any(instance: Instance) -> bool:
    """Return whether this host has a journal of an interrupted backup."""
    return bool(journals(folder(instance)))


def look(instance: Instance, repository: Repository, *, fresh: bool = False) -> list[InterruptedBackup]:
    """Return this host's interrupted backups with the decision about each of them, oldest first; change nothing."""
    files = journals(folder(instance))
    if not files:
        return []
    stored = repository.backup_ids(instance.name)
    damaged = _damaged_chains(instance, repository)
    backups = []
    for file in files:
        journal = None
        try:
            journal = BackupJournal.read(file, instance.host.journal_disk or DISK)
            around = replace(_surroundings(instance, journal, repository, stored), damaged=damaged)
        except DamagedError as error:
            # A backup with a journal may also have a manifest. Its objects are not removed here, even if the manifest
            # is unreadable.
            decision = ResumeDecision.GIVE_UP if journal is None else ResumeDecision.LEAVE
            judgement = ResumeJudgement(decision, Cause.UNREADABLE, error.message)
        else:
            within = instance.settings.chain.resume_within or None
            judgement = judge(_needs(journal.started), around, within=within, fresh=fresh)
        backups.append(InterruptedBackup(file.name, file, journal, judgement))
    return backups


def _damaged_chains(instance: Instance, repository: Repository) -> Mapping[str, str]:
    """Return the backups that cannot be restored because of known damage, each with the damage of its chain."""
    damage = known_damage(repository, instance.name)
    known, checked = host_backup_record.checked_backups(instance, repository)
    chains = damage.of_chains(checked.provenance.trusted(known.backups))
    stored = damage.stored()
    return {
        backup_id: known.describe()
        for backup_id, of_chain in chains.items()
        for known in of_chain
        if known.name in stored
    }


def _needs(started: StartedBackup) -> Interrupted:
    return Interrupted(
        backup_id=started.backup_id,
        repository_id=started.draft.repository_id,
        recipients=started.recipients,
        send_flags=tuple(volume.send_flags for volume in started.volumes),
        base=started.base,
        snapshots=frozenset((volume.dataset, volume.guid) for volume in started.volumes),
        bases=frozenset(
            (volume.dataset, volume.from_guid) for volume in started.volumes if volume.from_guid is not None
        ),
    )


def _surroundings(
    instance: Instance, journal: BackupJournal, repository: Repository, stored: list[str]
) -> Surroundings:
    started = journal.started
    sources: set[tuple[str, int]] = set()
    origins: set[tuple[str, int]] = set()
    # A deleted dataset has no snapshots and no bookmarks, so it is ignored. Other errors are raised.
    points_by_dataset = snapshots.send_points_there({volume.dataset for volume in started.volumes})
    for dataset, points in points_by_dataset.items():
        sources |= {(dataset, guid) for guid in points.snapshots}
        origins |= {(dataset, guid) for guid in points.names}
    kept = None
    if started.backup_id in stored:
        manifest = repository.manifest(started.draft.instance, started.backup_id)
        # Another host may have stored a manifest under this id, so compare the whole manifest. The draft has no
        # sequence number, because that is only assigned when the manifest is stored.
        if manifest == journal.completed(started.draft.model_copy(update={"sequence": manifest.sequence})):
            kept = frozenset((volume.dataset, volume.guid) for volume in manifest.volumes)
    return Surroundings(
        removal_time(instance.host).at,
        repository.id,
        repository.keyring.recipients,
        instance.send_flags(),
        stored,
        sources,
        origins,
        kept,
    )


def settle_all(instance: Instance, repository: Repository, backups: Iterable[InterruptedBackup]) -> list[BackupJournal]:
    """Finish stored backups, abandon backups that cannot be continued, and return the remaining backups, oldest first.

    The caller holds the lease of the instance.
    """
    to_continue = []
    for item in backups:
        if item.judgement.decision is ResumeDecision.CONTINUE and item.journal is not None:
            to_continue.append(item.journal)
        elif item.judgement.decision is ResumeDecision.FINISH and item.journal is not None:
            note_stored(instance, repository, *repository.digested_manifest(instance.name, item.backup_id))
            settle(instance.name, repository, item.journal)
        elif item.judgement.decision is ResumeDecision.LEAVE:
            instance.events.warn(f"the leftovers of backup {item.backup_id} stay: {item.judgement.text}")
        else:
            give_up(instance, repository, item)
    return to_continue


def give_up(instance: Instance, repository: Repository, item: InterruptedBackup) -> None:
    """Remove the snapshots of an interrupted backup, then its journal. `zsnapdb prune` later removes its chunks.

    If the journal cannot be read, `sweep` later recognises the snapshots by their properties.
    """
    instance.events.warn(f"backup {item.backup_id}, which was interrupted, is given up: {item.judgement.text}")
    with contextlib.suppress(RepositoryError):
        remove_mark(repository, instance.name, item.backup_id)
    if item.journal is None:
        item.file.unlink(missing_ok=True)
        return
    volumes = item.journal.started.volumes
    with _warning_on_error(instance, item.backup_id):
        _release_bases(volumes)
    # Remove the bookmarks even if other removals fail, because only the journal lists bookmarks whose snapshot no
    # longer exists.
    for volume in volumes:
        with _warning_on_error(instance, item.backup_id), contextlib.suppress(NotFound):
            destruction.destroy_bookmark(f"{volume.dataset}#{volume.snapshot}", volume.guid)
    with _warning_on_error(instance, item.backup_id):
        destruction.destroy_set(item.journal.started.snapshots(), item.backup_id)
    item.journal.remove()


def _release_bases(volumes: Sequence[StartedVolume]) -> None:
    """Release a killed run's holds on its bases. Holds on sets remain, because they may belong to the current run."""
    points = snapshots.send_points_there({volume.dataset for volume in volumes if volume.from_guid is not None})
    bases = [
        points[volume.dataset].snapshots.get(volume.from_guid)
        for volume in volumes
        if volume.from_guid is not None and volume.dataset in points
    ]
    holds.release([name for name in bases if name is not None], BASE_TAG)


@contextlib.contextmanager
def _warning_on_error(instance: Instance, backup_id: str) -> Iterator[None]:
    try:
        yield
    except ZsnapdbError as error:
        instance.events.warn(f"not all leftovers of backup {backup_id} could be removed: {error.message}")


def sweep(
    instance: Instance, repository: Repository, known: Summaries, but: Collection[str] = ()
) -> list[OwnedSnapshot]:
    """Keep or remove each snapshot set that has no journal.

    The set of a stored backup becomes a base, and a set that was local becomes local again. All other sets are removed.
    Return the snapshots of the instance's sets on this host, except recorded local sets.

    The snapshots in `but`, which this run itself holds, stay unchanged. The caller acquired the instance's lease before
    it listed the backups `known`. A set with foreign holds or clones is kept, with a warning. Marks of this host's
    unfinished backups are removed too if the backups have no journal on this host.
    """
    stored = known.listed
    journalled = {file.name for file in journals(folder(instance))}
    volumes = set(instance.volumes.values())
    described = local_snapshot.names(instance)
    send.release_base_holds(instance, volumes)
    here = SetsHere.look(instance, volumes)
    seen = here.all_but_noted((instance_snapshots.HOLDS, REPOSITORY_PROPERTY))
    with_holds = [one.snapshot.full_name for one in seen if one.properties[instance_snapshots.HOLDS] != "0"]
    with_holds = [name for name in with_holds if name not in but]
    holds.release(holds.snapshots_with_hold(with_holds, BASE_TAG), BASE_TAG)
    # A killed run may have left its hold on a set that is already stored, or on a local set that was to become a
    # backup.
    settled = {
        one.snapshot.full_name
        for one in seen
        if one.properties[STATE_PROPERTY] in (STORED, LOCAL) and one.properties[BACKUP_PROPERTY] not in journalled
    }
    holds.release(holds.snapshots_with_hold([name for name in with_holds if name in settled]))
    here.note(seen)
    left = {name: names for name, names in unfinished(seen).items() if name not in journalled}
    for backup_id, names in left.items():
        try:
            if backup_id in stored:
                keep_as_base(names, repository)
            elif local_snapshot.read(instance, backup_id) is not None:
                # This set was local before, and no run has stored it in the repository.
                snapshots.set_on(names, {STATE_PROPERTY: LOCAL})
                holds.release(names)
            else:
                destruction.destroy_set(names, backup_id)
        except ZsnapdbError as error:
            instance.events.warn(
                f"snapshots of the interrupted backup {backup_id} could not be removed: {error.message}"
            )
    if left:
        here = SetsHere.look(instance, volumes)
        seen = here.all_but_noted((REPOSITORY_PROPERTY,))
    ids = here.ids | {one.properties[BACKUP_PROPERTY] for one in seen}
    local_snapshot.remove_stale(instance, described, ids)
    for item in announced(repository, instance.name, stored):
        if item.host == socket.gethostname() and item.backup_id not in journalled:
            with contextlib.suppress(RepositoryError):
                remove_mark(repository, instance.name, item.backup_id)
    return seen

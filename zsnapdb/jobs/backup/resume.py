"""What interrupted backups left on this host: which are continued, which given up and why, and what is swept away."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.errors import DamagedError, NotThere, RepositoryError, ZsnapdbError
from zsnapdb.jobs.backup.send import keep_as_base, settle
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.local_sets import unfinished
from zsnapdb.jobs.set_properties import BASE_TAG
from zsnapdb.planning.backup.resume import Because, Interrupted, Judgement, ResumeDecision, Surroundings, judge
from zsnapdb.repository.backup_journal import BackupJournal, Begun, journals
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.unfinished import remove
from zsnapdb.repository.unfinished import unfinished as announced
from zsnapdb.zfs import owned, snapshots


@dataclass(frozen=True)
class Found:
    """An interrupted backup of this host and what becomes of it. `journal` is None if its journal cannot be read."""

    backup_id: str
    file: Path
    journal: BackupJournal | None
    judgement: Judgement


def folder(instance: Instance) -> Path:
    """Return where this host keeps the journals of the instance."""
    return instance.host.journals / instance.name


def is_any(instance: Instance) -> bool:
    """Whether this host has a journal of an interrupted backup."""
    return bool(journals(folder(instance)))


def look(instance: Instance, repository: Repository, *, fresh: bool = False) -> list[Found]:
    """Return the interrupted backups of this host, oldest first, each judged. Changes nothing."""
    stored = repository.backup_ids(instance.name)
    found = []
    for file in journals(folder(instance)):
        try:
            journal = BackupJournal.read(file, instance.host.journal_disk)
        except DamagedError as error:
            found.append(
                Found(file.name, file, None, Judgement(ResumeDecision.GIVE_UP, Because.UNREADABLE, error.message))
            )
            continue
        try:
            around = _surroundings(instance, journal.begun, repository, stored)
        except DamagedError as error:
            # There is a manifest: whatever it says, what belongs to it is not thrown away.
            found.append(
                Found(file.name, file, journal, Judgement(ResumeDecision.LEAVE, Because.UNREADABLE, error.message))
            )
            continue
        within = instance.settings.chain.resume_within or None
        found.append(Found(file.name, file, journal, judge(_needs(journal.begun), around, within=within, fresh=fresh)))
    return found


def _needs(begun: Begun) -> Interrupted:
    return Interrupted(
        backup_id=begun.backup_id,
        repository_id=begun.draft.repository_id,
        recipients=begun.recipients,
        send_flags=tuple(volume.send_flags for volume in begun.volumes),
        base=begun.base,
        snapshots=frozenset((volume.dataset, volume.guid) for volume in begun.volumes),
        bases=frozenset((volume.dataset, volume.from_guid) for volume in begun.volumes if volume.from_guid is not None),
    )


def _surroundings(instance: Instance, begun: Begun, repository: Repository, stored: list[str]) -> Surroundings:
    sources: set[tuple[str, int]] = set()
    origins: set[tuple[str, int]] = set()
    for volume in begun.volumes:
        # A dataset that is gone has neither; any other trouble is not taken for that.
        with contextlib.suppress(NotThere):
            here = {(volume.dataset, guid) for guid in snapshots.by_guid(volume.dataset)}
            sources |= here
            origins |= here | {(volume.dataset, guid) for guid in snapshots.bookmarks(volume.dataset)}
    kept = None
    if begun.backup_id in stored:
        manifest = repository.manifest(begun.draft.instance, begun.backup_id)
        kept = frozenset((volume.dataset, volume.guid) for volume in manifest.volumes)
    return Surroundings(
        instance.host.now(),
        repository.id,
        repository.keyring.recipients,
        instance.send_flags(),
        stored,
        sources,
        origins,
        kept,
    )


def settle_all(instance: Instance, repository: Repository, found: Iterable[Found]) -> list[BackupJournal]:
    """Finish what is stored, give up what cannot go on, and return what is to be continued, oldest first.

    Only with the lease on the instance.
    """
    going_on = []
    for item in found:
        if item.judgement.decision is ResumeDecision.CONTINUE and item.journal is not None:
            going_on.append(item.journal)
        elif item.judgement.decision is ResumeDecision.FINISH and item.journal is not None:
            settle(instance.name, repository, item.journal)
        elif item.judgement.decision is ResumeDecision.LEAVE:
            instance.events.warn(f"what was left of backup {item.backup_id} stays: {item.judgement.text}")
        else:
            give_up(instance, repository, item)
    return going_on


def give_up(instance: Instance, repository: Repository, item: Found) -> None:
    """Remove what an interrupted backup holds here, and then its journal; its chunks are left for `zsnapdb prune`.

    Without a readable journal its snapshots are found by their properties, by `sweep`.
    """
    instance.events.warn(f"backup {item.backup_id}, which was interrupted, is given up: {item.judgement.text}")
    if item.judgement.because is not Because.STORED_OTHERWISE:
        with contextlib.suppress(RepositoryError):
            remove(repository, instance.name, item.backup_id)
    if item.journal is None:
        item.file.unlink(missing_ok=True)
        return
    volumes = item.journal.begun.volumes
    try:
        release_bases(volume.dataset for volume in volumes)
        owned.destroy_set(item.journal.begun.snapshots(), item.backup_id)
        # A bookmark may be left whose snapshot is gone.
        for volume in volumes:
            owned.destroy_bookmark(f"{volume.dataset}#{volume.snapshot}", volume.guid)
    except ZsnapdbError as error:
        instance.events.warn(f"what it left could not all be removed: {error.message}")
    item.journal.remove()


def release_bases(volumes: Iterable[str]) -> None:
    """Let go of the bases that a run which died was sending from. Only while no run is under way."""
    for dataset in volumes:
        with contextlib.suppress(NotThere):
            snapshots.release(snapshots.held_snapshots(dataset, BASE_TAG), BASE_TAG)


def sweep(instance: Instance, repository: Repository) -> None:
    """Settle snapshot sets without a journal: one whose manifest exists becomes a base, any other is removed.

    Only with the lease on the instance.

    What cannot be removed (somebody else holds or cloned it) does not stop a backup. What this host told of backups it
    knows nothing of is removed too.
    """
    stored = set(repository.backup_ids(instance.name))
    journalled = {file.name for file in journals(folder(instance))}
    for backup_id, names in unfinished(instance).items():
        if backup_id in journalled:
            continue
        try:
            if backup_id in stored:
                keep_as_base(names, repository)
            else:
                owned.destroy_set(names, backup_id)
        except ZsnapdbError as error:
            instance.events.warn(
                f"snapshots of the interrupted backup {backup_id} could not be removed: {error.message}"
            )
    release_bases(instance.volumes.values())
    for item in announced(repository, instance.name, sorted(stored)):
        if item.host == socket.gethostname() and item.backup_id not in journalled:
            with contextlib.suppress(RepositoryError):
                remove(repository, instance.name, item.backup_id)

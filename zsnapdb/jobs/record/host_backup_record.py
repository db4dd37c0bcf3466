"""The record of the backups in a repository that this host knows, because it stored, copied or adopted them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError

from zsnapdb.base.domain_types import SnapshotSet, server_name
from zsnapdb.base.errors import DamagedError, ZsnapdbError
from zsnapdb.base.patterns import first_problem
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import own_snapshots
from zsnapdb.jobs.base.own_document_digests import files_of
from zsnapdb.jobs.base.snapshot_set_properties import BACKUP_PROPERTY, REPOSITORY_PROPERTY, STATE_PROPERTY, STORED
from zsnapdb.jobs.record import production_restores
from zsnapdb.jobs.record.record_file import BACKUPS, HostRecord, read
from zsnapdb.jobs.record.record_file import StoredCheck as StoredCheck
from zsnapdb.planning import creation_order
from zsnapdb.planning.repository import host_backup_record
from zsnapdb.planning.repository.backup_writers import PlacedBackup, writers
from zsnapdb.planning.repository.host_backup_record import (
    ArchivedPosition,
    BackupRecord,
    LocalBackup,
    RecordedBackup,
    RecordedVolume,
    RemovedBackup,
    StoredKind,
)
from zsnapdb.planning.repository.host_backup_record import StoredFinding as StoredFinding
from zsnapdb.planning.repository.known_backups import (
    Provenance,
    from_future,
    judge,
    judge_foreign,
    judge_foreign_binlogs,
    judge_future,
)
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.keyring import UntrustedRecord
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.manifest_source import ServerSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs.snapshots import OwnedSnapshot

if TYPE_CHECKING:
    from zsnapdb.repository.binlog_archive_contents import Archive


@contextlib.contextmanager
def unwritten_warned(instance: Instance) -> Iterator[None]:
    """Run the block. If the block cannot write the record, warn and raise no error.

    An error would be misleading, because the repository has already been changed.
    """
    try:
        yield
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else first_problem(error)
        instance.events.warn(
            f"this host's record of its stored backups, below {instance.host.records}, cannot be written ({why}): a"
            " backup that disappears from the repository may not be missed"
        )


def note_stored(instance: Instance, repository: Repository, manifest: Manifest, digest: str | None = None) -> None:
    """Record a backup after its manifest was stored and read back. Warn if the record cannot be written.

    `digest` is the SHA-256 of the manifest's stored line, or None if it is unknown.
    """
    with unwritten_warned(instance):
        backup = _recorded(manifest, digest)
        after = record_of(instance, repository).change_backups(lambda known: known.with_stored(backup))
        if after.stored == (backup,) and not files_of(instance).has_begun:
            files_of(instance).begin({})


def note_adopted(
    instance: Instance,
    repository: Repository,
    adopted: Sequence[Summary],
    order: Sequence[str],
    unread: Collection[str] = (),
) -> None:
    """Record that this host knows the given backups. `order` contains the ids of all listed backups, oldest first.

    `unread` contains the ids of unreadable backups, which may come from the host whose backups this host adopts.

    Raises:
        OSError: the record cannot be written.
    """
    backups = [_recorded(summary, summary.digest) for summary in adopted]
    record_of(instance, repository).change_backups(lambda known: known.with_adopted(backups, order, unread))


def note_digests(instance: Instance, repository: Repository, provenance: Provenance, there: Sequence[Summary]) -> None:
    """Complete a record from an earlier version. Warn if the record cannot be written.

    Afterwards the record contains the digests of all known manifests, the small documents, and the consolidated
    backups.
    """
    if not files_of(instance).has_begun:
        from zsnapdb.jobs.record.own_archived_binlogs import inherit
        from zsnapdb.repository.binlog_archive_contents import load

        inherit(instance, repository, load(repository, instance.name))
    inherited = [_recorded(one, one.digest) for one in there if one.backup_id in provenance.inherited]
    order = [one.backup_id for one in there]
    if provenance.unsealed or inherited:
        with unwritten_warned(instance):
            record_of(instance, repository).change_backups(
                lambda known: known.with_digests(provenance.unsealed).with_adopted(inherited, order)
            )


def record_of(instance: Instance, repository: Repository) -> HostRecord:
    """Return the record of the backups that this host stored, copied or adopted in the repository."""
    return HostRecord.of(instance, repository) or HostRecord.of_copy(instance, repository)


def next_sequence(instance: Instance, repository: Repository, stored: Sequence[int | None]) -> int:
    """Return the sequence number for a new document, and record that this host assigned it.

    `stored` contains the sequence numbers of the documents of the same kind in the repository. Warn if the record
    cannot be written.
    """
    record, number = HostRecord.of(instance, repository), creation_order.next_number(0, stored)
    if record is None:
        return number
    # If the record is unreadable, ignore it. It is replaced only when a backup is stored.
    with contextlib.suppress(DamagedError), unwritten_warned(instance):
        record.backups()
        number = record.change_backups(lambda known: known.with_next_number(stored)).sequence or number
    return number


def note_turn(instance: Instance, repository: Repository, made: SnapshotSet, pool_guid: int) -> None:
    """Record that the set `made` has just been created.

    If the record contains backups from later transaction groups of the same pool, the pool was replaced with an older
    copy of itself. In this case, mark these backups as abandoned and warn about them. Also warn if the record cannot be
    written.
    """
    record = HostRecord.of(instance, repository)
    with contextlib.suppress(DamagedError), unwritten_warned(instance):
        known = record.backups() if record is not None else None
        turned = known.with_turn(pool_guid, made.createtxg) if known is not None else None
        if record is None or known is None or turned is None or turned == known:
            return
        names = ", ".join(sorted(turned.abandoned.keys() - known.abandoned.keys()))
        instance.events.warn(
            f"the pool was replaced by an older copy of itself: set {made.backup_id} comes after {names}, but does"
            f" not contain their state"
        )
        record.change_backups(lambda now: now.with_turn(pool_guid, made.createtxg))


def note_successor(instance: Instance, repository: Repository, backup_id: str, successor: Summary) -> None:
    """Record the successor of a backup of this host before the backup is removed.

    The successor contains the same snapshots as the backup. From now on, if the repository lacks the successor, this
    host reports it as missing. Warn if the record cannot be written.
    """
    recorded = _recorded(successor, successor.digest)
    _change(instance, repository, lambda known: known.with_successor(backup_id, recorded))


def _change(instance: Instance, repository: Repository, change: Callable[[BackupRecord], BackupRecord]) -> None:
    record = HostRecord.of(instance, repository)
    if record is not None:
        with unwritten_warned(instance):
            record.change_backups(change)


def _recorded_there(instance: Instance, repository: Repository) -> BackupRecord | None:
    record = HostRecord.of(instance, repository)
    with contextlib.suppress(DamagedError):
        return record.backups() if record is not None else None
    return None


def _recorded(manifest: Manifest | Summary, digest: str | None) -> RecordedBackup:
    volumes = tuple(
        RecordedVolume(role=v.role, dataset=v.dataset, guid=v.guid, from_guid=v.from_guid, send_flags=v.send_flags)
        for v in manifest.volumes
    )
    recorded = RecordedBackup(
        backup_id=manifest.backup_id,
        volumes=volumes,
        writer=manifest.writer,
        pool_guid=manifest.pool_guid,
        createtxg=manifest.createtxg,
        sequence=manifest.sequence,
        manifest=digest or None,
    )
    source = manifest.source
    if not isinstance(source, ServerSourcePart):
        return recorded
    server = {
        "server": server_name(source.server.server_uuid, source.server.server_id),
        "flavour": source.server.flavour,
        "binlog_file": source.position.binlog_file,
        "binlog_offset": source.position.binlog_offset,
        "gtids": source.position.gtids,
    }
    return recorded.model_copy(update=server)


def note_removed(instance: Instance, repository: Repository, removed: Sequence[RemovedBackup]) -> None:
    """Record backups that this host is about to remove, or that a user wants this host to forget.

    Warn if the record cannot be written.
    """
    if removed:
        _change(instance, repository, lambda known: known.with_removed(removed))


def note_pinned(instance: Instance, repository: Repository, backup_id: str) -> None:
    """Record that this host pinned the backup. Warn if the record cannot be written."""
    _change(instance, repository, lambda known: known.with_pinned(backup_id))


def note_drilled(instance: Instance, repository: Repository, drill_id: str) -> None:
    """Record that this host stored the evidence of a drill. Warn if the record cannot be written."""
    _change(instance, repository, lambda known: known.with_drilled(drill_id))


def drilled_here(instance: Instance, repository: Repository) -> tuple[str, ...]:
    """Return the ids of the newest drills of this host; empty if the record cannot be read."""
    record = _recorded_there(instance, repository)
    return record.drilled if record is not None else ()


def note_unpinned(instance: Instance, repository: Repository, backup_id: str) -> None:
    """Record that the backup is no longer pinned. Warn if the record cannot be written."""
    if backup_id in pinned_here(instance, repository):
        _change(instance, repository, lambda known: known.without_pinned(backup_id))


def pinned_here(instance: Instance, repository: Repository) -> tuple[str, ...]:
    """Return the ids of the backups that this host pinned; empty if the record cannot be read."""
    record = _recorded_there(instance, repository)
    return record.pinned if record is not None else ()


def note_settled(
    instance: Instance, repository: Repository, left: Collection[str], listed: Sequence[int | None]
) -> None:
    """Shorten the records of the removed backups that have no snapshot or bookmark on this host any more.

    `left` contains the ids of the removed backups that must stay recorded. `listed` contains the sequence numbers of
    the backups that stay in the repository.
    """
    _change(instance, repository, lambda known: known.only_removed(left, listed))


def check(
    instance: Instance,
    repository: Repository,
    there: Sequence[PlacedBackup],
    unreadable: Collection[str],
    archive: Archive | None = None,
    *,
    is_writing: bool = False,
    seen: Sequence[OwnedSnapshot] | None = None,
    digests: Mapping[str, str] | None = None,
) -> StoredCheck:
    """Compare the repository with this host's record, and return the missing, foreign and future backups.

    `there` contains the readable backups in the repository. `unreadable` contains the ids of the unreadable backups,
    with their errors if some of them may be foreign. If `archive` is None, the binlogs are not compared. `is_writing`
    says that this host is about to store a backup in the repository. `seen` contains the snapshots of the instance's
    sets on this host, if the caller has just read them. `digests` contains the digests of the manifests; it is None if
    `there` contains them.
    """
    if digests is None:
        digests = {backup.backup_id: backup.digest for backup in there if isinstance(backup, Summary)}
    local = _local_backups(instance, repository, there, seen)
    errors = unreadable if isinstance(unreadable, Mapping) else {}
    known = judge(
        there,
        digests,
        _backup_record(instance, repository),
        local,
        is_signed=bool(repository.keyring.trusted),
        consolidated=[one.backup_id for one in there if isinstance(one, Summary | Manifest) and is_consolidated(one)],
        unbelieved={name: error.message for name, error in errors.items() if isinstance(error, UntrustedRecord)},
        unreadable=[name for name, error in errors.items() if not isinstance(error, UntrustedRecord)],
    )
    archive, strange = known_archive(instance, repository, archive)
    compared = _compare(instance, repository, there, unreadable, archive, is_writing, local, known)
    now = instance.host.latest()
    # A known backup with a future time is not foreign. The clock was wrong at its creation, or is wrong now.
    future = from_future((backup.backup_id for backup in there), now, {*compared.own, *known.proofs})
    named = {name for one in compared.findings if one.kind is StoredKind.OTHER_WRITER for name in one.backups}
    put_back, unknown = _taken_back(instance, there)
    # The base of a new backup is always a snapshot or bookmark of production, so no rollback needs to be detected.
    judged = replace(compared, provenance=known, future=future)
    lost = {} if is_writing else _rolled_back(instance, judged, there)
    findings = (
        *compared.findings,
        *unknown,
        *host_backup_record.judge_marker(repository.note),
        *judge_foreign_binlogs(instance.name, strange, is_signed=bool(repository.keyring.trusted)),
        *judge_future(instance.name, future, now),
        *judge_foreign(instance.name, known.foreign, known.rewritten, {*named, *future}, knows_any=known.knows_any),
    )
    found = replace(
        judged,
        findings=findings,
        known_archive=archive,
        taken_back={**lost, **put_back},
        rolled_back=frozenset(lost).intersection(compared.own or lost),
    )
    # Without a record on this host, only the repository determines the order.
    return replace(found, order=found.order or tuple(backup.backup_id for backup in found.ordered(there)))


def known_archive(
    instance: Instance, repository: Repository, archive: Archive | None
) -> tuple[Archive | None, tuple[str, ...]]:
    """Return the part of the archive that this host knows, and the names of the foreign binlogs in the archive."""
    if archive is None or not archive.files:
        return archive, ()
    # Import late, because only callers with an archive need this module.
    from zsnapdb.jobs.record import own_archived_binlogs

    return own_archived_binlogs.known_part(instance, repository, archive)


def _taken_back(
    instance: Instance, there: Sequence[PlacedBackup]
) -> tuple[Mapping[str, str], tuple[StoredFinding, ...]]:
    try:
        return production_restores.backups_taken_back(instance, there), ()
    except DamagedError as error:
        return {}, (StoredFinding(StoredKind.RECORD_UNREADABLE, error.message, error.hint),)


def _rolled_back(instance: Instance, checked: StoredCheck, there: Sequence[PlacedBackup]) -> Mapping[str, str]:
    """Return the newest trusted backups whose state production does not have, with the reason by backup id.

    For another host's backup, this is no proof of a rollback: a copy of the server may be its source.
    """
    believed = [backup for backup in checked.ordered(there) if backup.backup_id not in checked.unbelieved]
    local = {guid for backup in checked.local for guid in backup.guids.values()}
    places = _volumes(instance, believed).values()
    with contextlib.suppress(DamagedError):
        lost = production_restores.rolled_back(instance, believed, places, local)
        others = lost.keys() - (checked.own or lost.keys())
        return {
            name: f"{reason}, or because another host made it" if name in others else reason
            for name, reason in lost.items()
        }
    return {}


def _continued(instance: Instance, there: Sequence[PlacedBackup]) -> tuple[str, ...]:
    """Return the newest backup if a restore on this host replaced the lost server that wrote it."""
    with contextlib.suppress(DamagedError):
        return production_restores.read_production_restores(instance).continued(there)
    return ()


def is_consolidated(backup: Summary | Manifest) -> bool:
    """Return whether a consolidation created the backup, according to the backup's manifest."""
    return backup.is_full and any(volume.sent_from is not None for volume in backup.volumes)


def _backup_record(instance: Instance, repository: Repository) -> BackupRecord:
    """Return the record of the backups that this host stored, copied or adopted in the repository; empty if unreadable.

    A copy of a repository has the same id and manifests as the original, so the record for the original applies too.
    """
    own = HostRecord.of(replace(instance, is_own_repository=True), repository)
    known = BackupRecord(instance=instance.name, repository_id=repository.id, url=instance.repository.url)
    if not instance.is_own_repository:
        with contextlib.suppress(DamagedError):
            known = HostRecord.of_copy(instance, repository).backups()
    with contextlib.suppress(DamagedError):
        more = own.backups() if own is not None else known
        known = known.with_stored(*more.stored)
        known = known.model_copy(update={"unread": (*known.unread, *more.unread)})
        if instance.is_own_repository:
            known = known.model_copy(update={"removed": more.removed, "gone": more.gone})
    return known


def _compare(
    instance: Instance,
    repository: Repository,
    there: Sequence[PlacedBackup],
    unreadable: Collection[str],
    archive: Archive | None,
    is_writing: bool,
    local: Sequence[LocalBackup],
    provenance: Provenance,
) -> StoredCheck:
    record = HostRecord.of(instance, repository)
    if record is None:
        return StoredCheck()
    others = tuple(_other_repositories(instance, repository))
    try:
        known, archived = record.backups(), record.archived() if archive is not None else None
    except DamagedError as error:
        is_hidden = isinstance(error.__cause__, PermissionError)
        kind = StoredKind.NOT_COMPARED if is_hidden else StoredKind.RECORD_UNREADABLE
        return StoredCheck((StoredFinding(kind, error.message, error.hint), *others))
    policy = instance.settings.keep or instance.repository.keep
    missing = host_backup_record.missing_backups(
        known, local, there, unreadable, policy, removal_time(instance.host).at, provenance.unchosen
    )
    short = host_backup_record.judge_archive(archived, positions(archive)) if archive is not None else None
    # The caller listed the repository before this function read the record. So a backup that was stored in between is
    # not missing.
    if missing:
        by_now = set(repository.backup_ids(instance.name))
        missing = tuple(backup for backup in missing if backup.backup_id not in by_now)
    if short is not None:
        from zsnapdb.repository.binlog_archive_contents import load

        again, _ = known_archive(instance, repository, load(repository, instance.name))
        short = host_backup_record.judge_archive(archived, positions(again)) if again is not None else short
    placed = host_backup_record.order_of(known, local, there, provenance.unchosen)
    stored = tuple(backup.backup_id for backup in known.stored)
    own = tuple(dict.fromkeys((*stored, *(backup.backup_id for backup in local))))
    others = (
        *others,
        *host_backup_record.judge_writers(
            instance.name,
            writers(there, removal_time(instance.host).at),
            own or _continued(instance, there),
            is_writing=is_writing,
        ),
    )
    findings = (
        *host_backup_record.judge_backups(missing, instance.name),
        *([short] if short is not None else []),
        *others,
    )
    reached = archived if short is not None else None
    return StoredCheck(findings, missing, reached, placed, own, archived=archived, record=known, local=tuple(local))


def checked_backups(
    instance: Instance,
    repository: Repository,
    archive: Archive | None = None,
    *,
    seen: Sequence[OwnedSnapshot] | None = None,
) -> tuple[Summaries, StoredCheck]:
    """Return the backups that the repository lists, oldest first, and the result of `check`."""
    known = instance.summaries(repository)
    checked = check(instance, repository, known.backups, known.unread, archive, seen=seen)
    return replace(known, backups=checked.ordered(known.backups)), checked


def choosable(instance: Instance, repository: Repository) -> tuple[Summary, ...]:
    """Return the readable backups, oldest first. Backups that are used only if a user names them are left out."""
    known, checked = checked_backups(instance, repository)
    return tuple(backup for backup in known.backups if backup.backup_id not in checked.unchosen)


def trusted_backups(instance: Instance, repository: Repository) -> tuple[Summary, ...]:
    """Return the readable backups, oldest first, except foreign backups and backups with a future time."""
    known, checked = checked_backups(instance, repository)
    return tuple(backup for backup in known.backups if backup.backup_id not in checked.unbelieved)


def stored_after(instance: Instance, made: SnapshotSet) -> tuple[str, ...]:
    """Return the ids of the backups that are later than a set on this host, according to this host's records.

    Only records about the configured address are read, and unreadable records are ignored. The repository is not read.
    """
    places = sorted({one.dataset for one in made.snapshots.values()})
    return tuple(
        name
        for record in _records(instance)
        for name in record.stored_after(made, production_restores.recorded_pool_guid(places, record.stored))
    )


def recorded_groups(instance: Instance, pool_guid: int) -> Mapping[str, int]:
    """Return the recorded transaction groups of the backups that this host stored from the pool, by backup id."""
    groups: dict[str, int] = {}
    for record in _records(instance):
        groups |= {
            one.backup_id: one.createtxg
            for one in record.stored
            if one.pool_guid == pool_guid and one.createtxg is not None
        }
    return groups


def _records(instance: Instance) -> Iterator[BackupRecord]:
    """Yield the readable records about all repositories that are or were at the configured address."""
    for file in sorted((instance.host.records / instance.name).glob(f"*/{BACKUPS}")):
        with contextlib.suppress(DamagedError):
            record = read(file, BackupRecord)
            if record is not None and record.url == instance.repository.url:
                yield record


def positions(archive: Archive) -> Iterator[ArchivedPosition]:
    """Yield the position that the server had reached at the end of each archived binlog."""
    for file in archive.files:
        yield ArchivedPosition(incarnation=file.incarnation, file=file.name, end=file.end, last_commit=file.last_commit)


def records_of_others(instance: Instance, repository: Repository) -> Iterator[BackupRecord]:
    """Yield the record of each other repository that was at the same address when this host stored backups there."""
    for other in _records(instance):
        if other.stored and other.instance == instance.name and other.repository_id != repository.id:
            yield other


def note_others_removed(instance: Instance, repository: Repository) -> None:
    """Record that this host no longer expects the backups of other repositories at the same address."""
    for other in [*records_of_others(instance, repository)]:
        removed = [
            RemovedBackup(backup_id=one.backup_id, guids=tuple(v.guid for v in one.volumes), acknowledged=True)
            for one in other.stored
        ]
        record = HostRecord.of(instance, replace(repository, id=other.repository_id))
        if record is not None:
            record.change_backups(partial(BackupRecord.with_removed, removed=removed))


def _other_repositories(instance: Instance, repository: Repository) -> Iterator[StoredFinding]:
    for other in records_of_others(instance, repository):
        yield StoredFinding(
            StoredKind.OTHER_REPOSITORY,
            f"{other.url} was another repository (id {other.repository_id}) when this host stored"
            f" {host_backup_record.backups_in(other.stored)} there, the newest {other.stored[-1].backup_id}; now it is"
            f" {repository.id}",
            "check what is mounted at this address, or look for the objects in older versions or in a copy of the"
            f" bucket. If the repository with id {other.repository_id} is not needed, run `zsnapdb acknowledge-removed"
            f" {instance.name}`",
            tuple(backup.backup_id for backup in other.stored),
        )


def _local_backups(
    instance: Instance, repository: Repository, there: Sequence[PlacedBackup], seen: Sequence[OwnedSnapshot] | None
) -> list[LocalBackup]:
    """Return the backups whose snapshots on this host show that they are stored in this repository, oldest first.

    `seen` contains the snapshots of the instance's sets and their repository property, if the caller has just read
    them. The list is empty if this host has no ZFS, or lacks a dataset of the instance.
    """
    future: Collection[str] = ()
    if instance.settings.volumes is None:
        future = from_future((backup.backup_id for backup in there), instance.host.latest(), ())
    volumes = _volumes(instance, [backup for backup in there if backup.backup_id not in future])
    guids: dict[str, dict[str, int]] = {}
    made: dict[str, int] = {}
    try:
        roles = {dataset: role for role, dataset in volumes.items()}
        if seen is None:
            seen = own_snapshots(instance, roles, (REPOSITORY_PROPERTY,), states=(STORED,))
        for marked in seen:
            marks, place = marked.properties, marked.snapshot.dataset
            if (marks[STATE_PROPERTY], marks[REPOSITORY_PROPERTY]) == (STORED, repository.id) and place in roles:
                guids.setdefault(marks[BACKUP_PROPERTY], {})[roles[place]] = marked.snapshot.guid
                made[marks[BACKUP_PROPERTY]] = marked.snapshot.createtxg
    except (ZsnapdbError, OSError):
        return []
    return [LocalBackup(backup_id, by_role, made[backup_id]) for backup_id, by_role in guids.items()]


def _volumes(instance: Instance, backups: Sequence[PlacedBackup]) -> Mapping[str, str]:
    """Return the configured datasets of the instance by role, or else the datasets of the newest backup."""
    if instance.settings.volumes is not None:
        return instance.settings.volumes
    return {volume.role: volume.dataset for volume in backups[-1].volumes} if backups else {}

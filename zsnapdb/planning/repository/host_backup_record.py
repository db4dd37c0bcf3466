"""Records the backups and binlogs that a host stored, and compares this record with a repository. Pure.

The record is stored on the host, so accounts that can write only to the repository cannot change it. The comparison
finds backups that were deleted, hidden or rolled back in the repository. The record is also the only proof that this
host itself removed a backup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from zsnapdb.base.domain_types import Flavour, SnapshotSet
from zsnapdb.base.patterns import (
    BackupId,
    Count,
    DatasetName,
    FileName,
    GtidText,
    Guid,
    RoleName,
    SendFlag,
    SequenceNumber,
    Sha256,
)
from zsnapdb.config.repository import KeepSettings
from zsnapdb.planning import creation_order
from zsnapdb.planning.creation_order import PlacedLink
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.backup_writers import PlacedBackup, Writer, WrittenLink, by_backup, others, writers
from zsnapdb.planning.repository.retention import RetentionFacts

_SHOWN = 3
_DRILLS = 20
"""The maximum number of drills in a record. Only the newest drills are needed."""
_BINLOG = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.[0-9]+$"


class RecordPart(BaseModel):
    """A part of a record. Unknown fields cause a validation error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True)
class RecordedVolume:
    """One volume of a stored backup, with its lineage."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    role: RoleName
    dataset: DatasetName
    guid: Guid
    from_guid: Guid | None
    send_flags: tuple[SendFlag, ...]


class RecordedBackup(RecordPart):
    """A backup that this host stored: its server, its position and its volumes.

    - `server`: the server's name in its binlog history; None if the source is not a server
    - `writer`: the identity of the source
    - `manifest`: the SHA-256 of the manifest's line; None if an earlier version recorded the backup, and no writing
      command of this version has read the manifest since then

    Backups that earlier versions recorded have no pool, transaction group or sequence number.
    """

    backup_id: BackupId
    server: Annotated[str, Field(pattern=r"^[A-Za-z0-9:_ -]{1,80}$")] | None = None
    flavour: Flavour | None = None
    binlog_file: FileName | None = None
    binlog_offset: Count | None = None
    gtids: GtidText | None = None
    volumes: tuple[RecordedVolume, ...]
    writer: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=200)]
    pool_guid: Guid | None = None
    createtxg: Guid | None = None
    sequence: SequenceNumber | None = None
    manifest: Sha256 | None = None


class RemovedBackup(RecordPart):
    """A backup that a prune of this host removed, or whose removal a person acknowledged.

    The host writes this record before it removes the backup, so the removal may be incomplete. `guids` contains the
    GUIDs of the backup's snapshots, and `acknowledged` is True if a person acknowledged the removal.
    """

    backup_id: BackupId
    guids: tuple[Guid, ...]
    acknowledged: bool = False
    manifest: Sha256 | None = None
    sequence: SequenceNumber | None = None


class EvidenceEnd(RecordPart):
    """The newest evidence record that this host wrote or read: its number and the SHA-256 of its object.

    The field `own` contains the ranges of records that this host wrote or adopted, each with its first and last number.
    It is None if an earlier version did not record the ranges.
    """

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1, lt=10**8)]
    sha256: Sha256
    own: tuple[tuple[int, int], ...] | None = None

    def owns(self, number: int) -> bool:
        """Return whether this host wrote or adopted the record with this number."""
        return self.own is None or any(first <= number <= last for first, last in self.own)

    def after(self, before: EvidenceEnd | None) -> EvidenceEnd:
        """Return this end, with the records in `before.own` added to its `own` records."""
        earlier = () if before is None else ((1, before.number),) if before.own is None else before.own
        return self.model_copy(update={"own": creation_order.merged_ranges((*earlier, *(self.own or ())))})


class BackupRecord(RecordPart):
    """The backups of one instance that this host stored in one repository, in the order in which it stored them."""

    format: Literal[1] = 1
    instance: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    repository_id: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=200)]
    url: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
    stored: tuple[RecordedBackup, ...] = ()
    removed: tuple[RemovedBackup, ...] = ()
    gone: tuple[tuple[SequenceNumber, SequenceNumber], ...] = ()
    """The ranges of the sequence numbers of removed backups that `removed` no longer contains."""
    pinned: tuple[BackupId, ...] = ()
    """The backups that this host pinned. No prune on this host removes them, even if the repository lists no pin."""
    drilled: tuple[BackupId, ...] = ()
    """The newest drills whose evidence this host stored in the repository, oldest first."""
    sequence: SequenceNumber | None = None
    """The greatest sequence number that this host assigned to a document of the instance in the repository."""
    abandoned: Mapping[BackupId, Guid] = Field(default_factory=dict)
    """The backups of a pool that is now replaced by an older copy, which lacks these backups.

    Each backup is mapped to the transaction group of the first backup after the replacement.
    """
    unread: tuple[BackupId, ...] = ()
    """The backups whose manifests were unreadable when this host adopted the backups of another host."""

    def with_next_number(self, stored: Iterable[int | None]) -> BackupRecord:
        """Return a copy of the record in which `sequence` is the number of the next new document.

        The argument `stored` contains the numbers of the existing documents.
        """
        given = (one.sequence for one in self.stored)
        return self.model_copy(update={"sequence": creation_order.next_number(self.sequence or 0, (*given, *stored))})

    def with_turn(self, pool_guid: int, createtxg: int) -> BackupRecord:
        """Return the record, updated for a new snapshot set of a pool in the given transaction group.

        The pool's recorded backups with this or a later group become abandoned.
        """
        of_pool = {one.backup_id: one.createtxg or 0 for one in self.stored if one.pool_guid == pool_guid}
        return self.model_copy(update={"abandoned": creation_order.with_turn(self.abandoned, of_pool, createtxg)})

    def with_pinned(self, backup_id: str) -> BackupRecord:
        """Return the record with this host's pin on the backup."""
        return self.model_copy(update={"pinned": tuple(sorted({*self.pinned, backup_id}))})

    def without_pinned(self, backup_id: str) -> BackupRecord:
        """Return the record without this host's pin on the backup."""
        return self.model_copy(update={"pinned": tuple(name for name in self.pinned if name != backup_id)})

    def with_drilled(self, drill_id: str) -> BackupRecord:
        """Return the record with one more drill of this host."""
        return self.model_copy(update={"drilled": (*self.drilled, drill_id)[-_DRILLS:]})

    def with_stored(self, *backups: RecordedBackup) -> BackupRecord:
        """Return the record with the given backups at its end, without those that are already recorded."""
        stored = {backup.backup_id: backup for backup in self.stored}
        for backup in backups:
            stored.setdefault(backup.backup_id, backup)
        return self if len(stored) == len(self.stored) else self.model_copy(update={"stored": tuple(stored.values())})

    def with_adopted(
        self, backups: Sequence[RecordedBackup], order: Sequence[str], unread: Collection[str] = ()
    ) -> BackupRecord:
        """Return the record with the given backups, as if this host had stored them.

        The argument `order` contains the listed ids, oldest first, and `unread` the ids of unreadable backups.
        """
        place = {name: at for at, name in enumerate(order)}
        waiting = [backup for backup in backups if backup.backup_id in place]
        adopted = {backup.backup_id for backup in waiting}
        stored: list[RecordedBackup] = []
        for known in (backup for backup in self.stored if backup.backup_id not in adopted):
            while waiting and place[waiting[0].backup_id] < place.get(known.backup_id, 0):
                stored.append(waiting.pop(0))
            stored.append(known)
        removed = tuple(backup for backup in self.removed if backup.backup_id not in adopted)
        doubtful = tuple(sorted({*self.unread, *unread}))
        return self.model_copy(update={"stored": (*stored, *waiting), "removed": removed, "unread": doubtful})

    def with_digests(self, digests: Mapping[str, str]) -> BackupRecord:
        """Return the record with manifest digests (by backup id) added to the backups that have no digest yet."""
        stored = tuple(
            backup.model_copy(update={"manifest": digests[backup.backup_id]})
            if backup.manifest is None and backup.backup_id in digests
            else backup
            for backup in self.stored
        )
        return self.model_copy(update={"stored": stored})

    def with_removed(self, removed: Sequence[RemovedBackup]) -> BackupRecord:
        """Return the record with the given backups listed as removed, so that they are not reported as missing."""
        seals: dict[str, str | None] = {one.backup_id: one.manifest for one in self.removed}
        seals |= {one.backup_id: one.manifest for one in self.stored}
        sealed = (one.model_copy(update={"manifest": one.manifest or seals.get(one.backup_id)}) for one in removed)
        gone = {backup.backup_id: backup for backup in (*self.removed, *sealed)}
        stored = tuple(backup for backup in self.stored if backup.backup_id not in gone)
        return self.model_copy(update={"stored": stored, "removed": tuple(gone[name] for name in sorted(gone))})

    def with_successor(self, backup_id: str, successor: RecordedBackup) -> BackupRecord:
        """Return the record, with a backup replaced by a successor that has the same snapshots.

        The record stays unchanged if it lacks that backup or already contains the successor.
        """
        if any(known.backup_id == successor.backup_id for known in self.stored):
            return self
        stored = tuple(successor if known.backup_id == backup_id else known for known in self.stored)
        return self.model_copy(update={"stored": stored})

    def stored_after(self, made: SnapshotSet, pool_guid: int) -> tuple[str, ...]:
        """Return the ids of the backups that are later than a set on this host and contain different snapshots.

        If the record contains the set, its order decides. Otherwise, the pool's transaction groups decide. Backups of
        other pools then count as later if they follow a recorded backup of the pool `pool_guid`. If an earlier version
        recorded all backups without transaction groups, the times in the ids decide.
        """
        guids = frozenset(snapshot.guid for snapshot in made.snapshots.values())
        ids = [backup.backup_id for backup in self.stored]
        placed = [backup for backup in self.stored if backup.createtxg is not None]
        if made.backup_id in ids:
            after = list(self.stored[ids.index(made.backup_id) + 1 :])
        elif placed:
            here = [at for at, backup in enumerate(placed) if backup.pool_guid == pool_guid]
            after = placed[here[0] :] if here else []
            is_later = creation_order.made_before
            after = [one for one in after if one.pool_guid != pool_guid or is_later((made,), one.createtxg or 0)]
        else:
            after = [one for one in self.stored if creation_order.is_after(one.backup_id, made.backup_id, ())]
        return tuple(
            one.backup_id
            for one in after
            if one.backup_id not in self.abandoned and frozenset(volume.guid for volume in one.volumes) != guids
        )

    def only_removed(self, names: Collection[str], listed: Iterable[int | None]) -> BackupRecord:
        """Return the record with the given removed backups, and only the sequence numbers of the other ones.

        A number above all numbers in the repository (`listed`) may be assigned again, so its backup stays.
        """
        settled = creation_order.below_newest(listed, {b.backup_id: b.sequence for b in self.removed}, names)
        gone = creation_order.merged_ranges((*self.gone, *((number, number) for number in settled.values())))
        left = tuple(b for b in self.removed if b.backup_id not in settled)
        return self.model_copy(update={"removed": left, "gone": gone})

    def removed_guids(self) -> Mapping[str, frozenset[int]]:
        """Return a map from the id of each backup that this host removed to its snapshot GUIDs."""
        return {backup.backup_id: frozenset(backup.guids) for backup in self.removed}


class ArchivedPosition(RecordPart):
    """The newest position that this host archived: an incarnation, a binlog, and the end of its archived part.

    The time of the last commit is in microseconds UTC.
    """

    format: Literal[1] = 1
    incarnation: BackupId
    file: Annotated[str, Field(pattern=_BINLOG)]
    end: Annotated[int, Field(ge=0)]
    last_commit: Annotated[int, Field(ge=0)] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The number of the binlog and the offset in it. Within an incarnation, later positions compare as greater."""
        return int(self.file.rpartition(".")[2]), self.end


@dataclass(frozen=True, slots=True)
class RecordedBinlog:
    """A rotated binlog that this host archived: its incarnation, its name, and the digest of its description.

    The field `line` contains the SHA-256 of the stored line, or None if an earlier version recorded the binlog. The
    field `removing` is set if a prune on this host began to remove the binlog. The class is a dataclass because a
    record contains many such objects, and a model would need twice as much memory.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    incarnation: BackupId
    file: Annotated[str, Field(pattern=_BINLOG)]
    digest: Sha256
    line: Sha256 | None = None
    removing: bool = False


class ArchivedBinlogs(RecordPart):
    """The rotated binlogs that this host archived or adopted, and the incarnations that it started or adopted."""

    format: Literal[1] = 1
    files: tuple[RecordedBinlog, ...] = ()
    incarnations: tuple[BackupId, ...] = ()

    def with_files(self, files: Sequence[RecordedBinlog], incarnations: Sequence[str] = ()) -> ArchivedBinlogs:
        """Return the record with more binlogs. A new entry replaces an existing entry of the same binlog."""
        known = {(one.incarnation, one.file): one for one in (*self.files, *files)}
        begun = dict.fromkeys((*self.incarnations, *incarnations, *(one.incarnation for one in files)))
        return self.model_copy(update={"files": tuple(known.values()), "incarnations": tuple(begun)})

    def with_removing(self, incarnation: str, file: str) -> ArchivedBinlogs:
        """Return the record, with a binlog marked as being removed by a prune of this host."""
        changed = tuple(
            replace(one, removing=True) if (one.incarnation, one.file) == (incarnation, file) else one
            for one in self.files
        )
        return self.model_copy(update={"files": changed})

    def without(self, incarnation: str, file: str) -> ArchivedBinlogs:
        """Return the record without a binlog, after a prune of this host has removed it."""
        kept = tuple(one for one in self.files if (one.incarnation, one.file) != (incarnation, file))
        return self.model_copy(update={"files": kept})


class StoredKind(StrEnum):
    """The kinds of findings from comparing a repository with the record of this host."""

    BACKUPS_MISSING = "backups-missing"
    EXPIRED_MISSING = "expired-backups-missing"
    ARCHIVE_SHORT = "archive-short"
    OTHER_REPOSITORY = "other-repository"
    RECORD_UNREADABLE = "record-unreadable"
    NOT_COMPARED = "not-compared"
    """Kind of a finding: this account may not read this host's record, so nobody would notice a loss of backups."""
    OTHER_WRITER = "other-writer"
    FROM_FUTURE = "from-the-future"
    """Kind of a finding about a backup with a time in the future that this host did not store."""
    FOREIGN = "foreign"
    """Kind of a finding about a backup for which there is no proof that this host knows it."""
    MARKER_MISSING = "marker-missing"
    """Kind of a finding that the marker, the object that gives the repository its id, is missing."""
    REWRITTEN = "rewritten"
    """Kind of a finding about a backup that this host stored, but whose manifest was replaced."""


@dataclass(frozen=True)
class StoredFinding:
    """A difference between a repository and this host's record, as a text with a hint."""

    kind: StoredKind
    text: str
    hint: str
    backups: tuple[str, ...] = ()

    @property
    def is_archive(self) -> bool:
        return self.kind is StoredKind.ARCHIVE_SHORT

    @property
    def is_future(self) -> bool:
        """Whether the finding is about a backup with a time in the future."""
        return self.kind is StoredKind.FROM_FUTURE

    @property
    def is_alarming(self) -> bool:
        """Whether something that this host stored may be lost."""
        return self.kind not in (
            StoredKind.EXPIRED_MISSING,
            StoredKind.OTHER_WRITER,
            StoredKind.NOT_COMPARED,
            StoredKind.FOREIGN,
            StoredKind.MARKER_MISSING,
        )

    @property
    def is_doubtful(self) -> bool:
        """Whether a person should examine the finding, although it shows no loss."""
        return self.kind in (StoredKind.OTHER_WRITER, StoredKind.FOREIGN, StoredKind.MARKER_MISSING)

    @property
    def is_warning(self) -> bool:
        """Whether a person should examine the finding. Findings about missing expired backups are harmless."""
        return self.kind is not StoredKind.EXPIRED_MISSING


@dataclass(frozen=True)
class LocalBackup:
    """A backup whose local snapshots are marked as stored. The field `guids` contains their GUIDs by role."""

    backup_id: str
    guids: Mapping[str, int]
    createtxg: int = 0


@dataclass(frozen=True)
class _PlacedRecord:
    """A recorded backup with its place in the order."""

    backup_id: str
    volumes: tuple[RecordedVolume, ...]
    pool_guid: int
    createtxg: int
    sequence: int | None


@dataclass(frozen=True)
class _UnknownBackup:
    """A backup that is known only from its local snapshots. Its base is unknown."""

    backup_id: str
    volumes: tuple[RecordedVolume, ...]
    writer: str


@dataclass(frozen=True)
class MissingBackup:
    """A backup that this host stored but the repository lacks.

    If `recorded` is None, the backup is known only from local snapshots, whose GUIDs are in `guids`.
    """

    backup_id: str
    recorded: RecordedBackup | None
    is_expired: bool
    guids: tuple[int, ...] = ()


def missing_backups(
    record: BackupRecord,
    local: Sequence[LocalBackup],
    there: Sequence[PlacedBackup],
    unreadable: Collection[str],
    rules: KeepSettings | None,
    now: datetime,
    foreign: Collection[str] = (),
) -> tuple[MissingBackup, ...]:
    """Return the backups that this host stored and the repository lacks, in the order in which they were stored.

    The argument `there` contains the readable backups of the repository. The argument `unreadable` contains the ids of
    its unreadable backups. A missing backup counts as expired if the retention policy would not keep it, because
    another host may have removed it. Backups in `foreign` never make another backup expire.
    """
    listed = {link.backup_id for link in there} | set(unreadable)
    gone = {backup.backup_id for backup in record.removed}
    recorded = {backup.backup_id: backup for backup in record.stored}
    own = record.stored[-1].writer if record.stored else ""
    unknown = {
        backup.backup_id: _UnknownBackup(
            backup.backup_id,
            tuple(RecordedVolume(role, "", guid, None, ()) for role, guid in sorted(backup.guids.items())),
            own,
        )
        for backup in local
        if backup.backup_id not in recorded and backup.backup_id not in gone
    }
    known: list[WrittenLink] = [*recorded.values(), *unknown.values()]
    lacking = [backup for backup in known if backup.backup_id not in listed]
    if not lacking:
        return ()
    expired: set[str] = set()
    if rules is not None:
        there = [link for link in there if link.backup_id not in foreign]
        by_id = {link.backup_id: link for link in (*lacking, *there)}
        ordered = [by_id[name] for name in order_of(record, local, there) if name in by_id]
        facts = RetentionFacts(
            unreadable=dict.fromkeys(unreadable, "it cannot be read"), writers=by_backup(writers(ordered, now))
        )
        decided = retention.decide(ordered, rules, now, facts)
        expired = set(decided.removal_order)
    return tuple(
        MissingBackup(
            link.backup_id,
            recorded.get(link.backup_id),
            link.backup_id in expired,
            tuple(volume.guid for volume in link.volumes),
        )
        for link in lacking
    )


def order_of(
    record: BackupRecord, local: Sequence[LocalBackup], there: Sequence[PlacedLink], foreign: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the ids of all stored backups and all backups that this host knows, oldest first.

    The argument `there` contains the readable backups. The record, or else local snapshots, determine the places of
    missing and rewritten backups. Backups in `foreign` do not change the order of the others.
    """
    own = {backup.backup_id for backup in record.stored}
    there = [link for link in there if link.backup_id not in foreign or link.backup_id not in own]
    listed = {link.backup_id for link in there}
    missing = [
        _PlacedRecord(one.backup_id, one.volumes, one.pool_guid, one.createtxg, one.sequence)
        for one in record.stored
        if one.backup_id not in listed and one.pool_guid is not None and one.createtxg is not None
    ]
    believed = own | {link.backup_id for link in there if link.backup_id not in foreign}
    ordered: list[PlacedLink] = creation_order.in_order([*there, *missing], believed, record.abandoned)
    return tuple(
        creation_order.with_missing(
            [link.backup_id for link in ordered],
            [backup.backup_id for backup in record.stored],
            [backup.backup_id for backup in creation_order.by_creation(local, lambda one: one.createtxg)],
        )
    )


_LOOK = "check `url` and the mounts; look for the objects in older versions or in a copy of the bucket"


def judge_backups(missing: Sequence[MissingBackup], instance: str) -> tuple[StoredFinding, ...]:
    """Return up to two findings about missing backups: one about needed backups, and one about expired backups."""
    needed = tuple(backup.backup_id for backup in missing if not backup.is_expired)
    expired = tuple(backup.backup_id for backup in missing if backup.is_expired)
    acknowledge = f"run `zsnapdb acknowledge-removed {instance}`"
    findings = []
    if needed:
        lacks = f"the repository lacks {backups_in(needed)} that this host stored: deleted, hidden, or rolled back"
        hint = f"{_LOOK}. If they were removed on purpose, {acknowledge}"
        findings.append(StoredFinding(StoredKind.BACKUPS_MISSING, f"{lacks} ({newest_of(needed)})", hint, needed))
    if expired:
        lacks = f"the repository lacks {backups_in(expired)} that this host stored and that the retention policy does"
        hint = f"if another host prunes this repository, {acknowledge} on this one"
        text = f"{lacks} not keep ({newest_of(expired)})"
        findings.append(StoredFinding(StoredKind.EXPIRED_MISSING, text, hint, expired))
    return tuple(findings)


def judge_writers(
    instance: str, known: Sequence[Writer], own: Sequence[str], *, is_writing: bool
) -> tuple[StoredFinding, ...]:
    """Return a finding for each server of another host that writes backups under the name of the instance.

    The argument `own` contains the ids of backups that this host stored. If it is empty and the repository has only one
    server, there is a finding only if this host is about to write to the repository (`is_writing`).
    """
    if len(known) < 2 and (own or not is_writing):
        return ()
    return tuple(
        StoredFinding(
            StoredKind.OTHER_WRITER,
            f"another server writes backups under the name {instance}: {writer.name}, {backups_in(writer.backups)}, the"
            f" newest {writer.newest}",
            "give each server its own instance name or its own repository, or end the server that this one replaced",
            writer.backups,
        )
        for writer in others(known, own)
    )


def judge_marker(note: str) -> tuple[StoredFinding, ...]:
    """Return a finding if the repository was opened without its marker. In this case, `note` is a message about it."""
    if not note:
        return ()
    hint = "check who can write to the bucket; remove a replaced marker; then `zsnapdb init` writes it again"
    return (StoredFinding(StoredKind.MARKER_MISSING, note.partition("; run ")[0], hint),)


def judge_archive(archived: ArchivedPosition | None, reached: Iterable[ArchivedPosition]) -> StoredFinding | None:
    """Return a finding if the archive ends before the newest position that this host archived.

    The argument `reached` contains the end positions of the binlogs in the archive.
    """
    if archived is None:
        return None
    own = (position for position in reached if position.incarnation == archived.incarnation)
    newest = max(own, key=lambda position: position.place, default=None)
    if newest is not None and newest.place >= archived.place:
        return None
    ends = f"ends at {newest.file}:{newest.end}" if newest is not None else "has nothing of that history"
    return StoredFinding(
        StoredKind.ARCHIVE_SHORT,
        f"this host archived binlogs up to {archived.file}:{archived.end}, and the repository's archive {ends}:"
        " deleted, hidden, or rolled back",
        _LOOK,
    )


def backups_in(names: Sequence[object]) -> str:
    """Return a text with the number of backups."""
    return f"{len(names)} backup{'s' if len(names) > 1 else ''}"


def newest_of(names: Sequence[str]) -> str:
    """Return a text with the newest name and the number of further names."""
    shown = ", ".join(reversed(names[-_SHOWN:]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} older"

"""The documents of a repository and its objects: backups, copies, keys, pins, prunes and verifications."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from zsnapdb.documents.backup import ManifestFields
from zsnapdb.documents.base import (
    At,
    DamageFields,
    Document,
    ErrorFields,
    FindingFields,
    MissingFields,
    Number,
    each,
    error_fields,
    errors_fields,
    iso,
    or_null,
    read,
    rows,
    stamp,
)


def _binlogs(files: Any) -> list[str]:
    return [f"{file.incarnation}/{file.name}" for file in files]


def _stamps(times: Mapping[str, datetime]) -> dict[str, str]:
    return {name: stamp(when) for name, when in times.items()}


class CandidateFields(Document):
    """A foreign backup. The text `objection` says why it can be adopted only by its id, or not at all."""

    backup_id: str
    adopted: bool
    why_foreign: str
    facts: tuple[str, ...]
    objection: str | None


def _candidates(plan: Any) -> list[dict[str, object]]:
    adopted = {backup.backup_id for backup in plan.adopted}
    return [
        {
            "backup_id": one.backup.backup_id,
            "adopted": one.backup.backup_id in adopted,
            "why_foreign": one.why_foreign,
            "facts": one.facts,
            "objection": one.objection or None,
        }
        for one in plan.candidates
    ]


class AdoptDocument(Document):
    """The foreign backups and binlogs.

    The field `planned` says whether the command would adopt them; otherwise, it has adopted them.

    The field `documents` contains the number of small documents by kind: drills, checks, pins, marks, and parts of the
    archive.
    """

    instance: Annotated[str, At("plan.instance")]
    backups: Annotated[tuple[CandidateFields, ...], At("plan", _candidates)]
    binlogs: Annotated[tuple[str, ...], At("plan.binlogs", _binlogs)]
    damaged_binlogs: Annotated[tuple[str, ...], At("plan.damaged")]
    documents: Annotated[
        dict[str, int], At("plan.documents", lambda all_: {kind: len(one) for kind, one in sorted(all_.items())})
    ]
    planned: Annotated[bool, At("is_planned")]


class CopyPlanDocument(Document):
    """The plan of a copy. The field `left_out` lists the backups that are not copied, with the reasons."""

    instance: str
    missing: Annotated[tuple[str, ...], At("missing", each("backup_id"))] = Field(alias="copy")
    there: int
    left_out: dict[str, str]
    unreadable: Annotated[tuple[str, ...], At("unreadable", list)]
    binlogs: Annotated[tuple[str, ...], At("binlogs", _binlogs)]
    bytes: Annotated[int, At("size")]


class CopiedBinlogsFields(Document):
    """The binlogs of a copy."""

    copied: tuple[str, ...]
    failed: dict[str, str]


class CopyDocument(Document):
    """A finished copy."""

    instance: Annotated[str, At("plan.instance")]
    copied: tuple[str, ...]
    there: Annotated[int, At("plan.there")]
    left_out: Annotated[dict[str, str], At("plan.left_out")]
    failed: dict[str, str]
    unreadable: Annotated[tuple[str, ...], At("plan.unreadable", list)]
    binlogs: CopiedBinlogsFields
    bytes: Annotated[int, At("size")]
    seconds: float


class ForgetDocument(Document):
    """The acknowledged backups.

    The field `planned` says whether the command would acknowledge them; otherwise, it has acknowledged them.
    """

    instance: Annotated[str, At("result.instance")]
    backups: Annotated[tuple[str, ...], At("result.backups")]
    planned: Annotated[bool, At("is_planned")]


class MarkerFields(Document):
    """The marker of a repository."""

    format: int
    id: str
    recipients: tuple[str, ...]


class InitDocument(Document):
    """The plan or result of `init`."""

    repository: Annotated[str, At("name")]
    url: str
    step: str
    signing: str
    signer: str | None
    new_key: str | None
    store_note: str
    lifecycle: tuple[FindingFields, ...]
    marker: MarkerFields


class KeyFields(Document):
    """The public parts of a repository's keys, or of two files."""

    repository: str | None
    identity_file: Annotated[str | None, At("identity")]
    recipients: tuple[str, ...]
    signing_key_file: Annotated[str | None, At("signing_key")]
    signer: str | None


class KeysDocument(Document):
    """The public parts of keys."""

    keys: Annotated[tuple[KeyFields, ...], At("files")]


class KeyFileFields(Document):
    """A key file to be written."""

    what: str
    file: str


class KeysPlanDocument(Document):
    """The key files to be written."""

    files: Annotated[tuple[KeyFileFields, ...], At("files", rows("what", "file"))]


class ListedBackupFields(ManifestFields):
    """A backup in a list. The flag `local` says whether its snapshots are on this host.

    The field `foreign` is the reason why the backup is foreign to this host.
    """

    local: bool
    foreign: str | None
    known_damage: tuple[DamageFields, ...]


class SnapshotMarkFields(Document):
    """A snapshot of an unfinished backup."""

    name: str
    guid: int
    from_guid: int | None


class UnfinishedFields(Document):
    """An unfinished backup."""

    backup_id: str
    host: str
    started: str
    snapshots: dict[str, SnapshotMarkFields]


def _backup_rows(inventory: Any) -> list[dict[str, Any]]:
    return [
        {
            **read(ManifestFields, entry.manifest),
            "local": entry.is_local,
            "foreign": inventory.foreign.get(entry.manifest.backup_id),
            "known_damage": inventory.damage.get(entry.manifest.backup_id, ()),
        }
        for entry in inventory.entries
    ]


class InventoryDocument(Document):
    """The backups of an instance."""

    backups: Annotated[tuple[ListedBackupFields, ...], At("", _backup_rows)]
    damaged: Annotated[tuple[ErrorFields, ...], At("damaged", errors_fields)]
    missing: tuple[MissingFields, ...]
    unfinished: tuple[UnfinishedFields, ...]


class StoredInstanceFields(Document):
    """An instance in a repository: the number of its backups, and the greatest backup id."""

    name: str
    backups: int
    newest: str | None


class RepositoryInstancesFields(Document):
    """The instances in a repository, or the error that prevented the listing."""

    repository: str
    url: str
    instances: tuple[StoredInstanceFields, ...]
    error: Annotated[ErrorFields | None, At("error", error_fields)]


class StoredInstancesDocument(Document):
    """The instances in each repository."""

    repositories: tuple[RepositoryInstancesFields, ...]


class ShownBackupFields(ManifestFields):
    """A backup. The flag `local` says whether its snapshots are on this host."""

    local: bool


class BackupDetailDocument(Document):
    """One backup. The field `chain` lists the backups that a restore needs, with the full backup first."""

    backup: Annotated[
        ShownBackupFields, At("entry", lambda entry: {**read(ManifestFields, entry.manifest), "local": entry.is_local})
    ]
    chain: Annotated[tuple[str, ...], At("chain", each("backup_id"))]
    missing: tuple[MissingFields, ...]
    known_damage: Annotated[tuple[DamageFields, ...], At("damage")]


class BackupSettingsDocument(Document):
    """The settings of the server that a backup recorded.

    The fields `lines`, `unchecked`, `statements` and `refused` contain the parts of the printed option file.
    `variables` contains all recorded variables.
    """

    backup_id: str
    instance: str
    created: Annotated[str, At("created", iso)]
    flavour: str
    server_version: str
    lines: Annotated[tuple[str, ...], At("recorded.lines")]
    unchecked: Annotated[tuple[str, ...], At("recorded.unchecked")]
    statements: Annotated[tuple[str, ...], At("recorded.statements")]
    refused: Annotated[tuple[str, ...], At("recorded.refused")]
    variables: dict[str, str]


class PinFields(Document):
    """A pin."""

    backup_id: str
    reason: str
    since: str


class PinDocument(Document):
    """A pin that was created or removed."""

    pin: Annotated[PinFields, At("pinned")]


class RetentionFields(Document):
    """Whether retention keeps a backup, with the reasons."""

    backup_id: str
    keep: bool
    reasons: tuple[str, ...]
    stored_bytes: int | None


class LeftoverFields(Document):
    """The leftovers of a backup that was never completed, or was removed."""

    backup_id: Annotated[str, At("leftover.backup_id")]
    remove: bool
    reason: str
    objects: Annotated[int, At("leftover.objects")]
    bytes: Annotated[int, At("leftover.size")]


class LocalLeftoverFields(Document):
    """A dataset or snapshot on this host."""

    name: str
    backup_id: str
    remove: bool
    reason: str
    bytes: Annotated[int, At("size")]


class PrunedBinlogFields(Document):
    """Whether a prune removes an archived binlog, with the reason."""

    name: Annotated[str, At("file.name")]
    incarnation: Annotated[str, At("file.incarnation")]
    remove: Annotated[bool, At("decision.remove")]
    reason: Annotated[str, At("decision.reason")]
    bytes: Annotated[int, At("size")]


class BinlogLeftoverFields(Document):
    """The leftovers of an archived binlog."""

    name: Annotated[str, At("leftover.name")]
    incarnation: Annotated[str, At("leftover.incarnation")]
    remove: bool
    reason: str
    objects: Annotated[int, At("leftover.keys", len)]
    bytes: Annotated[int, At("leftover.size")]


class BetterCycleFields(Document):
    """A better interval between full backups, which would need less space."""

    seconds: Annotated[float, At("every")]
    backups: Annotated[int, At("fewer")]
    bytes: Annotated[int, At("freed")]


class OnlyNeededFields(Document):
    """The backups that are kept only because other backups are increments of them."""

    backups: Annotated[tuple[str, ...], At("only_needed")]
    bytes: Annotated[int, At("size")]
    full_every: Annotated[BetterCycleFields | None, At("better")]


class VersionsFields(Document):
    """Whether the bucket keeps old versions, and for how many days (null: unknown)."""

    kept: Annotated[bool | None, At("keeps_versions")]
    days: int | None


def _decided(plan: Any) -> list[dict[str, object]]:
    sizes = plan.sizes
    return [
        {"backup_id": one.backup_id, "keep": one.keep, "reasons": one.reasons, "stored_bytes": sizes.get(one.backup_id)}
        for one in plan.retention.decisions
    ]


class PrunePlanDocument(Document):
    """The plan of a prune. The field `base` is the backup that the next increment needs."""

    instance: str
    backups: Annotated[tuple[RetentionFields, ...], At("", _decided)]
    leftovers: tuple[LeftoverFields, ...]
    local: tuple[LocalLeftoverFields, ...]
    binlogs: tuple[PrunedBinlogFields, ...]
    binlog_leftovers: tuple[BinlogLeftoverFields, ...]
    bytes: Annotated[int, At("freed")]
    local_bytes: Annotated[int, At("freed_locally")]
    base: Annotated[str | None, At("base", or_null)]
    only_needed: Annotated[OnlyNeededFields, At("chain_cost")]
    versions: Annotated[VersionsFields, At("afterlife")]


class PruneDocument(Document):
    """A finished prune."""

    plan: PrunePlanDocument
    removed: tuple[str, ...]
    swept: tuple[str, ...]
    destroyed: tuple[str, ...]
    binlogs: tuple[str, ...]
    objects: int
    bytes: Annotated[int, At("size")]
    notes: tuple[str, ...]


class VerifyPlanDocument(Document):
    """The plan of a verification."""

    instance: str
    depth: str
    backups: Annotated[tuple[str, ...], At("chosen")]
    binlogs: Annotated[tuple[str, ...], At("binlogs", _binlogs)]
    bytes: Annotated[int, At("size")]


class DamagedBackupFields(Document):
    """A damaged backup, and the backups that need it."""

    backup_id: str
    damage: tuple[str, ...]
    needed_by: tuple[str, ...]


class DamagedBinlogFields(Document):
    """A damaged archived binlog."""

    file: str
    damage: tuple[str, ...]


class VerifiedBinlogsFields(Document):
    """The binlogs of a verification."""

    verified: Annotated[tuple[str, ...], At("plan.binlogs", _binlogs)]
    damaged: Annotated[tuple[DamagedBinlogFields, ...], At("binlogs", rows("file", "damage"))]


class DamagedDocumentFields(Document):
    """A damaged document other than a manifest, by its key."""

    file: str
    damage: tuple[str, ...]


class VerifiedDocumentsFields(Document):
    """The documents of a verification.

    `without_digest`: documents that an earlier version stored without signature and digest.
    """

    read: int
    without_digest: int
    damaged: Annotated[tuple[DamagedDocumentFields, ...], At("damage", rows("file", "damage"))]


def _damaged(result: Any) -> list[dict[str, object]]:
    needed_by = result.meaning.dependents
    return [
        {"backup_id": name, "damage": damage, "needed_by": needed_by.get(name, ())}
        for name, damage in result.damage.items()
    ]


class VerifyDocument(Document):
    """The result of a verification. The field `unrecorded` is the reason why the findings were not stored.

    The field `last_reads` maps backups to the time (UTC) when `verify --deep` or a drill last read every byte without
    damage.

    The field `raw` lists the verified backups that ZFS itself encrypted. Only a drill proves that such backups can be
    decrypted.
    """

    instance: Annotated[str, At("plan.instance")]
    depth: Annotated[str, At("plan.depth")]
    whole: Annotated[bool, At("is_whole")]
    verified: Annotated[tuple[str, ...], At("plan.chosen")]
    raw: tuple[str, ...]
    damaged: Annotated[tuple[DamagedBackupFields, ...], At("", _damaged)]
    broken: Annotated[dict[str, str], At("meaning.broken")]
    restorable: Annotated[tuple[str, ...], At("meaning.restorable")]
    missing: tuple[MissingFields, ...]
    binlogs: Annotated[VerifiedBinlogsFields, At("")]
    documents: VerifiedDocumentsFields
    last_reads: Annotated[dict[str, str], At("last_reads", _stamps)]
    bytes: Annotated[int, At("size")]
    seconds: Number
    unrecorded: Annotated[str | None, At("unrecorded", or_null)]

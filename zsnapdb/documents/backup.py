"""Documents of backups, manifests, local snapshot sets and their plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from zsnapdb.documents.base import (
    LEFT_OUT,
    At,
    Document,
    Dumped,
    FindingFields,
    Number,
    described,
    dumped,
    each,
    iso,
    may_lack,
    or_null,
)

_SERVER, _MACHINE = "zsnapdb.repository.manifest_source", "zsnapdb.repository.manifest_source"

StoredPart = dict[str, Any]
"""A part of a manifest in its stored form."""


def _server(path: str, convert: Callable[[Any], object] | None = None, otherwise: object = None) -> At:
    """Return the source of a field that only backups of servers have."""
    at = At(path, convert)
    return At("source", lambda source: at.read(source) if source.kind == "server" else otherwise)


def _machine(path: str, convert: Callable[[Any], object] | None = None) -> At:
    """Return the source of a field that only backups of machines have."""
    at = At(path, convert)
    return At("source", lambda source: at.read(source) if source.kind == "vm" else LEFT_OUT)


class ServerFields(Document):
    """The server of a backup."""

    flavour: str
    version: str


class DomainFields(Document):
    """The domain of a virtual machine."""

    name: Annotated[str, At("domain")]
    uuid: str


class VolumeFields(Document):
    """A volume of a backup. A consolidated backup was sent from the scratch dataset `sent_from`."""

    role: str
    dataset: str
    sent_from: str | None
    guid: int
    from_guid: int | None
    plain_bytes: Annotated[int, At("plain_size")]
    stored_bytes: Annotated[int, At("stored_size")]
    chunks: Annotated[int, At("chunk_count")]


class ManifestFields(Document):
    """A backup."""

    backup_id: str
    instance: str
    full: Annotated[bool, At("is_full")]
    created: Annotated[str, At("created", iso)]
    source: Annotated[str, At("source.kind")]
    position: Annotated[Annotated[StoredPart, Dumped(f"{_SERVER}.PositionPart")] | None, _server("position", dumped)]
    lock: Annotated[Annotated[StoredPart, Dumped(f"{_SERVER}.LockPart")] | None, _server("lock", dumped)]
    channels: Annotated[
        tuple[Annotated[StoredPart, Dumped(f"{_SERVER}.ChannelPart")], ...],
        _server("channels", lambda several: [dumped(one) for one in several], ()),
    ]
    server: Annotated[ServerFields | None, _server("server")]
    not_restored: Annotated[tuple[str, ...], _server("rows_not_restored", otherwise=())]
    grade: Annotated[str, _machine("grade")] = may_lack()
    grade_reason: Annotated[str, _machine("reason")] = may_lack()
    domain: Annotated[DomainFields, _machine("")] = may_lack()
    freeze: Annotated[Annotated[StoredPart, Dumped(f"{_MACHINE}.FreezePart")] | None, _machine("freeze", dumped)] = (
        may_lack()
    )
    server_inside: Annotated[
        Annotated[StoredPart, Dumped(f"{_MACHINE}.ServerInsidePart")] | None, _machine("server", dumped)
    ] = may_lack()
    plain_bytes: Annotated[int, At("plain_size")]
    stored_bytes: Annotated[int, At("stored_size")]
    volumes: tuple[VolumeFields, ...]


class BackupDocument(Document):
    """A finished backup.

    The field `repeat` says whether an earlier command had already started the run with this id. If `repeat` is true,
    this command created no backup.
    """

    backup: Annotated[ManifestFields, At("manifest")]
    repeat: Annotated[bool, At("is_repeat")]
    snapshot_seconds: Number
    send_seconds: Number
    warnings: tuple[str, ...]
    continued: Annotated[tuple[str, ...], At("continued", each("backup_id"))]


class InterruptedFields(Document):
    """An interrupted backup, and the action of the next run for it (`decision`), with the reason."""

    backup_id: str
    decision: Annotated[str, At("judgement.decision")]
    why: Annotated[str, At("judgement.because")]
    text: Annotated[str, At("judgement.text")]


class ReasonFields(Document):
    """A reason for a full or incremental backup."""

    why: str
    text: str


class WrittenPathFields(Document):
    """A path to which the server writes, the setting that contains the path, and the role of its volume."""

    path: str
    setting: str
    volume: str


class LockChoiceFields(Document):
    """The lock strategy of the server, with its fallback."""

    strategy: Annotated[str, At("name")]
    reason: str
    fallback: LockChoiceFields | None


def _paths(server: Any) -> list[dict[str, str]]:
    where = server.placement.volume_of
    return [{"path": one.path, "setting": one.what, "volume": where[one.path]} for one in server.paths]


def _sizes(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(size): count for size, count in sorted(counts.items())}


class BackupPlanDocument(Document):
    """The plan of a backup."""

    server: Annotated[str | None, At("server.facts", described)]
    paths: Annotated[tuple[WrittenPathFields, ...], At("server", _paths, LEFT_OUT)] = may_lack()
    block_sizes: Annotated[dict[str, int], At("server.blocks.counts", _sizes, LEFT_OUT)] = may_lack()
    page_size: Annotated[int, At("server.blocks.page_size", default=LEFT_OUT)] = may_lack()
    position: Annotated[str, At("server.position", described, LEFT_OUT)] = may_lack()
    lock: Annotated[LockChoiceFields, At("server.choice", default=LEFT_OUT)] = may_lack()
    findings: Annotated[tuple[FindingFields, ...], At("observed.findings")]
    volumes: Annotated[dict[str, str], At("observed.volumes")]
    deadline_seconds: Annotated[Number, At("deadline")]
    hooks: tuple[str, ...]
    interrupted: tuple[InterruptedFields, ...]
    base: Annotated[str | None, At("base.base.backup_id")]
    reasons: Annotated[tuple[ReasonFields, ...], At("base.reasons")]
    send: Annotated[str, At("form.form")]
    send_reason: Annotated[str, At("form.reason")]
    warnings: Annotated[tuple[str, ...], At("observed.warnings")]


class LocalSnapshotDocument(Document):
    """A new local snapshot set."""

    instance: str
    backup_id: str
    volumes: dict[str, str]
    position: Annotated[str | None, At("position", or_null)]
    seconds: Number
    expired: tuple[str, ...]
    warnings: tuple[str, ...]


class KeptSetFields(Document):
    """Whether retention keeps a local snapshot set, with the reasons."""

    backup_id: str
    keep: bool
    reasons: tuple[str, ...]


class LocalSnapshotPlanDocument(Document):
    """The plan of `zsnapdb snapshot`."""

    volumes: Annotated[dict[str, str], At("observed.volumes")]
    findings: Annotated[tuple[FindingFields, ...], At("observed.findings")]
    local: Annotated[tuple[KeptSetFields, ...], At("decisions")]


class LocalSetFields(Document):
    """A snapshot set on this host."""

    backup_id: str
    state: str
    used: int
    position: Annotated[str | None, At("position", or_null)]
    users: tuple[str, ...]
    snapshots: Annotated[dict[str, str], At("names")]


class LocalSetsDocument(Document):
    """The snapshot sets on this host."""

    sets: tuple[LocalSetFields, ...]

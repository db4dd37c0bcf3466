"""The document of a stored backup: its source and its volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from zsnapdb.documents.base import LEFT_OUT, At, Document, Dumped, dumped, iso, may_lack

_SERVER, _MACHINE = "zsnapdb.repository.manifest_source", "zsnapdb.repository.manifest_source"

StoredPart = dict[str, Any]
"""A part of a manifest as it is stored."""


def _server(path: str, convert: Callable[[Any], object] | None = None, otherwise: object = None) -> At:
    """Return the source of a field of a server's backup."""
    at = At(path, convert)
    return At("source", lambda source: at.read(source) if source.kind == "server" else otherwise)


def _machine(path: str, convert: Callable[[Any], object] | None = None) -> At:
    """Return the source of a field of a machine's backup. A server's backup omits the field."""
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
    """A volume of a backup. `sent_from`: the scratch dataset that a consolidated backup was sent from."""

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

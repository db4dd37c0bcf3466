"""The manifest of a backup in texts and documents."""

from __future__ import annotations

from typing_extensions import TypedDict

from zsnapdb.report.source import SourceFields, source_fields
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest


class VolumeFields(TypedDict):
    """A volume of a backup. `sent_from`: the scratch dataset that a consolidated backup was sent from."""

    role: str
    dataset: str
    sent_from: str | None
    guid: int
    from_guid: int | None
    plain_bytes: int
    stored_bytes: int
    chunks: int


class ManifestFields(SourceFields):
    """A backup."""

    backup_id: str
    instance: str
    full: bool
    created: str
    plain_bytes: int
    stored_bytes: int
    volumes: list[VolumeFields]


def kind_of(is_full: bool) -> str:
    """Return the word for the kind of a backup."""
    return "full" if is_full else "incremental"


def manifest_fields(m: Manifest | Summary) -> ManifestFields:
    """Return the fields of a backup in a document."""
    return {
        "backup_id": m.backup_id,
        "instance": m.instance,
        "full": m.is_full,
        "created": m.created.isoformat(),
        **source_fields(m.source),
        "plain_bytes": m.plain_size,
        "stored_bytes": m.stored_size,
        "volumes": [
            {
                "role": v.role,
                "dataset": v.dataset,
                "sent_from": v.sent_from,
                "guid": v.guid,
                "from_guid": v.from_guid,
                "plain_bytes": v.plain_size,
                "stored_bytes": v.stored_size,
                "chunks": v.chunk_count,
            }
            for v in m.volumes
        ],
    }

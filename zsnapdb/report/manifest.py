"""The manifest of a backup in texts and documents."""

from __future__ import annotations

from typing import Any

from zsnapdb.report.source import source_fields
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest


def kind_of(is_full: bool) -> str:
    """Return the word for the kind of a backup."""
    return "full" if is_full else "incremental"


def manifest_fields(m: Manifest | Summary) -> dict[str, Any]:
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
                "guid": v.guid,
                "from_guid": v.from_guid,
                "plain_bytes": v.plain_size,
                "stored_bytes": v.stored_size,
                "chunks": v.chunk_count,
            }
            for v in m.volumes
        ],
    }

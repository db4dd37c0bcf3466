"""What a clone can be made of."""

from __future__ import annotations

from enum import StrEnum


class SourceKind(StrEnum):
    """Where the snapshots of a clone come from."""

    BACKUP = "backup"
    LIVE = "live"
    COMMIT = "commit"
    REPOSITORY = "repository"
    SNAPSHOT = "snapshot"
    POINT = "point"
    REPLACED = "replaced"

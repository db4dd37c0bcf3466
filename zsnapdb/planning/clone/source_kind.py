"""Kinds of sources of a clone."""

from __future__ import annotations

from enum import StrEnum


class SourceKind(StrEnum):
    """The origin of a clone's snapshots."""

    BACKUP = "backup"
    LIVE = "live"
    COMMIT = "commit"
    REPOSITORY = "repository"
    SNAPSHOT = "snapshot"
    POINT = "point"
    REPLACED = "replaced"

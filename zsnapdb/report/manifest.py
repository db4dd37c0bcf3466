"""The manifest of a backup in texts and documents."""

from __future__ import annotations

from typing import Any

from zsnapdb.documents.manifest import ManifestFields as ManifestFields
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest


def kind_of(is_full: bool) -> str:
    """Return the word for the kind of a backup."""
    return "full" if is_full else "incremental"


def manifest_fields(m: Manifest | Summary) -> Any:
    """Return the fields of a backup in a document."""
    return ManifestFields.of_result(m).json_fields()

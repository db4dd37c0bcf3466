"""Stored documents that were rewritten without a key: their digest is correct again."""

from __future__ import annotations

from zsnapdb.repository import stored_document


def rewritten(body: bytes, *changes: tuple[bytes, bytes]) -> bytes:
    """Return the stored object with these texts replaced in its first line."""
    line = body.partition(b"\n")[0]
    for old, new in changes:
        line = line.replace(old, new)
    return stored_document.with_digest(line)

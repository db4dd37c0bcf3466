"""The word for the kind of a backup, in texts."""

from __future__ import annotations


def kind_of(is_full: bool) -> str:
    """Return the word for the kind of a backup."""
    return "full" if is_full else "incremental"

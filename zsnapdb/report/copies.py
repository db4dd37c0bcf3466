"""Copies whose properties cannot be read, as lists of clones and of machines show them."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.patterns import printable
from zsnapdb.jobs.copies.catalogue import UnreadableCopy


def unreadable_lines(copies: Sequence[UnreadableCopy]) -> list[str]:
    """Return a line for each copy that cannot be read: which it is, why, and what to do."""
    return [printable(f"the {one.what} {one.name} cannot be read: {one.reason} (hint: {one.hint})") for one in copies]

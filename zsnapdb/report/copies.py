"""Copies whose properties cannot be read, as lists of clones and of machines show them."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from zsnapdb.base.patterns import printable
from zsnapdb.jobs.copies.catalogue import UnreadableCopy


class UnreadableFields(TypedDict):
    """A clone or machine whose properties were changed so that they cannot be read. It stays until they are right."""

    name: str
    dataset: str
    instance: str
    reason: str
    hint: str


def unreadable_fields(copies: Sequence[UnreadableCopy]) -> list[UnreadableFields]:
    """Return the JSON fields of copies that cannot be read."""
    return [
        {
            "name": one.name,
            "dataset": one.anchor,
            "instance": one.instance,
            "reason": one.reason,
            "hint": one.hint,
        }
        for one in copies
    ]


def unreadable_lines(copies: Sequence[UnreadableCopy]) -> list[str]:
    """Return a line for each copy that cannot be read: which it is, why, and what to do."""
    return [printable(f"the {one.what} {one.name} cannot be read: {one.reason} (hint: {one.hint})") for one in copies]

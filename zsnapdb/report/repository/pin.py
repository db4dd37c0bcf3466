"""Pins as text and JSON."""

from __future__ import annotations

from dataclasses import asdict

from zsnapdb.report.document import document
from zsnapdb.repository.pins import Pin


def pin(found: Pin) -> str:
    """A new pin."""
    return f"backup {found.backup_id} is pinned: {found.reason}"


def pin_json(found: Pin) -> str:
    """A new pin."""
    return document("pin", pin=asdict(found))


def unpin(found: Pin) -> str:
    """A pin that is gone."""
    return f"backup {found.backup_id} is no longer pinned (it was: {found.reason})"


def unpin_json(found: Pin) -> str:
    """A pin that is gone."""
    return document("unpin", pin=asdict(found))

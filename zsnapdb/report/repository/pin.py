"""Pins."""

from __future__ import annotations

from zsnapdb.documents.repository import PinDocument
from zsnapdb.report.view import View
from zsnapdb.repository.pins import Pin


class PinView(View, kind="pin", document=PinDocument):
    """A new pin."""

    pinned: Pin

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is pinned: {self.pinned.reason}"


class UnpinView(View, kind="unpin", document=PinDocument):
    """A removed pin."""

    pinned: Pin

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is no longer pinned (it was: {self.pinned.reason})"

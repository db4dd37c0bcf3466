"""Pins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.repository import PinDocument
from zsnapdb.report.view import View
from zsnapdb.repository.pins import Pin


@dataclass(frozen=True)
class PinView(View):
    """A new pin."""

    pinned: Pin
    kind: ClassVar[str] = "pin"
    document_class = PinDocument

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is pinned: {self.pinned.reason}"


@dataclass(frozen=True)
class UnpinView(View):
    """A removed pin."""

    pinned: Pin
    kind: ClassVar[str] = "unpin"
    document_class = PinDocument

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is no longer pinned (it was: {self.pinned.reason})"

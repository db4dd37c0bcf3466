"""Pins."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from zsnapdb.report.view import Fields, View
from zsnapdb.repository.pins import Pin


@dataclass(frozen=True)
class PinView(View):
    """A new pin."""

    pinned: Pin
    kind: ClassVar[str] = "pin"

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is pinned: {self.pinned.reason}"

    def fields(self) -> Fields:
        return {
            "pin": asdict(self.pinned),
        }


@dataclass(frozen=True)
class UnpinView(View):
    """A removed pin."""

    pinned: Pin
    kind: ClassVar[str] = "unpin"

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is no longer pinned (it was: {self.pinned.reason})"

    def fields(self) -> Fields:
        return {
            "pin": asdict(self.pinned),
        }

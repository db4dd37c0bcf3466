"""Pins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.report.view import View
from zsnapdb.repository.pins import Pin


class PinFields(TypedDict):
    """A pin."""

    backup_id: str
    reason: str
    since: str


class PinDocument(TypedDict):
    """A pin that was made or removed."""

    pin: PinFields


def _fields(pin: Pin) -> PinDocument:
    return {"pin": {"backup_id": pin.backup_id, "reason": pin.reason, "since": pin.since}}


@dataclass(frozen=True)
class PinView(View):
    """A new pin."""

    pinned: Pin
    kind: ClassVar[str] = "pin"

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is pinned: {self.pinned.reason}"

    def fields(self) -> PinDocument:
        return _fields(self.pinned)


@dataclass(frozen=True)
class UnpinView(View):
    """A removed pin."""

    pinned: Pin
    kind: ClassVar[str] = "unpin"

    def text(self) -> str:
        return f"backup {self.pinned.backup_id} is no longer pinned (it was: {self.pinned.reason})"

    def fields(self) -> PinDocument:
        return _fields(self.pinned)

"""Whom notifications reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.report.view import View


class NotifiedDocument(TypedDict):
    """The targets that a message was sent to, as far as that is known, and those that it did not reach."""

    targets: list[str]
    failed: list[str]


@dataclass(frozen=True)
class NotifiedView(View):
    """The targets of a message, by name."""

    targets: Sequence[str]
    failed: Sequence[str]
    kind: ClassVar[str] = "notified"

    def text(self) -> str:
        if not self.targets:
            return "every target that it concerns was told"
        return "\n".join(f"{name:<16}{'FAILED' if name in self.failed else 'arrived'}" for name in self.targets)

    def fields(self) -> NotifiedDocument:
        return {"targets": list(self.targets), "failed": list(self.failed)}

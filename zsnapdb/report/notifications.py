"""Whom notifications reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.agent import NotifiedDocument
from zsnapdb.report.view import View


@dataclass(frozen=True)
class NotifiedView(View):
    """The targets of a message, by name."""

    targets: Sequence[str]
    failed: Sequence[str]
    kind: ClassVar[str] = "notified"
    document_class = NotifiedDocument

    def text(self) -> str:
        if not self.targets:
            return "every target that it concerns was told"
        return "\n".join(f"{name:<16}{'FAILED' if name in self.failed else 'arrived'}" for name in self.targets)

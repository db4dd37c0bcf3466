"""Replicas that were made anew after their source was put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.restore import ReplicasRebuiltDocument
from zsnapdb.planning.restore.readers import NotedReader
from zsnapdb.report.view import View


@dataclass(frozen=True)
class ReplicasRebuiltView(View):
    """Readers that somebody said are rebuilt."""

    instance: str
    readers: Sequence[NotedReader]
    kind: ClassVar[str] = "replicas-rebuilt"
    document_class = ReplicasRebuiltDocument

    def text(self) -> str:
        if not self.readers:
            return f"no reader of the binlogs of {self.instance} was noted to be rebuilt"
        named = "; ".join(reader.who for reader in self.readers)
        return f"the readers of the binlogs of {self.instance} count as rebuilt: {named}"

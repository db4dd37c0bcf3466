"""The view of the end of the error log of a clone's server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.documents.clone import ServerLogDocument
from zsnapdb.jobs.clone.lifecycle import ServerLog
from zsnapdb.report.view import View


@dataclass(frozen=True)
class ServerLogView(View):
    """The last lines of a log."""

    log: ServerLog
    kind: ClassVar[str] = "clone-logs"
    document_class = ServerLogDocument
    read_from = "log"

    def text(self) -> str:
        return "\n".join(self.log.lines) or "the log is empty"

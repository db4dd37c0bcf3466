"""The view of the end of the error log of a clone's server."""

from __future__ import annotations

from zsnapdb.documents.clone import ServerLogDocument
from zsnapdb.jobs.clone.lifecycle import ServerLog
from zsnapdb.report.view import View


class ServerLogView(View, kind="clone-logs", document=ServerLogDocument, read_from="log"):
    """The last lines of a log."""

    log: ServerLog

    def text(self) -> str:
        return "\n".join(self.log.lines) or "the log is empty"

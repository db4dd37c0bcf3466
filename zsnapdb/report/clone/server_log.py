"""The view of the end of the error log of a clone's server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.server_log import ServerLog
from zsnapdb.report.view import View


class ServerLogDocument(TypedDict):
    """The last lines of the error log of a clone's server."""

    clone: str
    lines: list[str]


@dataclass(frozen=True)
class ServerLogView(View):
    """The last lines of a log."""

    log: ServerLog
    kind: ClassVar[str] = "clone-logs"

    def text(self) -> str:
        return "\n".join(self.log.lines) or "the log is empty"

    def fields(self) -> ServerLogDocument:
        return {"clone": self.log.info.label, "lines": list(self.log.lines)}

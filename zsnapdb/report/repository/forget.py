"""Backups that a host no longer expects in its repository."""

from __future__ import annotations

from zsnapdb.documents.repository import ForgetDocument
from zsnapdb.jobs.repository.adopt import ForgetResult
from zsnapdb.report.view import View


class ForgetView(View, kind="forget", document=ForgetDocument):
    """The forgotten backups, or those that would be forgotten."""

    result: ForgetResult
    is_planned: bool = False

    def text(self) -> str:
        if not self.result.backups:
            return f"the repository has every backup of {self.result.instance} that this host stored"
        what = "would no longer be expected" if self.is_planned else "is no longer expected"
        return "\n".join(f"backup {name} {what} in the repository" for name in self.result.backups)

"""Backups that a host no longer expects in its repository."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.repository.forget import ForgetResult
from zsnapdb.report.view import View


class ForgetDocument(TypedDict):
    """The forgotten backups, or with `planned` those that would be."""

    instance: str
    backups: list[str]
    planned: bool


@dataclass(frozen=True)
class ForgetView(View):
    """The forgotten backups, or those that would be forgotten."""

    result: ForgetResult
    is_planned: bool = False
    kind: ClassVar[str] = "forget"

    def text(self) -> str:
        if not self.result.backups:
            return f"the repository has every backup of {self.result.instance} that this host stored"
        what = "would no longer be expected" if self.is_planned else "is no longer expected"
        return "\n".join(f"backup {name} {what} in the repository" for name in self.result.backups)

    def fields(self) -> ForgetDocument:
        return {"instance": self.result.instance, "backups": list(self.result.backups), "planned": self.is_planned}

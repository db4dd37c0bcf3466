"""What requests of the API name in their query, and answers that no other module describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from zsnapdb.serve.verbs import BranchWord, DrillCount, InstanceWord, LogLines, RecordCount, RecordNumber

KINDS: Mapping[str, str] = {
    "create": "clone",
    "reset": "clone-reset",
    "extend": "clone-changed",
    "protect": "clone-changed",
    "unprotect": "clone-changed",
    "commit": "clone-commit",
    "branches": "clone-branches",
    "create_branch": "clone-branches",
    "switch_branch": "clone-switched",
    "delete_branch": "clone-branches",
    "commits": "clone-branch-log",
    "diff": "clone-branch-difference",
    "destroy": "clone-destroyed",
    "fleet": "fleet-status",
}
"""The document of the command line that a request answers, by what answers it."""


class _Query(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class LogsQuery(_Query):
    """How many lines of a log are wanted."""

    lines: LogLines = 100


class CommitsQuery(_Query):
    """To which branch or commit the commits lead (None: the branch that the clone is on)."""

    of: BranchWord | None = None


class DrillsQuery(_Query):
    """Of which instance, and how many."""

    instance: InstanceWord
    limit: DrillCount = 100


class EvidenceQuery(_Query):
    """Of which instance, after which record, and how many."""

    instance: InstanceWord
    after: RecordNumber = 0
    limit: RecordCount = 100


class LogsDocument(BaseModel):
    """The last lines of the error log of a clone's server. The server, and who uses the clone, chose their text."""

    clone: str
    lines: tuple[str, ...]


class HeartbeatDocument(BaseModel):
    """A clone whose holder is there, and how many seconds may pass until he says so again."""

    clone: str
    heartbeat: int


class BegunOperation(BaseModel):
    """A request that is under way. `Location` names where it is followed."""

    operation: str


class CancelledOperation(BaseModel):
    """A request that was ended early."""

    operation: str
    state: Literal["cancelled"]

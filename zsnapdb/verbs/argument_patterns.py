"""Roles of tokens, and patterns of the arguments that users without root rights may give."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from zsnapdb.base import run_context
from zsnapdb.base.patterns import BACKUP_ID, INSTANCE
from zsnapdb.planning.clone import branches


class Role(StrEnum):
    """Role of the holder of a token.

    viewer: may read instances and its own clones. developer: may have its own clones. operator: has all rights on all
    clones. auditor: may read everything and change nothing.
    """

    VIEWER = "viewer"
    DEVELOPER = "developer"
    OPERATOR = "operator"
    AUDITOR = "auditor"


ALL = frozenset(Role)
SEES_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})
CHANGES = frozenset({Role.DEVELOPER, Role.OPERATOR})
"""Roles that may change clones. These roles may also read a clone's data, such as a log or a difference, because they
may get the clone's login.
"""


BRANCH = branches.NAME
CLONE = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
CLONE_GUID = re.compile(r"[0-9]{1,20}")
INSTANCE_NAME = re.compile(INSTANCE)
SOURCE = re.compile(rf"latest|{BACKUP_ID}")
POINT = re.compile(r"[0-9A-Za-z][0-9A-Za-z:.,+ -]{0,999}")
DURATION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d|w)")
MESSAGE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{0,250}")
"""One line that is short enough for a ZFS property."""
BYTES = re.compile(r"[1-9][0-9]{0,18}B")
LINES = re.compile(r"[1-9][0-9]{0,2}")
ROWS = re.compile(r"[0-9]{1,3}")
PROFILE = re.compile(r"tiny|normal")


def _form(pattern: re.Pattern[str]) -> StringConstraints:
    return StringConstraints(pattern=rf"^(?:{pattern.pattern})$", strict=True)


Name = Annotated[str, _form(CLONE)]
CloneGuid = Annotated[str, _form(CLONE_GUID)]
"""The field `guid` of a clone. A later clone with the same name has another GUID."""
InstanceWord = Annotated[str, _form(INSTANCE_NAME)]
Point = Annotated[str, _form(POINT)]
Duration = Annotated[str, _form(DURATION)]
SetId = Annotated[str, _form(SOURCE)]
CommitMessage = Annotated[str, _form(MESSAGE)]
BranchWord = Annotated[str, _form(BRANCH)]
"""A branch of a clone. A field for a state also accepts a commit."""
OperationId = Annotated[str, StringConstraints(pattern=rf"^(?:{run_context.PATTERN})$", strict=True)]
IdempotencyKey = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$", strict=True)]

MOST_INSTANCES = 10_000
LogLines = Annotated[int, Field(ge=1, le=999)]
DifferentRows = Annotated[int, Field(ge=0, le=999)]
RecordNumber = Annotated[int, Field(ge=0, le=99_999_999)]
RecordCount = Annotated[int, Field(ge=1, le=500)]
DrillCount = Annotated[int, Field(ge=1, le=1000)]
NamePattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$", strict=True)]

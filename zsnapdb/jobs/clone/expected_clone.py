"""The environment variables that identify the clone a command expects, and the account for which root runs the command.

After a clone's owner is checked, and before the command locks the clone, the clone can be destroyed and another clone
can take its name. So these variables tell the command which owner and clone were checked, and the command repeats the
check. Only root can set a variable for a command that runs as root, because `zsnapdb-clone` and the sudo rule pass on
no variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import patterns
from zsnapdb.base.errors import UnknownNameError, UsageError
from zsnapdb.jobs.dataset_copies.properties import owner_text

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo


MEANT_VARIABLE = "ZSNAPDB_MEANT_CLONE"
GUID_VARIABLE = "ZSNAPDB_CLONE_GUID"
"""The environment variable with the GUID of the only clone that this command may use (`--guid`), if it is set."""


class ExpectedClone(BaseModel):
    """The expected clone: its owner, and its id and GUID.

    If `id` and `guid` are None, any clone of the owner is accepted. `id` is the clone's permanent id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    owner: str
    id: str | None = None
    guid: str | None = None

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that tell a command to expect this clone."""
        return {MEANT_VARIABLE: self.model_dump_json()}

    def is_this(self, info: CloneInfo) -> bool:
        return info.owner == owner_text(self.owner) and self.id in (None, info.id) and self.guid in (None, info.guid)


def expected_clone() -> ExpectedClone | None:
    """Return the expected clone. If the variable is not set, return None, which allows any clone.

    Raises:
        UsageError: the value of the variable is invalid.
    """
    given = os.environ.get(MEANT_VARIABLE)
    if given is None:
        return None
    try:
        return ExpectedClone.model_validate_json(given)
    except ValidationError:
        raise UsageError(
            f"the variable {MEANT_VARIABLE} does not name a clone",
            hint="zsnapdb itself sets it: unset it to use a command by hand",
        ) from None


def require(info: CloneInfo, name: str) -> None:
    """Raise UnknownNameError unless `info` is the expected clone. The error is the same as for an unknown name.

    A caller that will change the clone must hold the clone's lock, so that no other clone can take the name.
    """
    meant, guid = expected_clone(), os.environ.get(GUID_VARIABLE)
    if (meant is not None and not meant.is_this(info)) or guid not in (None, info.guid):
        raise UnknownNameError(
            f"there is no clone {name}", hint="see `zsnapdb clone list`, or `zsnapdb-clone list` for your own", about=()
        )


CAUSER_VARIABLE = "ZSNAPDB_CAUSED_BY"
"""The environment variable with the account for which `zsnapdb-clone` runs a command."""


def current_causer() -> str:
    """Return the subject for whom this process runs, in the notation of owners; "" for an administrator.

    Raises:
        PreflightError: the variable names a subject that is not an administrator and cannot own a copy.
    """
    given = os.environ.get(CAUSER_VARIABLE) or os.environ.get(patterns.SUBJECT_VARIABLE)
    return owner_text(given) if given is not None else ""

"""For whom root runs a command, and which clone it is about, as variables of its environment say.

Between a look at whose a clone is and the moment at which a command has its lock, the clone can go and another take its
name. So the command is told what was seen, and looks again itself. Only root can give a variable to a command that
runs as root: `zsnapdb-clone` and the rule of sudo pass none on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import subject
from zsnapdb.base.errors import UnknownNameError, UsageError
from zsnapdb.jobs.copies.properties import owner_text

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo


MEANT_VARIABLE = "ZSNAPDB_MEANT_CLONE"


class MeantClone(BaseModel):
    """The clone that is meant: whose it is, and what else is known of it (None: any of that owner).

    `id` is its unchanging name, `created` when it was made, as its properties have it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    owner: str
    id: str | None = None
    created: str | None = None

    def variables(self) -> Mapping[str, str]:
        """Return the variables that tell a command of it."""
        return {MEANT_VARIABLE: self.model_dump_json()}

    def is_this(self, info: CloneInfo) -> bool:
        """Whether this clone is the one that is meant."""
        return (
            info.owner == owner_text(self.owner) and self.id in (None, info.id) and self.created in (None, info.created)
        )


def meant_clone() -> MeantClone | None:
    """Return the clone that is meant; None if the environment says none: any. UsageError if what it says is none."""
    given = os.environ.get(MEANT_VARIABLE)
    if given is None:
        return None
    try:
        return MeantClone.model_validate_json(given)
    except ValidationError:
        raise UsageError(
            f"the variable {MEANT_VARIABLE} names no clone",
            hint="zsnapdb itself sets it: unset it to use a command by hand",
        ) from None


def require(info: CloneInfo, name: str) -> None:
    """UnknownNameError, as if nothing had the name that was asked for, unless this clone is the one that is meant.

    Whoever is about to change the clone holds its lock: it stays the same then.
    """
    meant = meant_clone()
    if meant is not None and not meant.is_this(info):
        raise UnknownNameError(
            f"there is no clone {name}", hint="see `zsnapdb clone list`, or `zsnapdb-clone list` for your own", about=()
        )


CAUSER_VARIABLE = "ZSNAPDB_CAUSED_BY"
"""The environment variable with the account for which `zsnapdb-clone` runs a command."""


def current_causer() -> str:
    """Return the subject of this process, as a copy names its owner; "" for an administrator.

    PreflightError if the environment names a subject that no copy can name: he is no administrator.
    """
    given = os.environ.get(CAUSER_VARIABLE) or os.environ.get(subject.SUBJECT_VARIABLE)
    return owner_text(given) if given is not None else ""

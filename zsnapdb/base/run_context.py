"""The context of a run: its id, and the person for whom root runs the command."""

from __future__ import annotations

import functools
import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from zsnapdb.base.errors import EXIT_CODES, ZsnapdbError

VARIABLE = "ZSNAPDB_RUN_ID"
"""Environment variable in which the agent or another caller passes the run id."""
PATTERN = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"


def new_run_id() -> str:
    """Return a new id: the time (UTC) and a random part."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def is_run_id(text: str) -> bool:
    """Return whether the text matches the pattern of a run id."""
    return re.fullmatch(PATTERN, text) is not None


def time_of(text: str) -> datetime:
    """Return the time (UTC) in a run id; datetime.max if the run id contains no valid time."""
    try:
        return datetime.strptime(text[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


def adopt_run_id(given: str) -> None:
    """Set the run id of this process and of the programs that it starts. The given id must be valid."""
    os.environ[VARIABLE] = given
    run_id.cache_clear()


@functools.cache
def run_id() -> str:
    """Return the run id of this process. It is the id in the environment if that is valid, and a new id otherwise."""
    given = os.environ.get(VARIABLE, "")
    return given if is_run_id(given) else new_run_id()


AUDIENCE_VARIABLE = "ZSNAPDB_AUDIENCE"
"""Environment variable with the clone owner for whom a command runs.

Only root can set this variable for commands that root runs.
"""


@dataclass(frozen=True)
class Audience:
    """The reader of a command's output: one clone owner, or "" for a reader who may read everything."""

    owner: str = ""

    @property
    def sees_all(self) -> bool:
        return not self.owner

    def sees(self, owner: str) -> bool:
        return self.sees_all or owner == self.owner

    def told(self, error: ZsnapdbError) -> ZsnapdbError:
        """Return the error with only the text that this audience may read.

        The error's code and exit code stay the same.
        """
        if self.sees_all or (error.about is not None and all(self.sees(owner) for owner in error.about)):
            return error
        reduced = ZsnapdbError(describe_exit_code(error.exit_code), hint=ASK, about=())
        reduced.code, reduced.exit_code = error.code, error.exit_code
        return reduced


def describe_exit_code(exit_code: int) -> str:
    """Return the public description of an error with this exit code: the meaning of that code."""
    return EXIT_CODES.get(exit_code, EXIT_CODES[ZsnapdbError.exit_code]).partition(";")[0]


ASK = "ask an administrator of this host: its log says why"


def current_audience() -> Audience:
    """Return the audience of this process."""
    return Audience(os.environ.get(AUDIENCE_VARIABLE, ""))

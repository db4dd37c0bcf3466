"""The audience of a command that root runs for another account: it sees its own objects only.

Errors are created where the whole host is visible. An error lists the owners of the objects that its text names
(`about`). Only this module decides whether the audience may read the text. If the error names objects of other owners,
or does not list the owners, the audience sees only its class.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from zsnapdb.base.errors import EXIT_CODES, ZsnapdbError

AUDIENCE_VARIABLE = "ZSNAPDB_AUDIENCE"
"""Environment variable with the clone owner for whom a command runs. Only root can set it for a command of root."""


@dataclass(frozen=True)
class Audience:
    """The reader of a command's output: one owner, or a reader who may see everything ("")."""

    owner: str = ""

    @property
    def sees_all(self) -> bool:
        return not self.owner

    def sees(self, owner: str) -> bool:
        return self.sees_all or owner == self.owner

    def told(self, error: ZsnapdbError) -> ZsnapdbError:
        """Return the error as this audience may read it, with the same code and exit code."""
        if self.sees_all or (error.about is not None and all(self.sees(owner) for owner in error.about)):
            return error
        reduced = ZsnapdbError(told_of(error.exit_code), hint=ASK, about=())
        reduced.code, reduced.exit_code = error.code, error.exit_code
        return reduced


def told_of(exit_code: int) -> str:
    """Return the public description of an error with this exit code: the meaning of that code."""
    return EXIT_CODES.get(exit_code, EXIT_CODES[ZsnapdbError.exit_code]).partition(";")[0]


ASK = "ask an administrator of this host: its log says why"


def current_audience() -> Audience:
    """Return the audience of this process."""
    return Audience(os.environ.get(AUDIENCE_VARIABLE, ""))

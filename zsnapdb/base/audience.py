"""The audience of a command that root runs for somebody else: it sees what is its own, and nothing of others.

Errors are built where the whole host is seen. An error says which objects its text names (`about`), and whose they are.
Here, and nowhere else, it is decided whether the audience may read the text: an error that names an object of others,
or that does not say what it names, is told by its class alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from zsnapdb.base.errors import EXIT_CODES, ZsnapdbError

AUDIENCE_VARIABLE = "ZSNAPDB_AUDIENCE"
"""The environment variable with the owner of clones for whom a command runs. Only root can give it one."""


@dataclass(frozen=True)
class Audience:
    """Who reads what a command prints: the owner of that name, or everybody who may see all ("")."""

    owner: str = ""

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden."""
        return not self.owner

    def sees(self, owner: str) -> bool:
        """Whether an object of this owner is seen."""
        return self.sees_all or owner == self.owner

    def told(self, error: ZsnapdbError) -> ZsnapdbError:
        """Return the error as this audience may read it: the same class, code and exit code."""
        if self.sees_all or (error.about is not None and all(self.sees(owner) for owner in error.about)):
            return error
        reduced = ZsnapdbError(told_of(error.exit_code), hint=ASK, about=())
        reduced.code, reduced.exit_code = error.code, error.exit_code
        return reduced


def told_of(exit_code: int) -> str:
    """Return what everybody may know of an error with this exit code: what that code means."""
    return EXIT_CODES.get(exit_code, EXIT_CODES[ZsnapdbError.exit_code]).partition(";")[0]


ASK = "ask an administrator of this host: its log says why"


def current_audience() -> Audience:
    """Return the audience of this process."""
    return Audience(os.environ.get(AUDIENCE_VARIABLE, ""))

"""Whether a command that ended with an error is worth repeating. Who repeats decides by this, not by a message.

The class of a code is a promise, as the code is: a scheduler on another host, or of a newer release, relies on it.
A repeated command does nothing twice if it has `--once RUN`; without it, what was done before the error may be done
again.
"""

from __future__ import annotations

from enum import StrEnum

from zsnapdb.base.errors import (
    CLOSED_PIPE,
    EXIT_CODES,
    INTERNAL,
    INTERRUPTED,
    BusyError,
    CommandError,
    CommandTimeout,
    ConfigError,
    ConsistencyError,
    DamagedError,
    ExistsError,
    HookError,
    LockError,
    PreflightError,
    RepositoryError,
    ServerError,
    UsageError,
)


class RetryClass(StrEnum):
    """How often a command that failed is worth repeating."""

    AGAIN = "again"
    """The cause passes: again, after a while, for as long as the result is wanted."""
    NEVER = "never"
    """The same command ends the same way until a person has changed something."""
    TWICE = "twice"
    """Nobody knows whether the cause passes: two attempts in all, then a person."""


_CLASSES: dict[int, RetryClass] = {
    0: RetryClass.NEVER,
    INTERNAL: RetryClass.TWICE,
    UsageError.exit_code: RetryClass.NEVER,
    ConfigError.exit_code: RetryClass.NEVER,
    PreflightError.exit_code: RetryClass.NEVER,
    ServerError.exit_code: RetryClass.AGAIN,
    RepositoryError.exit_code: RetryClass.AGAIN,
    DamagedError.exit_code: RetryClass.NEVER,
    ExistsError.exit_code: RetryClass.NEVER,
    CommandError.exit_code: RetryClass.TWICE,
    LockError.exit_code: RetryClass.AGAIN,
    ConsistencyError.exit_code: RetryClass.NEVER,
    HookError.exit_code: RetryClass.TWICE,
    BusyError.exit_code: RetryClass.AGAIN,
    INTERRUPTED: RetryClass.AGAIN,
    CLOSED_PIPE: RetryClass.AGAIN,
}
assert _CLASSES.keys() == EXIT_CODES.keys()

_PASSING = {CommandTimeout.code}
"""Codes of errors that pass, of an exit code that others share: a pool or a guest that did not answer in time."""


def retry_class(exit_code: int, error_code: str | None = None) -> RetryClass:
    """Return whether a command that ended with `exit_code` is worth repeating.

    `error_code` is `error.code` of its document, if it printed one; it says more than the exit code alone. A code that
    is not known, such as that of a signal (-9, 137) or of a newer release, is worth two attempts. 0 is no failure:
    never.
    """
    if exit_code == CommandError.exit_code and error_code in _PASSING:
        return RetryClass.AGAIN
    return _CLASSES.get(exit_code, RetryClass.TWICE)

"""Whether another attempt of a command is worth it, by its exit code. Pure.

The page of exit codes is made of it.
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
    """What an engine does with a command that ended so."""

    DONE = "done"
    AGAIN = "again"
    TWICE = "twice"
    NEVER = "never"
    ELSEWHERE = "elsewhere"
    """A job that any host may do: this host cannot, and has changed nothing; another may."""


_OF_CODES = {
    0: RetryClass.DONE,
    INTERNAL: RetryClass.TWICE,
    UsageError.exit_code: RetryClass.NEVER,
    ConfigError.exit_code: RetryClass.NEVER,
    PreflightError.exit_code: RetryClass.NEVER,
    ServerError.exit_code: RetryClass.AGAIN,
    RepositoryError.exit_code: RetryClass.AGAIN,
    DamagedError.exit_code: RetryClass.NEVER,
    ExistsError.exit_code: RetryClass.NEVER,
    CommandError.exit_code: RetryClass.NEVER,
    LockError.exit_code: RetryClass.AGAIN,
    ConsistencyError.exit_code: RetryClass.NEVER,
    HookError.exit_code: RetryClass.TWICE,
    BusyError.exit_code: RetryClass.AGAIN,
    INTERRUPTED: RetryClass.AGAIN,
    CLOSED_PIPE: RetryClass.TWICE,
}
_PASSING = frozenset({CommandTimeout.code})
"""Codes of errors that pass, although others of their exit code do not."""
_OF_A_HOST = frozenset({UsageError.exit_code, ConfigError.exit_code, PreflightError.exit_code})
"""Exit codes that say that this host cannot do it. Nothing was changed."""

ATTEMPTS = {RetryClass.TWICE: 2, RetryClass.NEVER: 1}
"""How many attempts there are at most; as many as its time allows for the others."""
TEXTS = {
    RetryClass.DONE: "Nothing is left to try.",
    RetryClass.AGAIN: "Another attempt may succeed: try again, later each time.",
    RetryClass.TWICE: "One more attempt is worth it, not a third.",
    RetryClass.NEVER: "No attempt mends it: a person has to look.",
    RetryClass.ELSEWHERE: "Another host may be able to.",
}
"""What each class means, in the page of exit codes."""


def retry_class(exit_code: int, error_code: str, *, anywhere: bool) -> RetryClass:
    """Return the class of a command that ended with this exit code (negative: a signal ended it).

    `error_code` is the stable code of its error, "" if it is not known. `anywhere`: any host may do the job.
    """
    if anywhere and exit_code in _OF_A_HOST:
        return RetryClass.ELSEWHERE
    if error_code in _PASSING and exit_code == CommandError.exit_code:
        return RetryClass.AGAIN
    if exit_code < 0:
        # Whatever ended it, such as a reboot or a lack of memory, it was not its own decision.
        return RetryClass.AGAIN
    return _OF_CODES.get(exit_code, RetryClass.TWICE)


def is_final(kind: RetryClass, attempt: int) -> bool:
    """Whether no attempt follows the attempt of this number (from 1 on)."""
    most = ATTEMPTS.get(kind)
    return kind is RetryClass.DONE or (most is not None and attempt >= most)


def sentence(exit_code: int) -> str:
    """Return what the page of exit codes says about another attempt."""
    text = TEXTS[retry_class(exit_code, "", anywhere=False)]
    passing = " After `command-timeout` another attempt may succeed." if exit_code == CommandError.exit_code else ""
    return f"{text}{passing}"


assert set(_OF_CODES) == set(EXIT_CODES)

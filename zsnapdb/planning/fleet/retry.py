"""What becomes of a job of a fleet after an attempt: by the retry class of its end, and by who else may do it. Pure."""

from __future__ import annotations

from enum import StrEnum

from zsnapdb.base.errors import ConfigError, PreflightError, RetryClass, UsageError, retry_class


class JobVerdict(StrEnum):
    """What becomes of a job after an attempt."""

    DONE = "done"
    AGAIN = "again"
    TWICE = "twice"
    NEVER = "never"
    ELSEWHERE = "elsewhere"
    """A job that any host may do: this host cannot, and has changed nothing; another may."""


_OF_A_HOST = frozenset({UsageError.exit_code, ConfigError.exit_code, PreflightError.exit_code})
"""Exit codes that say that this host cannot do it. Nothing was changed."""
_OF_CLASSES = {
    RetryClass.AGAIN: JobVerdict.AGAIN,
    RetryClass.TWICE: JobVerdict.TWICE,
    RetryClass.NEVER: JobVerdict.NEVER,
}
_MOST = {JobVerdict.DONE: 1, JobVerdict.TWICE: 2, JobVerdict.NEVER: 1, JobVerdict.ELSEWHERE: 30}
"""How many attempts there are at most; the others go on for as long as the job may take.

A job that so many hosts could not do is given again later: meanwhile it has no slot of its bucket.
"""


def verdict(exit_code: int, error_code: str, *, anywhere: bool) -> JobVerdict:
    """Return what becomes of a job whose command ended with this exit code (negative: a signal ended it).

    `error_code` is the stable code of its error, "" if it is not known. `anywhere`: any host may do the job.
    """
    if exit_code == 0:
        return JobVerdict.DONE
    if exit_code < 0:
        # Whatever ended it, such as a reboot or a lack of memory, the command did not decide it.
        return JobVerdict.AGAIN
    if anywhere and exit_code in _OF_A_HOST:
        return JobVerdict.ELSEWHERE
    return _OF_CLASSES[retry_class(exit_code, error_code or None)]


def is_final(kind: JobVerdict, attempt: int) -> bool:
    """Whether no attempt follows the attempt of this number (from 1 on)."""
    most = _MOST.get(kind)
    return most is not None and attempt >= most

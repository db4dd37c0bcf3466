"""The continuation of a fleet job after an attempt, by the retry class of its end and by its possible hosts. Pure."""

from __future__ import annotations

from enum import StrEnum

from zsnapdb.base.errors import ConfigError, PreflightError, RetryClass, UsageError, retry_class


class JobVerdict(StrEnum):
    """The continuation of a job after an attempt."""

    DONE = "done"
    AGAIN = "again"
    TWICE = "twice"
    NEVER = "never"
    ELSEWHERE = "elsewhere"
    """A job for any host: this host cannot do it, and has changed nothing. Another host is tried."""


_OF_A_HOST = frozenset({UsageError.exit_code, ConfigError.exit_code, PreflightError.exit_code})
"""Exit codes for causes on this host alone. The command changed nothing."""
_OF_CLASSES = {
    RetryClass.AGAIN: JobVerdict.AGAIN,
    RetryClass.TWICE: JobVerdict.TWICE,
    RetryClass.NEVER: JobVerdict.NEVER,
}
_MOST = {JobVerdict.DONE: 1, JobVerdict.TWICE: 2, JobVerdict.NEVER: 1, JobVerdict.ELSEWHERE: 30}
"""The greatest number of attempts. Other verdicts are tried as long as the job may take.

A job that 30 hosts could not do is given again later, and has no slot of its bucket meanwhile.
"""


def verdict(exit_code: int, error_code: str, *, anywhere: bool) -> JobVerdict:
    """Return the continuation of a job whose command ended with this exit code (negative: a signal ended it).

    `error_code` is the stable code of its error ("": unknown). `anywhere`: any host may do the job.
    """
    if exit_code == 0:
        return JobVerdict.DONE
    if exit_code < 0:
        # A cause outside the command ended it, such as a reboot or a lack of memory.
        return JobVerdict.AGAIN
    if anywhere and exit_code in _OF_A_HOST:
        return JobVerdict.ELSEWHERE
    return _OF_CLASSES[retry_class(exit_code, error_code or None)]


def is_final(kind: JobVerdict, attempt: int) -> bool:
    """Return whether no further attempt follows the one of this number (from 1 on)."""
    most = _MOST.get(kind)
    return most is not None and attempt >= most

"""Decides when object locks must be extended, and where they conflict with the bucket or the policy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

DAY = 86400.0
_SLACK = 0.5
"""The fraction of the period that is added to an extended lock, so that the next backups need not extend it."""


@dataclass(frozen=True)
class BucketFacts:
    """The settings of a bucket that decide how it treats removed objects.

    The field `keeps_versions` is None if unknown. A rule of the bucket removes older versions after `days` days; None
    if there is no such rule.
    """

    keeps_versions: bool | None
    has_locks: bool
    days: int | None


@dataclass(frozen=True)
class Rules:
    """The rules of a retention policy. The rule `within` is a time in seconds; `last` is a number of backups."""

    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: float = 0.0
    last: int = 0

    @property
    def seconds(self) -> float:
        """The longest time in seconds for which any rule except `last` keeps a backup."""
        return max(
            self.hourly * 3600.0,
            self.daily * DAY,
            self.weekly * 7 * DAY,
            self.monthly * 31 * DAY,
            self.yearly * 366 * DAY,
            self.within,
        )


class LockProblem(Enum):
    """The kinds of problems with a configured lock."""

    NO_VERSIONS = "the bucket keeps no versions, so it cannot lock objects"
    NO_LOCKS = "the bucket was made without object lock"
    LONGER_THAN_POLICY = "locks last longer than the retention policy keeps backups"
    OLD_VERSIONS_STAY = "no rule of the bucket removes older versions"


@dataclass(frozen=True)
class LockFinding:
    """A problem as text, with a hint. If the bucket refuses locked objects, `prevents_backups` is set."""

    problem: LockProblem
    text: str
    hint: str
    prevents_backups: bool = False


def needed_until(now: datetime, period: float) -> datetime:
    """Return the earliest allowed end of the locks on the bases of a backup that is stored at the time `now`."""
    return now + timedelta(seconds=period)


def extended_until(now: datetime, period: float) -> datetime:
    """Return the new end for a lock that is extended now, half a period later than needed.

    With this margin, the locks of a long chain are extended about twice in each period, instead of by every backup.
    """
    return now + timedelta(seconds=period * (1 + _SLACK))


def must_extend(held_until: datetime | None, *, is_held: bool, needed: datetime) -> bool:
    """Return whether a backup's locks must be extended, based on the lock of its manifest.

    An extension changes the manifest last, so the manifest is never locked longer than the other objects. A lock that
    was never extended always ends too early, because the backup was stored before the current run began. A legal hold
    (`is_held` without an end) needs no extension.
    """
    return not is_held or (held_until is not None and held_until < needed)


def lock_findings(period: float, bucket: BucketFacts, policy: Rules | None) -> tuple[LockFinding, ...]:
    """Return the problems with a lock for `period` seconds in this bucket under this retention policy."""
    if bucket.keeps_versions is False:
        problem, hint = LockProblem.NO_VERSIONS, "create a bucket with object lock, which has versions too"
        return (LockFinding(problem, problem.value, hint, prevents_backups=True),)
    if not bucket.has_locks:
        problem, hint = LockProblem.NO_LOCKS, "switch on object lock of the bucket, or remove object_lock"
        return (LockFinding(problem, problem.value, hint, prevents_backups=True),)
    findings = []
    if policy is not None and not policy.last and period > policy.seconds:
        problem = LockProblem.LONGER_THAN_POLICY
        text = f"{problem.value}: {period / DAY:.1f} days, and {policy.seconds / DAY:.1f} days"
        findings.append(
            LockFinding(problem, text, "prune leaves locked backups until their locks end; shorten object_lock.for")
        )
    if bucket.keeps_versions and bucket.days is None:
        problem = LockProblem.OLD_VERSIONS_STAY
        text = f"{problem.value}: what is pruned takes space for ever"
        hint = "add a lifecycle rule for noncurrent versions; it removes none that is locked"
        findings.append(LockFinding(problem, text, hint))
    return tuple(findings)

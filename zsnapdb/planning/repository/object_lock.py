"""Decides about locks of stored objects: which are extended, and whether bucket and retention policy fit them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

DAY = 86400.0
_SLACK = 0.5
"""An extended lock lasts longer than needed by this part of the period, so that the next backups need not extend it."""


@dataclass(frozen=True)
class BucketFacts:
    """What a bucket does with removed objects: `keeps_versions` (None: not known), `days`, `has_locks`."""

    keeps_versions: bool | None
    has_locks: bool
    days: int | None


@dataclass(frozen=True)
class Rules:
    """The longest time that rules of a retention policy keep a backup (seconds); `last` counts backups, not time."""

    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: float = 0.0
    last: int = 0

    @property
    def seconds(self) -> float:
        """The time after which no rule but `last` keeps a backup."""
        return max(
            self.hourly * 3600.0,
            self.daily * DAY,
            self.weekly * 7 * DAY,
            self.monthly * 31 * DAY,
            self.yearly * 366 * DAY,
            self.within,
        )


class LockProblem(Enum):
    """What does not fit a configured lock."""

    NO_VERSIONS = "the bucket keeps no versions, so it cannot lock objects"
    NO_LOCKS = "the bucket was made without object lock"
    LONGER_THAN_POLICY = "locks last longer than the retention policy keeps backups"
    OLD_VERSIONS_STAY = "no rule of the bucket removes older versions"


@dataclass(frozen=True)
class LockFinding:
    """A problem in words, with a hint. `prevents_backups`: the bucket refuses what is to be locked."""

    problem: LockProblem
    text: str
    hint: str
    prevents_backups: bool = False


def needed_until(now: datetime, period: float) -> datetime:
    """Return until when the backups that a backup stored `now` builds on must be locked at least."""
    return now + timedelta(seconds=period)


def extended_until(now: datetime, period: float) -> datetime:
    """Return until when a lock that must be extended is extended: half a period longer than needed.

    So the objects of a long chain are extended about twice in each period, and not by every backup.
    """
    return now + timedelta(seconds=period * (1 + _SLACK))


def must_extend(held_until: datetime | None, *, is_held: bool, needed: datetime) -> bool:
    """Whether the objects of a backup must be locked for longer, by the hold of its manifest.

    Its manifest is extended after its other objects, so it is never locked for longer than these by an extension. A
    backup that was never extended was stored before the backup that needs it was begun, so its lock always ends too
    early. A legal hold (`is_held` without an end) needs no extension.
    """
    return not is_held or (held_until is not None and held_until < needed)


def lock_findings(period: float, bucket: BucketFacts, policy: Rules | None) -> tuple[LockFinding, ...]:
    """Return what does not fit a lock of `period` seconds in this bucket under this retention policy."""
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

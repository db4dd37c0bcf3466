"""Leases, which are the lifetimes of clones, and the decision whether the reaper removes a clone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum

from zsnapdb.base.errors import PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.quantities import format_duration, size
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.planning.clock_guard import CONFIRM, RemovalTime

_FORM = "%Y-%m-%dT%H:%M:%SZ"
FOREVER = datetime.max.replace(tzinfo=UTC)
"""The time that replaces an unreadable time, so that the clone is protected."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stamp(moment: datetime) -> str:
    """Return a time as text for a ZFS property, in UTC and rounded down to the second."""
    return moment.astimezone(UTC).strftime(_FORM)


def read_stamp(text: str) -> datetime:
    """Return the time that a property stores; FOREVER if the text is unreadable, so that the clone stays protected."""
    try:
        return datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return FOREVER


@dataclass(frozen=True)
class Policy:
    """The configured limits of leases, in seconds. If `idle` is None, an idle clone does not expire."""

    ttl: float
    max_ttl: float
    max_protection: float
    grace: float
    idle: float | None
    reap_limit: int


def policy(settings: CloneSettings) -> Policy:
    """Return the configured limits of leases."""
    s = settings
    return Policy(s.ttl, s.max_ttl, s.max_protection, s.grace, s.idle, s.reap_limit)


LEAST_HEARTBEAT, MOST_HEARTBEAT = 5.0, 86_400.0
"""The limits of a heartbeat interval in seconds.

With a shorter interval, a clone would expire while its holder waits for a processor.
"""


@dataclass(frozen=True)
class Heartbeat:
    """The heartbeats that keep a clone: at least one is required every `every` seconds.

    The newest heartbeat was at `last`. By the steady clock, which is independent of the wall clock, it was `silence`
    seconds ago (None if unknown).
    """

    every: int
    last: datetime
    silence: float | None = None

    def is_over(self, now: datetime) -> bool:
        """Return whether the next heartbeat is overdue."""
        if self.silence is not None:
            return self.silence > self.every
        return now - self.last > timedelta(seconds=self.every)


def silence_since(beat: tuple[str, float], now: tuple[str, float]) -> float:
    """Return the seconds between a heartbeat and now. Both times consist of the boot id and the steady clock's seconds.

    After a reboot, the result is the time since the reboot, which is a lower bound.
    """
    is_same_boot = beat[0] == now[0] and now[1] >= beat[1]
    return now[1] - beat[1] if is_same_boot else now[1]


def heartbeat_seconds(seconds: float) -> int:
    """Return the seconds between two heartbeats as a whole number.

    Raises UsageError if this number is outside the limits.
    """
    if not LEAST_HEARTBEAT <= seconds <= MOST_HEARTBEAT:
        raise UsageError(
            f"an interval of {format_duration(seconds)} between heartbeats is out of range",
            hint=f"give from {format_duration(LEAST_HEARTBEAT)} to {format_duration(MOST_HEARTBEAT)}, such as 60s",
        )
    return int(seconds)


@dataclass(frozen=True)
class LeaseChange:
    """The last change of a lease: its time, the previous ends of lease and protection, and the extension in seconds.

    If the clock is behind, an extended lease may end before its previous end. So the extension in seconds is recorded
    too.
    """

    at: datetime
    expires: datetime
    protected_until: datetime | None
    extension: int | None = None


@dataclass(frozen=True)
class CloneLease:
    """The time at which a clone expires, and the end of its protection from the reaper (None if it is not protected).

    The field `heartbeat` is set if the clone also expires when its holder's heartbeat is overdue. The field `changed`
    is the last change of the lease, if any. The field `asked` is an extension in seconds that is not recorded yet.
    """

    expires: datetime
    protected_until: datetime | None = None
    heartbeat: Heartbeat | None = None
    changed: LeaseChange | None = None
    asked: float | None = field(default=None, compare=False)

    def is_protected(self, now: datetime) -> bool:
        """Return whether the reaper must keep the clone at `now`."""
        return self.protected_until is not None and now < self.protected_until


def require_lease(lease: CloneLease, now: datetime, clone: str, owner: str) -> None:
    """Raise PreflightError if the clone's lease has ended and the clone is not protected."""
    if lease.expires <= now and not lease.is_protected(now):
        raise PreflightError(
            f"the lease of clone {clone} ended at {stamp(lease.expires)}: `zsnapdb reap` destroys the clone",
            hint="extend its lease first, for example by 1h",
            about=(owner,),
        )


def _bounded(seconds: float, limit: float, what: str, key: str) -> timedelta:
    if seconds <= 0:
        raise UsageError(f"{what} of {format_duration(seconds)}", hint="give a duration above zero, such as 2h")
    if seconds > limit:
        raise PreflightError(
            f"{what} of {format_duration(seconds)} is longer than {key}, {format_duration(limit)}",
            hint=f"request less, or raise {key}",
            about=(),
        )
    return timedelta(seconds=seconds)


def first_lease(ttl: float | None, policy: Policy, now: datetime, beats_every: float | None = None) -> CloneLease:
    """Return the lease of a new clone, which ends after `ttl` seconds (None: after the configured time).

    The argument `beats_every` is the time in seconds between two heartbeats of its holder, or None if no heartbeat is
    required. Raises PreflightError if the lease is longer than allowed, and UsageError if the heartbeat interval is
    outside its limits.
    """
    return CloneLease(
        now + _bounded(policy.ttl if ttl is None else ttl, policy.max_ttl, "a time to live", "clones.max_ttl"),
        heartbeat=Heartbeat(heartbeat_seconds(beats_every), now) if beats_every is not None else None,
    )


def extended(lease: CloneLease, seconds: float | None, policy: Policy, now: datetime) -> CloneLease:
    """Return the lease, extended to end `seconds` from now (None: the configured time of a new lease).

    The function never shortens a lease.
    """
    wanted = _bounded(policy.ttl if seconds is None else seconds, policy.max_ttl, "an extension", "clones.max_ttl")
    return replace(lease, expires=max(lease.expires, now + wanted), asked=wanted.total_seconds())


def protected(lease: CloneLease, seconds: float, policy: Policy, now: datetime) -> CloneLease:
    """Return the lease with protection for `seconds` from now; 0 removes the protection."""
    if seconds == 0:
        return replace(lease, protected_until=None)
    return replace(
        lease, protected_until=now + _bounded(seconds, policy.max_protection, "a protection", "clones.max_protection")
    )


def changed(before: CloneLease, after: CloneLease, time: RemovalTime) -> CloneLease:
    """Return the lease after a change, with the time of the change and the former ends.

    If the clock was wrong at the previous change, the result keeps the ends that were recorded before that change. The
    extension of that change is then applied a second time.
    """
    known, asked = before.changed, [math.ceil(after.asked)] if after.asked is not None else []
    if known is None or not (known.at > time.at or time.is_unsure(known.at)):
        made = LeaseChange(time.latest, before.expires, before.protected_until, max(asked, default=None))
        return replace(after, changed=made, asked=None)
    expires = after.expires
    if known.extension is not None:
        asked.append(known.extension)
        if time.is_unsure(known.at):
            expires = max(expires, time.latest + timedelta(seconds=known.extension))
    made = replace(known, at=max(known.at, time.latest), extension=max(asked, default=None))
    return replace(after, expires=expires, changed=made, asked=None)


def settled(lease: CloneLease, created: datetime, time: RemovalTime) -> CloneLease:
    """Return the lease of a copy that was created at `created`, corrected if the clock was wrong.

    If the clock was wrong at the creation, the lease begins now. If the clock was wrong at the last change, the change
    takes effect now, and the lease is at least as long as before the change.
    """
    change = lease.changed
    moved = created - time.latest if created != FOREVER and time.is_wrong(created) else timedelta()
    late = change.at - time.latest if change is not None and time.is_wrong(change.at) else timedelta()
    if not moved and not late:
        return lease
    if change is None:
        expires = _moved_back(lease.expires, moved)
        protected_until = lease.protected_until and _moved_back(lease.protected_until, moved)
    else:
        expires = _settled_end(lease.expires, change.expires, moved, late)
        if late and change.extension is not None:
            expires = max(expires, time.latest + timedelta(seconds=change.extension))
        protected_until = lease.protected_until and _settled_end(
            lease.protected_until, change.protected_until, moved, late
        )
    return replace(lease, expires=expires, protected_until=protected_until, changed=None)


def _settled_end(end: datetime, before: datetime | None, moved: timedelta, late: timedelta) -> datetime:
    """Return the corrected end of a changed lease. The argument `before` is the end before the change.

    The clock was ahead by `moved` at the creation, and by `late` at the change.
    """
    if end == before:
        return _moved_back(end, moved)
    own = _moved_back(end, late)
    least = own if before is None else max(own, _moved_back(before, moved))
    return min(end, least) if late > timedelta() else least


def _moved_back(end: datetime, ahead: timedelta) -> datetime:
    return end if end == FOREVER else end - min(ahead, end - _EPOCH)


def require_within_age(lease: CloneLease, before: CloneLease | None, begun: datetime, most: float) -> CloneLease:
    """Return the lease. Raises PreflightError if it would keep a subject's data for more than `most` seconds.

    The argument `begun` is the time at which the data was first cloned from an instance. If it is FOREVER, the time is
    unreadable, and the age is not checked. The argument `before` is the previous lease, whose ends are always accepted.
    """
    last = end_of_age(begun, most)
    had = (None, None) if before is None else (before.expires, before.protected_until)
    for old, new in zip(had, (lease.expires, lease.protected_until), strict=True):
        if new is not None and new > last and new != old:
            raise PreflightError(
                f"this would keep the data until {stamp(new)}; it was cloned at {stamp(begun)}, and clones.max_age is"
                f" {format_duration(most)}: the latest end is {stamp(last)}",
                hint="ask for a shorter lease, or create a new clone of the newest state",
                about=(),
            )
    return lease


def end_of_age(begun: datetime, most: float) -> datetime:
    """Return the time until which data that was first cloned at `begun` may exist.

    This is `most` seconds after `begun`.
    """
    return begun + timedelta(seconds=most) if begun < FOREVER - timedelta(seconds=most) else FOREVER


def remaining(lease: CloneLease, now: datetime) -> str:
    """Return a text that says when the lease ends, relative to `now`."""
    if lease.expires == FOREVER:
        return "at an unreadable time"
    seconds = int((lease.expires - now).total_seconds())
    return f"in {format_duration(seconds)}" if seconds > 0 else f"{format_duration(-seconds)} ago"


@dataclass(frozen=True)
class CloneUse:
    """The number of clients connected to a clone, and the time since which none has been connected.

    Both are None if unknown.
    """

    clients: int | None
    idle_since: datetime | None


class LeaseVerdict(Enum):
    """The decision of a sweep: whether a clone is kept or removed."""

    KEEP = "keep"
    REAP = "reap"


@dataclass(frozen=True)
class JudgedLease:
    """The decision of a sweep about a copy, its reason, and the error that prevented a decision, if any.

    The field `is_leak` is set if a killed run left the copy behind. The limit of removals per sweep does not apply to
    such a copy.
    """

    verdict: LeaseVerdict
    reason: str
    error: ZsnapdbError | None = None
    is_leak: bool = False

    @classmethod
    def leak(cls, reason: str) -> JudgedLease:
        """Return the decision to remove a copy that a killed run left behind."""
        return cls(LeaseVerdict.REAP, reason, is_leak=True)


def judge(lease: CloneLease, obstacles: Sequence[str], use: CloneUse, policy: Policy, now: datetime) -> JudgedLease:
    """Return the decision of a sweep about a clone, with its reason.

    A clone stays if it is protected or cannot be destroyed (`obstacles` contains the reasons). An expired clone also
    stays if its number of clients is unknown. Commits of the clone do not prevent its removal.
    """
    if obstacles:
        return JudgedLease(LeaseVerdict.KEEP, "; ".join(obstacles))
    if lease.is_protected(now):
        return JudgedLease(LeaseVerdict.KEEP, f"protected until {_until(lease.protected_until)}")
    if lease.heartbeat is not None and lease.heartbeat.is_over(now):
        # Ignore connected clients, because a killed holder may have left connections.
        last = stamp(lease.heartbeat.last)
        return JudgedLease(
            LeaseVerdict.REAP, f"its last heartbeat was at {last}, and one is due each {lease.heartbeat.every} s"
        )
    if now >= lease.expires:
        if use.clients is None:
            return JudgedLease(LeaseVerdict.KEEP, "expired, but its server runs and does not say who uses it")
        ends = lease.expires + timedelta(seconds=policy.grace)
        if use.clients and now < ends:
            return JudgedLease(
                LeaseVerdict.KEEP,
                f"expired, but {use.clients} clients are connected; it is removed at {stamp(ends)} at the latest",
            )
        return JudgedLease(LeaseVerdict.REAP, f"expired at {stamp(lease.expires)}")
    if (
        policy.idle is not None
        and use.clients == 0
        and use.idle_since is not None
        and now - use.idle_since >= timedelta(seconds=policy.idle)
    ):
        return JudgedLease(LeaseVerdict.REAP, f"it has not been used since {stamp(use.idle_since)}")
    return JudgedLease(LeaseVerdict.KEEP, f"it expires at {_until(lease.expires)}")


def judge_at(judged: Callable[[datetime], JudgedLease], time: RemovalTime) -> JudgedLease:
    """Return the sweep's decision about a copy at the time that decides about expiry.

    If the clock is in doubt and the copy is kept, the reason mentions the clock.
    """
    proven = judged(time.at)
    if time.doubt and proven.verdict is LeaseVerdict.KEEP:
        return replace(proven, reason=f"{proven.reason}; {time.doubt}: {CONFIRM}")
    return proven


def _until(moment: datetime | None) -> str:
    return "an unreadable time" if moment == FOREVER or moment is None else stamp(moment)


_OF_SUBJECT, _OF_ALL = 10, 50
"""The default maximum numbers of clones per subject and in total, for requests of a subject."""


@dataclass(frozen=True)
class Quota:
    """Limits for clones: their number per owner, their total number, and the pool's free bytes. 0 means no limit."""

    per_owner: int
    total: int
    free_floor: int


def quota_of(settings: Settings, *, is_subject: bool) -> Quota:
    """Return the configured limits. If a limit is not configured, root has none, and a subject has the default limit.

    The default per owner is at least `serve.per_subject`.
    """
    limits = settings.clones
    own, total = (max(_OF_SUBJECT, settings.serve.per_subject), _OF_ALL) if is_subject else (0, 0)
    return Quota(
        own if limits.per_owner is None else limits.per_owner,
        total if limits.total is None else limits.total,
        limits.free_floor,
    )


def admit(quota: Quota, owner: str, owners: list[str], available: int) -> None:
    """Raise PreflightError if the owner may not create another clone. The error names the limit that was reached.

    The error reveals nothing about other owners. The argument `owners` has one entry for each existing clone. The
    argument `available` is the free space of the pool in bytes.
    """
    if quota.total and len(owners) >= quota.total:
        raise PreflightError(
            f"this host already has {quota.total} clones, the limit in `clones.total`",
            hint="destroy one (`zsnapdb clone list`), or raise clones.total",
            about=(),
        )
    own = sum(one.casefold() == owner.casefold() for one in owners)
    if quota.per_owner and own >= quota.per_owner:
        raise PreflightError(
            f"{owner} has {own} clones, clones.per_owner is {quota.per_owner}",
            hint="destroy one, or raise clones.per_owner",
            about=(owner,),
        )
    if available < quota.free_floor:
        raise PreflightError(
            f"the pool has less free than clones.free_floor, {size(quota.free_floor)}",
            hint="free space in the pool, or lower clones.free_floor",
            about=(),
        )


class SourceKind(StrEnum):
    """The kind of snapshots from which a clone was created."""

    BACKUP = "backup"
    LIVE = "live"
    COMMIT = "commit"
    REPOSITORY = "repository"
    SNAPSHOT = "snapshot"
    POINT = "point"
    REPLACED = "replaced"

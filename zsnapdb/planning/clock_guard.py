"""Determines the time that decides about expiry, from the wall clock and the steady clock of this host. Pure.

A host records the last reading of its clocks. After this reading, the steady clock (CLOCK_BOOTTIME, which also runs
while the host is suspended) proves a minimum of elapsed time. Removals use the earlier of the proven time and the wall
clock. So zsnapdb never removes anything early when the wall clock jumps ahead or is behind.

After a reboot the length of the downtime is unknown, and the wall clock may have been corrected. So zsnapdb accepts a
jump only if a person confirms the clock, or if the wall clock has run at the right rate for some time. This time is an
hour after a reboot, and a day after any other jump.

When an object is created or used, the later of the proven time and the wall clock is recorded. So no object expires
early because the wall clock was behind. If the wall clock was ahead, the recorded time is in the future after the clock
is corrected. If `RemovalTime.is_sure` is set, zsnapdb detects this.

After a reboot, the proven time and the wall clock may be behind until the clock is set. When a clock is accepted, a
span of time is recorded. The span begins with the last reading before the jump or the first reading after a reboot,
whichever is later. It ends with the time to which the clock was set. If a recorded time is in this span, it is too
early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from zsnapdb.base.patterns import Moment, Seconds, Words
from zsnapdb.base.quantities import format_duration

TOLERANCE = 300.0
"""The number of seconds by which the proven time may be behind without a warning.

Reboots and NTP steps cause smaller differences.
"""
STEP = 5.0
"""The wall clock was set if its difference from the steady clock changes by more than this many seconds.

A change that slew can cause is subtracted first.
"""
_PRECISION = timedelta(seconds=1)
"""The resolution of recorded times, which are truncated to seconds."""
SLEW = 0.001
"""The fraction by which the proven time may run faster than the steady clock to follow the wall clock."""
SETTLED_AFTER_REBOOT = 3600.0
SETTLED_AFTER_STEP = 86_400.0
"""The time in seconds for which a wall clock must run at the right rate after a jump before it is accepted."""
RECORDED_EVERY = 60.0
"""The time in seconds between two writes of the record while the clocks agree.

Every command checks the clocks, and a write is slow because it is synced to disk.
"""
FAR = timedelta(days=1)
"""The largest accepted difference between two clocks.

Retention counts in hours or longer units, and a time zone that is mistaken for UTC differs by at most 14 hours. A clock
that is wrong by more than a day expires backups that retention would keep.
"""

MOST_SPANS = 64
"""The maximum number of spans in the record. Times recorded in these spans are too early. Older spans are dropped."""

CONFIRM = "check `date -u`; if the clock is right, run `zsnapdb reap --trust-clock`"
"""The hint for a doubtful clock."""


class ClockJump(StrEnum):
    """The reason why the wall clock disagrees with the steady clock.

    The wall clock is not trusted until a person or enough time confirms it.
    """

    REBOOT = "reboot"
    STEP = "step"


@dataclass(frozen=True)
class ClockReading:
    """A reading of both clocks at the same moment.

    The reading contains the wall clock's time (UTC), and the boot id with the seconds of this boot's steady clock.
    """

    wall: datetime
    boot: str
    steady: float


class ClockRecord(BaseModel):
    """The last recorded reading of a host's clocks, with the proven time at the moment of this reading.

    - `jump`: the reason why the wall clock is not accepted; None if it is accepted
    - `kept_rate`: the seconds of the steady clock for which the wall clock has run at the right rate since the jump
    - `since`: the start of this record, if less than a day ago; None if the record is older, or if a person confirmed
      the clock
    - `jumped`: the earliest time that this host may have recorded after the first unaccepted jump; None without such a
      jump
    - `before`: the later of both clocks' times before the latest unaccepted jump
    - `rebooted`: whether the host was rebooted since the first such jump, so that the proven time is only a lower bound
    - `early`: the spans in which recorded times were too early, oldest first
    - `behind_since`: the time to which the accepted clock was set back; None if it was not set back
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    wall: Moment
    boot: Words
    steady: Seconds
    proven: Moment
    jump: ClockJump | None = None
    kept_rate: Seconds = 0.0
    since: Moment | None = None
    jumped: Moment | None = None
    before: Moment | None = None
    rebooted: bool = False
    early: tuple[tuple[Moment, Moment], ...] = ()
    behind_since: Moment | None = None


@dataclass(frozen=True)
class RemovalTime:
    """The wall clock's time (UTC), the proven time, and the reason to doubt the wall clock ("" if there is none).

    The field `is_new` is set if this host started to record its clocks less than a day ago. The fields `jumped`,
    `before`, `rebooted` and `early` have the same meaning as in `ClockRecord`.
    """

    wall: datetime
    proven: datetime
    doubt: str = ""
    is_new: bool = field(default=False, compare=False)
    jumped: datetime | None = field(default=None, compare=False)
    before: datetime | None = field(default=None, compare=False)
    rebooted: bool = field(default=False, compare=False)
    early: tuple[tuple[datetime, datetime], ...] = field(default=(), compare=False)

    @property
    def at(self) -> datetime:
        """The time that decides about expiry: the earlier of both clocks' times."""
        return min(self.wall, self.proven)

    @property
    def latest(self) -> datetime:
        """The later of both clocks' times. A recorded time after this time is in the future."""
        return max(self.wall, self.proven)

    @property
    def is_sure(self) -> bool:
        """Whether a recorded time after `latest` proves that the clock was ahead when the time was recorded."""
        return not self.doubt and not self.is_new

    def is_from_future(self, recorded: datetime) -> bool:
        """Return whether a time that this host recorded was surely ahead of the real time."""
        return self.is_sure and recorded > self.latest + timedelta(seconds=TOLERANCE)

    def is_wrong(self, recorded: datetime) -> bool:
        """Return whether a time that this host recorded was surely ahead of the real time, or possibly behind it."""
        return self.is_from_future(recorded) or (not self.doubt and self._is_early(recorded))

    def is_unsure(self, recorded: datetime) -> bool:
        """Return whether a time that this host recorded was possibly behind the real time."""
        if self.doubt and self.rebooted and self.jumped is not None and recorded > self.jumped - _PRECISION:
            return True
        return self._is_early(recorded)

    def _is_early(self, recorded: datetime) -> bool:
        # A time that was recorded right after the clock was accepted seems too early, because times are truncated to
        # seconds.
        return any(first - _PRECISION < recorded <= last - _PRECISION for first, last in self.early)

    def is_age_unknown(self, recorded: datetime) -> bool:
        """Return whether the age of an object with this recorded time is unknown.

        The time may have been recorded before a clock jump, or it may be in the future. In both cases, the object may
        be older than it seems.
        """
        slack = timedelta(seconds=RECORDED_EVERY)
        is_before_jump = bool(self.doubt) and self.before is not None and recorded <= self.before + slack
        return is_before_jump or recorded > self.latest + timedelta(seconds=TOLERANCE)

    def prune_doubt(self, store: datetime | None, backups: Sequence[datetime]) -> str:
        """Return why a prune must not use this clock; "" if the clock may be used.

        The argument `store` is the time of the store's clock, or None if unknown. `backups` are the times of the
        backups, oldest first.

        If the time of the store is unknown, the age of the newest backup is limited to one day plus twice the longest
        pause between two backups. This check is skipped if there are fewer than two backups.
        """
        now, reasons = self.wall, list[str]()
        past = [time for time in backups if time <= now]
        pauses = [later - earlier for earlier, later in pairwise(past)]
        if store is not None and abs(now - store) > FAR:
            side = "ahead of" if now > store else "behind"
            reasons.append(f"the clock of this host is {_days(abs(now - store))} {side} the clock of the store")
        if store is None and pauses and now - past[-1] > FAR + 2 * max(*pauses, timedelta()):
            reasons.append(
                f"the newest backup is {_days(now - past[-1])} old by the clock of this host, and no pause between two"
                f" backups was longer than {_days(max(pauses))}"
            )
        if now - self.at > FAR:
            reasons.append(self.doubt)
        return "; ".join(reasons)


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):.1f} days"


def first_record(reading: ClockReading) -> ClockRecord:
    """Return the first record after a clock was accepted.

    A clock is accepted if a person confirmed it, or if it ran at the right rate for long enough.
    """
    return ClockRecord(wall=reading.wall, boot=reading.boot, steady=reading.steady, proven=reading.wall)


def accepted(record: ClockRecord, reading: ClockReading) -> ClockRecord:
    """Return the record after the clock was accepted. The argument `record` already contains the clock's reading.

    The times that were recorded between the jump and the last setting of the clock are too early.
    """
    was_set = reading.wall - timedelta(seconds=record.kept_rate)
    ahead, behind_since = (reading.wall - record.proven).total_seconds(), record.behind_since
    spans = list(record.early)
    if record.jumped is not None:
        starts = [record.jumped]
        if ahead > TOLERANCE and behind_since is not None:
            # If the clock was set back and then forward, it was behind between these two changes.
            starts.append(behind_since)
        booted = record.proven - timedelta(seconds=reading.steady)
        if ahead > TOLERANCE and record.jump is ClockJump.STEP and record.jumped - booted < FAR:
            # If a clock is set forward soon after the boot, it was behind since the boot.
            starts.append(booted)
        spans.append((min(starts), was_set))
    # A clock that was set back shows the times of earlier spans a second time.
    early = [(first, min(last, was_set)) for first, last in spans if (was_set - first).total_seconds() > TOLERANCE]
    if abs(ahead) > TOLERANCE:
        behind_since = was_set if ahead < 0 else None
    after = {"early": tuple(early[-MOST_SPANS:]), "behind_since": behind_since}
    return first_record(reading).model_copy(update=after)


def confirmed(record: ClockRecord | None, reading: ClockReading) -> ClockRecord:
    """Return the record after a person confirmed the clock."""
    if record is None:
        return first_record(reading)
    return accepted(follow(record, reading), reading).model_copy(update={"behind_since": None})


def follow(record: ClockRecord | None, reading: ClockReading) -> ClockRecord:
    """Return the record that follows `record` with a new reading.

    A jump of the wall clock never moves the proven time forward.
    """
    if record is None:
        return first_record(reading).model_copy(update={"since": reading.wall})
    # If the steady clock shows an earlier time than before, it is another clock, for example that of another container.
    is_same_boot = record.boot == reading.boot and reading.steady >= record.steady
    passed = reading.steady - record.steady if is_same_boot else reading.steady
    proven = record.proven + timedelta(seconds=passed)
    slewed = timedelta(seconds=passed * SLEW)
    ahead = reading.wall - proven
    if ahead > timedelta():
        proven = min(reading.wall, proven + slewed)
    small = timedelta(seconds=STEP) if record.jump is None else timedelta()
    if abs(ahead) <= slewed + small:
        return _recorded(record, reading, proven, None, 0.0)
    jump, kept = record.jump or ClockJump.STEP, record.kept_rate + passed
    if not is_same_boot:
        jump, kept = record.jump or ClockJump.REBOOT, 0.0
    elif is_step(record, reading):
        # If the clock is set soon after a reboot, this corrects for the downtime, so the jump still counts as a reboot.
        kept = 0.0
    # No time recorded since the reboot is earlier than the later of both clocks' times in this reading.
    latest = max(proven, reading.wall)
    jumped = min(record.jumped, latest) if record.jumped else record.proven if is_same_boot else latest
    before = record.before
    if kept == 0.0 or before is None:
        before = max(record.wall, record.proven)
    facts = {"jumped": jumped, "before": before, "rebooted": record.rebooted or not is_same_boot}
    doubtful = _recorded(record, reading, proven, jump, kept).model_copy(update=facts)
    is_settled = kept >= (SETTLED_AFTER_REBOOT if jump is ClockJump.REBOOT else SETTLED_AFTER_STEP)
    return accepted(doubtful, reading) if is_settled else doubtful


def is_step(record: ClockRecord, reading: ClockReading) -> bool:
    """Return whether the wall clock was set between the recorded reading and a later reading in the same boot."""
    passed = reading.steady - record.steady
    return abs((reading.wall - record.wall).total_seconds() - passed) > STEP + passed * SLEW


def was_set_back(before: ClockReading, now: ClockReading) -> bool:
    """Return whether the wall clock was certainly set back between two readings.

    A clock that was set back was ahead at the first reading.

    If the host rebooted between the readings, only the time since the reboot is certain to have passed.
    """
    is_same_boot = before.boot == now.boot and now.steady >= before.steady
    passed = now.steady - before.steady if is_same_boot else now.steady
    return (now.wall - before.wall).total_seconds() + TOLERANCE < passed


def is_due(before: ClockRecord, record: ClockRecord, reading: ClockReading) -> bool:
    """Return whether `record` must replace the stored record `before`."""
    if (before.boot, before.jump) != (record.boot, record.jump) or is_step(before, reading):
        return True
    return not 0 <= record.steady - before.steady < RECORDED_EVERY


def _recorded(
    before: ClockRecord, reading: ClockReading, proven: datetime, jump: ClockJump | None, kept: float
) -> ClockRecord:
    is_new = before.since is not None and proven - before.since < timedelta(seconds=SETTLED_AFTER_STEP)
    return ClockRecord(
        wall=reading.wall,
        boot=reading.boot,
        steady=reading.steady,
        proven=proven,
        jump=jump,
        kept_rate=kept,
        since=before.since if is_new else None,
        early=before.early,
        behind_since=before.behind_since,
    )


def removal_time(record: ClockRecord) -> RemovalTime:
    """Return the time that decides about expiry. The argument `record` contains the current reading of the clocks."""
    off = (record.wall - record.proven).total_seconds()
    if abs(off) <= TOLERANCE or record.jump is None:
        return RemovalTime(record.wall, record.proven, is_new=record.since is not None, early=record.early)
    span, side = format_duration(round(abs(off))), "ahead of" if off > 0 else "behind"
    is_reboot = record.jump is ClockJump.REBOOT
    since = "the time that this host can prove since it was restarted" if is_reboot else "its steady clock"
    needed = SETTLED_AFTER_REBOOT if is_reboot else SETTLED_AFTER_STEP
    left = format_duration(max(1, round(needed - record.kept_rate)))
    doubt = (
        f"the clock of this host is {span} {side} {since}; it is believed when it has gone on at its rate for {left}"
    )
    is_new = record.since is not None
    jumped, before, early = record.jumped, record.before, record.early
    return RemovalTime(record.wall, record.proven, doubt, is_new, jumped, before, record.rebooted, early)

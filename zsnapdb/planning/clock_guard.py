"""The time that removals count with: the clock of this host, as far as its steady clock confirms it. Pure.

A host records the last reading of its clocks. From that record on, the steady clock (CLOCK_BOOTTIME, which also counts
while the host is suspended) says how much time has passed at least. Removals use this proven time: a clock that jumps
ahead removes nothing before its time. A clock that is behind removes nothing either, as the earlier time counts.

After a reboot nobody knows for how long the host was off, and a clock may have been set right. So a jump is confirmed
by a person, or because the clock then goes on at the right rate: for an hour after a reboot, for a day otherwise.

What is made or used is recorded with the later one of both times, so that nothing ends early that was made while the
clock was behind. What was made while it was ahead has a time in the future, and is settled (`RemovalTime.is_sure`) as
soon as the clock is right.
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
"""Seconds. The proven time may be so much behind without a word: reboots and steps of NTP are no longer."""
STEP = 5.0
"""Seconds. A clock that differs more from the steady clock, plus the slew, was set."""
SLEW = 0.001
"""How much faster than the steady clock the proven time follows the clock."""
SETTLED_AFTER_REBOOT = 3600.0
SETTLED_AFTER_STEP = 86_400.0
"""Seconds of the steady clock for which a clock that jumped must go on at its rate, until it is believed."""
FAR = timedelta(days=1)
"""How far two clocks may differ.

Retention counts in hours at the least, and no time zone that was taken for UTC is more than 14 hours away. A clock that
is wrong by more than a day lets backups go that the rules would keep.
"""

CONFIRM = "check `date -u`; if the clock is right, run `zsnapdb reap --trust-clock`"
"""What a person does about a doubt."""


class ClockJump(StrEnum):
    """When a clock that is not believed yet came to differ."""

    REBOOT = "reboot"
    STEP = "step"


@dataclass(frozen=True)
class ClockReading:
    """Both clocks at one moment: the wall clock (UTC), the boot, and the seconds of its steady clock."""

    wall: datetime
    boot: str
    steady: float


class ClockRecord(BaseModel):
    """The last reading that a host recorded, and the proven time at that moment.

    `jump`: why the wall clock is not believed (None: it is). `kept_rate`: for how many seconds of the steady clock it
    has kept its rate since. `since`: when a record was begun that is younger than a day (None: it is older, or a person
    confirmed the clock).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    wall: Moment
    boot: Words
    steady: Seconds
    proven: Moment
    jump: ClockJump | None = None
    kept_rate: Seconds = 0.0
    since: Moment | None = None


@dataclass(frozen=True)
class RemovalTime:
    """The wall clock (UTC), the time that the steady clock proves, and the doubt about the wall clock ("": none).

    `is_new`: this host has recorded its clocks for less than a day.
    """

    wall: datetime
    proven: datetime
    doubt: str = ""
    is_new: bool = field(default=False, compare=False)

    @property
    def at(self) -> datetime:
        """The time that removals count with: neither clock removes anything before the other one would."""
        return min(self.wall, self.proven)

    @property
    def latest(self) -> datetime:
        """The later one of both times, by which nothing is believed to be more recent than it is."""
        return max(self.wall, self.proven)

    @property
    def is_sure(self) -> bool:
        """Whether a recorded time after `latest` is wrong: the clock was ahead when it was recorded."""
        return not self.doubt and not self.is_new

    def is_from_future(self, recorded: datetime) -> bool:
        """Whether a time that this host recorded is surely wrong, as it was ahead of the clock."""
        return self.is_sure and recorded > self.latest + timedelta(seconds=TOLERANCE)

    def prune_doubt(self, store: datetime | None, backups: Sequence[datetime]) -> str:
        """Return why a prune may not count with the clock; "" if nothing speaks against it.

        `store` is the clock of the store (None: unknown). `backups` are the times of the backups, oldest first. The
        newest backup may be as old as twice the longest pause between two backups so far, and a day. With fewer than
        two backups nothing is expected, nor with a store whose own clock agrees.
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
    """Return the record of a clock that is believed: a person confirmed it, or time did."""
    return ClockRecord(wall=reading.wall, boot=reading.boot, steady=reading.steady, proven=reading.wall)


def follow(record: ClockRecord | None, reading: ClockReading) -> ClockRecord:
    """Return the record of a new reading. Its proven time is never ahead of the wall clock because of a jump."""
    if record is None:
        # Nothing is known of the clock yet.
        return first_record(reading).model_copy(update={"since": reading.wall})
    # A steady clock that went back is another one, such as that of another container.
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
        # Who sets the clock of a host that was just restarted makes up for the time that it was off.
        kept = 0.0
    if kept >= (SETTLED_AFTER_REBOOT if jump is ClockJump.REBOOT else SETTLED_AFTER_STEP):
        return first_record(reading)
    return _recorded(record, reading, proven, jump, kept)


def is_step(record: ClockRecord, reading: ClockReading) -> bool:
    """Whether the wall clock was set between the record and a reading of the same boot."""
    passed = reading.steady - record.steady
    return abs((reading.wall - record.wall).total_seconds() - passed) > STEP + passed * SLEW


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
    )


def removal_time(record: ClockRecord) -> RemovalTime:
    """Return the time that removals count with, by a record of this moment."""
    off = (record.wall - record.proven).total_seconds()
    if abs(off) <= TOLERANCE or record.jump is None:
        return RemovalTime(record.wall, record.proven, is_new=record.since is not None)
    span, side = format_duration(round(abs(off))), "ahead of" if off > 0 else "behind"
    is_reboot = record.jump is ClockJump.REBOOT
    since = "the time that this host can prove since it was restarted" if is_reboot else "its steady clock"
    needed = SETTLED_AFTER_REBOOT if is_reboot else SETTLED_AFTER_STEP
    left = format_duration(max(1, round(needed - record.kept_rate)))
    doubt = (
        f"the clock of this host is {span} {side} {since}; it is believed when it has gone on at its rate for {left}"
    )
    return RemovalTime(record.wall, record.proven, doubt, is_new=record.since is not None)

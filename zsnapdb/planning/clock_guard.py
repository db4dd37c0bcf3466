"""The time that removals count with: the clock of this host, as far as its steady clock confirms it. Pure.

A host records the last reading of its clocks. From that record on, the steady clock (CLOCK_BOOTTIME, which also counts
while the host is suspended) says how much time has passed at least. Removals use this proven time: a clock that jumps
ahead removes nothing before its time. A clock that is behind removes nothing either, as the earlier time counts.

After a reboot nobody knows for how long the host was off, and a clock may have been set right. So a jump is confirmed
by a person, or because the clock then goes on at the right rate: for an hour after a reboot, for a day otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

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
    has kept its rate since.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    wall: Moment
    boot: Words
    steady: Seconds
    proven: Moment
    jump: ClockJump | None = None
    kept_rate: Seconds = 0.0


@dataclass(frozen=True)
class RemovalTime:
    """The wall clock (UTC), the time that the steady clock proves, and the doubt about the wall clock ("": none)."""

    wall: datetime
    proven: datetime
    doubt: str = ""

    @property
    def at(self) -> datetime:
        """The time that removals count with: neither clock removes anything before the other one would."""
        return min(self.wall, self.proven)

    @property
    def latest(self) -> datetime:
        """The later one of both times, by which nothing is believed to be more recent than it is."""
        return max(self.wall, self.proven)


def first_record(reading: ClockReading) -> ClockRecord:
    """Return the record of a clock that is believed: a person confirmed it, or nothing is known of it."""
    return ClockRecord(wall=reading.wall, boot=reading.boot, steady=reading.steady, proven=reading.wall)


def follow(record: ClockRecord | None, reading: ClockReading) -> ClockRecord:
    """Return the record of a new reading. Its proven time is never ahead of the wall clock because of a jump."""
    if record is None:
        return first_record(reading)
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
        return _recorded(reading, proven, None, 0.0)
    jump, kept = record.jump or ClockJump.STEP, record.kept_rate + passed
    if not is_same_boot:
        jump, kept = record.jump or ClockJump.REBOOT, 0.0
    elif is_step(record, reading):
        # Who sets the clock of a host that was just restarted makes up for the time that it was off.
        kept = 0.0
    if kept >= (SETTLED_AFTER_REBOOT if jump is ClockJump.REBOOT else SETTLED_AFTER_STEP):
        return first_record(reading)
    return _recorded(reading, proven, jump, kept)


def is_step(record: ClockRecord, reading: ClockReading) -> bool:
    """Whether the wall clock was set between the record and a reading of the same boot."""
    passed = reading.steady - record.steady
    return abs((reading.wall - record.wall).total_seconds() - passed) > STEP + passed * SLEW


def _recorded(reading: ClockReading, proven: datetime, jump: ClockJump | None, kept: float) -> ClockRecord:
    return ClockRecord(
        wall=reading.wall, boot=reading.boot, steady=reading.steady, proven=proven, jump=jump, kept_rate=kept
    )


def removal_time(record: ClockRecord) -> RemovalTime:
    """Return the time that removals count with, by a record of this moment."""
    off = (record.wall - record.proven).total_seconds()
    if abs(off) <= TOLERANCE or record.jump is None:
        return RemovalTime(record.wall, record.proven)
    span, side = format_duration(round(abs(off))), "ahead of" if off > 0 else "behind"
    is_reboot = record.jump is ClockJump.REBOOT
    since = "the time that this host can prove since it was restarted" if is_reboot else "its steady clock"
    needed = SETTLED_AFTER_REBOOT if is_reboot else SETTLED_AFTER_STEP
    left = format_duration(max(1, round(needed - record.kept_rate)))
    doubt = (
        f"the clock of this host is {span} {side} {since}; it is believed when it has gone on at its rate for {left}"
    )
    return RemovalTime(record.wall, record.proven, doubt)

"""The time that expiry uses: the wall clock of this host, as far as its steady clock confirms it. Pure.

A host records the last reading of its clocks. From then on the steady clock (CLOCK_BOOTTIME, which also counts while
the host is suspended) proves a minimum of elapsed time. Removals use the earlier of the proven time and the wall clock.
So neither a wall clock that jumps ahead nor one that is behind removes anything early.

After a reboot the length of the downtime is unknown, and the wall clock may have been corrected. So a jump is accepted
only if a person confirms it, or if the wall clock then keeps its rate. That takes an hour after a reboot, else a day.

Creation and use are recorded with the later of both times, so nothing expires early that was created while the wall
clock was behind. If the wall clock was ahead, the recorded time is in the future. `RemovalTime.is_sure` detects this as
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
"""Seconds by which the proven time may be behind without a warning; reboots and NTP steps are no longer."""
STEP = 5.0
"""Seconds. If the wall clock differs more from the steady clock plus slew, it was set."""
SLEW = 0.001
"""The fraction by which the proven time may run faster than the steady clock to follow the wall clock."""
SETTLED_AFTER_REBOOT = 3600.0
SETTLED_AFTER_STEP = 86_400.0
"""Seconds of the steady clock for which a wall clock must keep its rate after a jump before it is accepted."""
FAR = timedelta(days=1)
"""The largest accepted difference between two clocks.

Retention counts in hours or longer, and a time zone mistaken for UTC differs by at most 14 hours. A clock that is wrong
by more than a day expires backups that retention would keep.
"""

CONFIRM = "check `date -u`; if the clock is right, run `zsnapdb reap --trust-clock`"
"""The hint for a doubtful clock."""


class ClockJump(StrEnum):
    """The event after which the wall clock differs and is not accepted yet."""

    REBOOT = "reboot"
    STEP = "step"


@dataclass(frozen=True)
class ClockReading:
    """The wall clock (UTC) and, at the same moment, the boot id with the seconds of its steady clock."""

    wall: datetime
    boot: str
    steady: float


class ClockRecord(BaseModel):
    """The last recorded reading of a host's clocks, with the proven time at that moment.

    - `jump`: why the wall clock is not accepted (None: it is)
    - `kept_rate`: seconds of the steady clock for which the wall clock has kept its rate since
    - `since`: the start of a record that is younger than a day (None: it is older, or a person confirmed the clock)
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
    """The wall clock (UTC), the proven time, and the doubt about the wall clock ("": none).

    `is_new`: this host has recorded its clocks for less than a day.
    """

    wall: datetime
    proven: datetime
    doubt: str = ""
    is_new: bool = field(default=False, compare=False)

    @property
    def at(self) -> datetime:
        """The time that expiry uses: the earlier of both clocks."""
        return min(self.wall, self.proven)

    @property
    def latest(self) -> datetime:
        """The later of both clocks. A recorded time after it is in the future."""
        return max(self.wall, self.proven)

    @property
    def is_sure(self) -> bool:
        """Whether a recorded time after `latest` must be wrong: the clock was ahead when it was recorded."""
        return not self.doubt and not self.is_new

    def is_from_future(self, recorded: datetime) -> bool:
        """Return whether a time that this host recorded was surely ahead of the real time."""
        return self.is_sure and recorded > self.latest + timedelta(seconds=TOLERANCE)

    def prune_doubt(self, store: datetime | None, backups: Sequence[datetime]) -> str:
        """Return why a prune must not use this clock; "" if it may.

        `store` is the clock of the store (None: unknown). `backups` are the times of the backups, oldest first.

        Without a store clock, the newest backup may be a day older than twice the longest pause between two backups.
        With fewer than two backups this check is skipped.
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
    """Return the record of an accepted clock: a person confirmed it, or it kept its rate long enough."""
    return ClockRecord(wall=reading.wall, boot=reading.boot, steady=reading.steady, proven=reading.wall)


def follow(record: ClockRecord | None, reading: ClockReading) -> ClockRecord:
    """Return the record of a new reading. A jump of the wall clock never puts the proven time ahead of it."""
    if record is None:
        return first_record(reading).model_copy(update={"since": reading.wall})
    # A steady clock that went back is a different clock, for example that of another container.
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
        # Setting the clock soon after a restart corrects for the downtime, so the jump stays a reboot.
        kept = 0.0
    if kept >= (SETTLED_AFTER_REBOOT if jump is ClockJump.REBOOT else SETTLED_AFTER_STEP):
        return first_record(reading)
    return _recorded(record, reading, proven, jump, kept)


def is_step(record: ClockRecord, reading: ClockReading) -> bool:
    """Return whether the wall clock was set between the record and a reading of the same boot."""
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
    """Return the time that expiry uses, from a record of this moment."""
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

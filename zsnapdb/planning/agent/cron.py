"""Reads cron expressions as cron does (crontab(5)), for a scheduler that numbers weekdays otherwise. Pure.

Cron's weekdays are 0 to 7, both 0 and 7 Sunday; a scheduler may count from Monday. So weekdays are given by name. A day
of the month and a weekday that are both restricted each suffice; if one of them begins with `*`, both must match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from zsnapdb.base.errors import ConfigError

_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_SUNDAY = 7
"""Sunday at the end of a range."""
_EVERY = re.compile(r"\*(?:/(\d{1,3}))?")
_SOME = re.compile(r"([0-7]|[a-z]{3})(?:-([0-7]|[a-z]{3})(?:/(\d{1,3}))?)?")


@dataclass(frozen=True)
class CronDays:
    """The days of the month and the weekdays of a schedule, which must both match. Weekdays are names or `*`."""

    day: str
    weekday: str


@dataclass(frozen=True)
class CronTimes:
    """When a job runs: at these minutes, hours and months, on the days that match one of `days`."""

    minute: str
    hour: str
    month: str
    days: tuple[CronDays, ...]


def cron_times(expression: str) -> CronTimes:
    """Return the times of a cron expression of five fields.

    ConfigError if the weekdays cannot be read; the other fields are as they stand.
    """
    minute, hour, day, month, weekday = expression.split()
    try:
        named = _weekdays(weekday.lower())
    except ValueError as error:
        raise ConfigError(
            f"cron = {expression!r}: {error}",
            hint="a weekday is 0 to 7 (0 and 7 are Sunday) or sun to sat; write 6, 1-5, mon-fri, 1,3 or */2",
        ) from error
    if day.startswith("*") or weekday.startswith("*"):
        return CronTimes(minute, hour, month, (CronDays(day, named),))
    return CronTimes(minute, hour, month, (CronDays(day, "*"), CronDays("*", named)))


def _weekdays(field: str) -> str:
    """Return the names of the weekdays, or `*` for all of them."""
    numbers = {number % 7 for part in field.split(",") for number in _part(part)}
    return "*" if len(numbers) == 7 else ",".join(_NAMES[number] for number in sorted(numbers))


def _part(part: str) -> range:
    every, some = _EVERY.fullmatch(part), _SOME.fullmatch(part)
    if every is not None:
        return range(0, _SUNDAY + 1, _step(every[1]))
    if some is None:
        raise ValueError(f"{part!r} is no weekday")
    first = _number(some[1])
    if some[2] is None:
        return range(first, first + 1)
    last = _number(some[2])
    if last == 0 and first > 0:
        last = _SUNDAY
    if last < first:
        raise ValueError(f"the weekdays {part} end before they begin")
    return range(first, last + 1, _step(some[3]))


def _number(word: str) -> int:
    number = int(word) if word.isdecimal() else _NUMBERS.get(word)
    if number is None:
        raise ValueError(f"{word!r} is no weekday")
    return number


def _step(word: str | None) -> int:
    step = int(word) if word is not None else 1
    if step == 0:
        raise ValueError("a step is at least 1")
    return step

"""When no job begins: windows of maintenance. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from zsnapdb.config.fleet_jobs import WindowSettings

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOST = 8
"""Windows that follow each other are looked at as one, so many at most: then a job begins."""


def windows_of(host: str, windows: Sequence[WindowSettings]) -> tuple[WindowSettings, ...]:
    """Return the windows of this host."""
    return tuple(one for one in windows if any(fnmatch.fnmatchcase(host, pattern) for pattern in one.hosts))


def closed_until(windows: Sequence[WindowSettings], now: datetime) -> datetime | None:
    """Return the end (UTC) of the windows in which this moment lies; None if it lies in none."""
    at = now
    for _ in range(_MOST):
        ends = [end for one in windows if (end := _end(one, at)) is not None]
        if not ends:
            break
        at = max(ends)
    return at if at > now else None


def _end(window: WindowSettings, now: datetime) -> datetime | None:
    zone = ZoneInfo(window.timezone)
    local = now.astimezone(zone)
    # A window of yesterday may end today.
    for day in (local.date() - timedelta(days=1), local.date()):
        if _DAYS[day.weekday()] not in window.days:
            continue
        last = day + timedelta(days=1) if window.end < window.start else day
        # A time that the clock repeats or leaves out is two moments: the window has both.
        start, end = min(_at(day, window.start, zone)), max(_at(last, window.end, zone))
        if start <= now < end:
            return end
    return None


def _at(day: object, text: str, zone: ZoneInfo) -> list[datetime]:
    wall = datetime.fromisoformat(f"{day} {text}").replace(tzinfo=zone)
    return [wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1)]

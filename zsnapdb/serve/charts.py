"""Geometry of charts, as pure functions. Coordinates refer to a picture of WIDTH by HEIGHT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

WIDTH = 1000.0
HEIGHT = 100.0
_LEAST_WIDTH = 3.0
"""Minimum width of a span. A gap of a few minutes must be visible in a chart of one month."""
_MARGIN = 10.0
_SIDE = 25.0
"""Free space on each side of a plot, so that a dot at the edge is not cut off."""


@dataclass(frozen=True)
class TimeSpan:
    """A span of time, and whether the span is a gap."""

    begin: datetime
    end: datetime
    is_gap: bool


@dataclass(frozen=True)
class ChartBar:
    """A span's bar in a timeline, with its left end and its width."""

    x: float
    width: float
    is_gap: bool


@dataclass(frozen=True)
class Timeline:
    """Spans of time and moments, in one row. Gaps come last, so that they are drawn over the spans without gaps."""

    begin: datetime
    end: datetime
    bars: tuple[ChartBar, ...]
    marks: tuple[float, ...]


@dataclass(frozen=True)
class PlotPoint:
    """A value in a plot; y grows downwards. `is_good` is True if the measured run succeeded."""

    x: float
    y: float
    is_good: bool


@dataclass(frozen=True)
class TimedValue:
    """A value and its time."""

    at: datetime
    value: float
    is_good: bool


def timeline(spans: Sequence[TimeSpan], moments: Sequence[datetime], now: datetime) -> Timeline | None:
    """Return the timeline of the spans and moments, from the earliest of them until now; None if there are none."""
    times = [*moments, *(one.begin for one in spans), *(one.end for one in spans)]
    if not times:
        return None
    begin, end = min(times), max(now, *times)
    seconds = max((end - begin).total_seconds(), 1.0)

    def place(time: datetime) -> float:
        return WIDTH * (time - begin).total_seconds() / seconds

    bars = [_bar(place(one.begin), place(one.end), is_gap=one.is_gap) for one in spans]
    joined = (*_joined(bars, is_gap=False), *_joined(bars, is_gap=True))
    return Timeline(begin, end, joined, tuple(place(one) for one in moments))


def _joined(bars: Sequence[ChartBar], *, is_gap: bool) -> list[ChartBar]:
    """Return the bars of this kind from left to right. Touching bars are joined, to limit the size of the picture."""
    joined: list[ChartBar] = []
    for bar in sorted((one for one in bars if one.is_gap is is_gap), key=lambda one: one.x):
        last = joined[-1] if joined else None
        if last is not None and bar.x <= last.x + last.width:
            joined[-1] = ChartBar(last.x, max(last.width, bar.x + bar.width - last.x), is_gap)
        else:
            joined.append(bar)
    return joined


def _bar(begin: float, end: float, *, is_gap: bool) -> ChartBar:
    width = max(end - begin, _LEAST_WIDTH)
    return ChartBar(min(begin, WIDTH - width), width, is_gap)


def plot(values: Sequence[TimedValue], begin: datetime, end: datetime) -> tuple[PlotPoint, ...]:
    """Return the points of the values between `begin` and `end`.

    The largest value is at the top, and zero is at the bottom.
    """
    seconds = (end - begin).total_seconds()
    most = max((one.value for one in values), default=0.0) or 1.0
    high, wide = HEIGHT - 2 * _MARGIN, WIDTH - 2 * _SIDE
    return tuple(
        PlotPoint(
            _SIDE + (wide * (one.at - begin).total_seconds() / seconds if seconds > 0 else wide / 2),
            HEIGHT - _MARGIN - high * max(one.value, 0.0) / most,
            one.is_good,
        )
        for one in values
    )


def line(points: Sequence[PlotPoint]) -> str:
    """Return the line through the points as an SVG path."""
    return " ".join(f"{'L' if n else 'M'}{one.x:.1f} {one.y:.1f}" for n, one in enumerate(points))

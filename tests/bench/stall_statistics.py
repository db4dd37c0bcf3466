"""What can be said of waits that were measured in windows of one length, and what cannot. Pure.

Windows of a round lie close together in time, so rounds are resampled whole (the bootstrap): drift of the machine
hits all cases of a round alike. The untouched server is measured twice in each round. What these two differ by is
noise, and what is not clear of it is not reported.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST_ROUNDS = 30
SHARE = 0.999
_RESAMPLES = 2000
_OUTSIDE = 0.025
"""The share of the resamples on each side of an interval: it has 95 % of them."""

Windows = Sequence[Sequence[float]]
"""The waits in each window, a window of a case in each round."""


@dataclass(frozen=True)
class Interval:
    """A measured value, and between which values 95 % of the resamples lie."""

    low: float
    value: float
    high: float

    def reach(self, neutral: float) -> float:
        """Return how far the interval goes from the neutral value: 1 of a ratio, 0 of a difference."""
        return max(abs(self.low - neutral), abs(self.high - neutral))


class Tail:
    """The waits of all windows of a case: the value that the share of them does not exceed, by nearest rank."""

    def __init__(self, windows: Windows, share: float = SHARE) -> None:
        self._counts = [len(waits) for waits in windows]
        self._falling = sorted(((wait, number) for number, waits in enumerate(windows) for wait in waits), reverse=True)
        self._share = share

    def of(self, rounds: Sequence[int]) -> float:
        """Return the value of these rounds, each as often as it is named. ValueError if they have no waits."""
        weights = Counter(rounds)
        total = sum(self._counts[number] * weight for number, weight in weights.items())
        # As a float the product may lie a little above the whole number.
        above = total - math.ceil(round(total * self._share, 6))
        for wait, number in self._falling:
            above -= weights[number]
            if above < 0:
                return wait
        raise ValueError("there are no waits")


def beginning_within(waits: Sequence[float], first: float, length: float) -> list[float]:
    """Return the waits that begin before `length`. They follow each other; the first one begins at `first`."""
    within = []
    at = first
    for wait in waits:
        if at >= length:
            break
        within.append(wait)
        at += wait
    return within


def resampled(statistic: Callable[[Sequence[int]], float], rounds: int, seed: int = 1) -> Interval:
    """Return the statistic of the numbers of all rounds, and its bootstrap interval (percentiles)."""
    numbers = range(rounds)
    chance = random.Random(seed)
    values = sorted(statistic(chance.choices(numbers, k=rounds)) for _ in range(_RESAMPLES))
    outside = int(_RESAMPLES * _OUTSIDE)
    return Interval(values[outside], statistic(numbers), values[-1 - outside])


def tail(windows: Windows) -> Interval:
    """Return the p99.9 of the waits of all windows."""
    return resampled(Tail(windows).of, len(windows))


def ratio_of_tails(above: Windows, below: Windows) -> Interval:
    """Return the p99.9 of the waits of one case, as a multiple of that of another in the same rounds."""
    one, other = Tail(above), Tail(below)
    return resampled(lambda rounds: one.of(rounds) / other.of(rounds), len(above))


def median(values: Sequence[float]) -> Interval:
    """Return the median of a value of each round."""
    return resampled(lambda rounds: statistics.median(values[number] for number in rounds), len(values))


def difference_of_medians(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Return by how much the median of one case is above that of another in the same rounds."""

    def difference(rounds: Sequence[int]) -> float:
        return statistics.median(above[n] for n in rounds) - statistics.median(below[n] for n in rounds)

    return resampled(difference, len(above))


def too_few(rounds: int) -> str | None:
    """Return why so many rounds say nothing, or None."""
    return f"{rounds} rounds prove nothing: at least {LEAST_ROUNDS} are needed" if rounds < LEAST_ROUNDS else None


def objection(measured: Interval, noise: Interval, *, neutral: float, margin: float, rounds: int) -> str | None:
    """Return why the measured value must not be reported, or None.

    `noise` is the same value of two cases that do not differ. `margin` is by how much the goal lies above neutral. What
    is measured must be larger than the noise; or else the noise smaller than the margin: then it is known to be small.
    """
    if (few := too_few(rounds)) is not None:
        return few
    reach, effect = noise.reach(neutral), abs(measured.value - neutral)
    if reach >= max(effect, margin):
        return (
            f"the untouched server differs from itself by up to {reach:.3g}, what is measured by {effect:.3g} (the goal"
            f" allows {margin:.3g})"
        )
    return None

"""Which zstd level the next chunks get where it is left to the tool."""

from __future__ import annotations

LOWEST, HIGHEST = 1, 12
_BUSY, _LEISURELY = 0.85, 0.55
"""Shares of the processors' time.

A level more costs at most half as much again, so the step up from the lower one stays below the upper one.
"""


def next_level(level: int, *, sealing: float, elapsed: float, processors: int) -> int:
    """Return the level after `elapsed` seconds in which all workers together spent `sealing` seconds on compressing.

    Where the processors are what is waited for, a cheaper one, as the network (or the source) waits; where they have
    time to spare, a dearer one, as then fewer bytes have to travel. A step at a time; the time a worker waits for a
    processor counts as sealing.
    """
    load = sealing / (max(elapsed, 1e-9) * processors)
    if load > _BUSY:
        return max(level - 1, LOWEST)
    if load < _LEISURELY:
        return min(level + 1, HIGHEST)
    return level

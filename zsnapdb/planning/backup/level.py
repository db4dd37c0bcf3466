"""Which zstd level the next chunks get if the configuration leaves the level to zsnapdb."""

from __future__ import annotations

LOWEST, HIGHEST = 1, 12
_BUSY, _LEISURELY = 0.85, 0.55
"""Shares of the processors' time.

The next higher level costs at most half as much again. So a step up from the lower share stays below the upper share.
"""


def next_level(level: int, *, busy: float, elapsed: float, processors: int) -> int:
    """Return the level after `elapsed` seconds in which all workers together were `busy` seconds with making chunks.

    The level goes one step down if the processors are the bottleneck: the network (or the source) waits for them. The
    level goes one step up if the processors have time to spare: then fewer bytes have to travel. The time that a worker
    waits for a processor counts as busy.
    """
    load = busy / (max(elapsed, 1e-9) * processors)
    if load > _BUSY:
        return max(level - 1, LOWEST)
    if load < _LEISURELY:
        return min(level + 1, HIGHEST)
    return level

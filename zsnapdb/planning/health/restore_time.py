"""How long a restore of the newest point takes, by past drills and the bytes it moves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.planning.trial.drill import Timing, expected_seconds

_OF_BYTES = ("receive", "replay")
"""The kinds of steps whose duration depends on bytes."""
_OF_CHECKS = ("pages", "tables", "probes", "boot", "ask")
"""The kinds of steps that a drill makes and a restore does not."""


def restore_seconds(history: Sequence[Timing], sizes: Mapping[str, int]) -> float | None:
    """Return the expected duration in seconds; None if no past drill did all the kinds of steps that are needed.

    `sizes` are the bytes that the restore moves in all, by kind of step. Past steps that moved no bytes count with
    their median.
    """
    moving = [expected_seconds(kind, sizes[kind], history) for kind in _OF_BYTES if sizes.get(kind)]
    if not moving or None in moving:
        return None
    others = dict.fromkeys(timing.kind for timing in history if timing.kind not in (*_OF_BYTES, *_OF_CHECKS))
    fixed = [expected_seconds(kind, 0, history) for kind in others]
    return sum(seconds for seconds in (*moving, *fixed) if seconds is not None)

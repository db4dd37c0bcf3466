"""Since when everything can be restored without a gap. Pure."""

from __future__ import annotations

from zsnapdb.planning.binlog.route import EndKind
from zsnapdb.planning.binlog.window import Window


def start_without_gap(window: Window) -> int | None:
    """Return the begin of the time without a gap up to the newest restorable point (microseconds UTC).

    None if nothing can be restored. Where there is no archive at all, the time between two backups is no gap.
    """
    start = None
    gaps = {gap.end: gap for gap in window.gaps}
    for part in reversed(window.ranges):
        start = part.start
        gap = gaps.get(start)
        if gap is not None and gap.reason.kind is not EndKind.NO_ARCHIVE:
            break
    return start

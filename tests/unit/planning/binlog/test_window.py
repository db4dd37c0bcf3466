"""What can be recovered is followed through files, gaps, resets and failovers.

Nothing is promised that the archive does not hold.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import SECOND, A, B, at, own
from zsnapdb.planning.binlog.recoverable_ranges import window
from zsnapdb.planning.binlog.route import EndKind


def test_a_gap_ends_it_and_a_later_backup_begins_a_new_range() -> None:
    files = [own(1), own(2), own(4), own(5)]
    recoverable = window([at(25, f"{A}:1-15", name="one"), at(45, f"{A}:1-35", "binlog.000004", name="two")], files)
    assert [(r.start, r.end, r.backups) for r in recoverable.ranges] == [
        (25 * SECOND, 29 * SECOND, ("one",)),
        (45 * SECOND, 59 * SECOND, ("two",)),
    ]
    ((start, end, reason),) = [(h.start, h.end, h.reason.reason) for h in recoverable.gaps]
    assert (start, end) == (29 * SECOND, 45 * SECOND)
    assert f"{A}:21-30" in reason


def test_why_the_last_range_ends_is_told() -> None:
    again = [own(number, 1000 + 10 * number, incarnation="2") for number in (1, 2, 3)]
    backup, last = replace(at(25, f"{A}:1-15"), fingerprint="head"), replace(own(2), fingerprint="head")
    (part,) = window([backup], [own(1), last, *again]).ranges
    assert (part.end, part.ends.kind) == (29 * SECOND, EndKind.RESET)


def test_a_backup_on_another_history_ends_what_an_older_one_promises() -> None:
    """The old source wrote on, unseen, after another server had taken over and was backed up."""
    older = at(25, f"{A}:1-15", name="a")
    newer = at(33, f"{A}:1-18,{B}:1-3", "mysql-bin.000001", server=B, name="b")
    recoverable = window([older, newer], [own(1), own(2), own(3), own(4)])
    assert [(part.start, part.end, part.backups) for part in recoverable.ranges] == [
        (25 * SECOND, 33 * SECOND, ("a", "b"))
    ]


def test_a_backup_that_continues_its_archived_binlog_is_the_newest_whatever_the_clock_said() -> None:
    """The clock was set back between the archived transactions and the backup."""
    active = replace(own(2, rotated=False), end=400, fingerprint="head")
    backup = replace(at(5, f"{A}:1-25"), fingerprint="head")
    assert window([backup], [own(1), active]).unprotected is None
    # What follows that binlog in the archive may be newer, and so may another binlog.
    ended = window([backup], [own(1), active, own(3)]).unprotected
    assert ended is not None
    assert ended.kind is EndKind.NOT_ARCHIVED
    assert window([backup], [own(1), replace(active, fingerprint="other")]).unprotected is not None


def test_nothing_is_recoverable_without_a_backup() -> None:
    assert window([], [own(1), own(2)]).ranges == ()


@given(st.sets(st.integers(1, 12)), st.lists(st.integers(10, 130), unique=True, max_size=6))
def test_ranges_and_gaps_alternate_and_a_range_never_crosses_a_missing_file(
    missing: set[int], seconds: list[int]
) -> None:
    files = [own(number) for number in range(1, 13) if number not in missing]
    points = [
        at(second, f"{A}:1-{second - 10 + 1}", f"binlog.{second // 10:06d}", name=str(second))
        for second in sorted(seconds)
        if second % 10 != 9
    ]
    recoverable = window(points, files)
    assert len(recoverable.gaps) == max(0, len(recoverable.ranges) - 1)
    edges = [
        edge
        for r, h in zip(recoverable.ranges, [*recoverable.gaps, None], strict=False)
        for edge in (r.start, r.end, *((h.start, h.end) if h else ()))
    ]
    assert edges == sorted(edges)
    for route in recoverable.routes:
        numbers = [file.number for file in route.files]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert not set(numbers) & missing
    assert {b for r in recoverable.ranges for b in r.backups} == {p.backup_id for p in points}

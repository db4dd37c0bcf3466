"""Archived binlogs are removed only when no backup that stays could need them.

Whoever stays is rolled forward as far as before.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import SECOND, Kept, at, own
from zsnapdb.planning.binlog.purge import MARGIN, decide
from zsnapdb.planning.binlog.route import follow

DAYS = 86_400
"""A file a day, so that the margin of a day is one file."""


def archive(count: int, *, incarnation: str = "1") -> list[Kept]:
    return [own(number, number * DAYS, incarnation=incarnation) for number in range(1, count + 1)]


def test_what_ended_before_the_oldest_backup_goes_and_the_route_of_each_stays() -> None:
    files = archive(6)
    point = at(4 * DAYS + 9, f"{files[0].gtids}".split(":")[0] + ":1-39", "binlog.000004")
    decisions = decide([point], point.taken, files)
    assert [d.name for d in decisions if d.remove] == ["binlog.000001", "binlog.000002", "binlog.000003"]
    assert [d.reason for d in decisions if not d.remove] == ["rolls b forward"] * 3


def test_a_day_must_lie_between_them_as_clocks_differ() -> None:
    files = archive(6)
    point = at(4 * DAYS + 5, "", None)
    decided = decide([], point.taken - MARGIN // 2, files)
    assert [d.name for d in decided if d.remove] == ["binlog.000001", "binlog.000002"]


def test_without_any_backup_everything_stays() -> None:
    assert not any(d.remove for d in decide([], None, archive(3)))


def test_what_archiving_goes_on_from_stays_however_old_but_an_older_history_goes_whole() -> None:
    files = [*archive(3), *archive(2, incarnation="2")]
    decisions = decide([], 1000 * DAYS * SECOND, files)
    assert [(d.incarnation, d.name) for d in decisions if not d.remove] == [("2", "binlog.000002")]
    assert decisions[-1].reason == "the archive continues from it"


@given(
    count=st.integers(1, 8),
    kept=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 10)), max_size=4),
    extra=st.integers(0, 10),
)
def test_every_backup_that_stays_is_rolled_forward_as_far_as_before(
    count: int, kept: list[tuple[int, int]], extra: int
) -> None:
    files = archive(count)
    uuid = str(files[0].gtids).split(":", maxsplit=1)[0]
    points = [
        at(
            number * DAYS + done,
            f"{uuid}:1-{10 * (number - 1) + done}" if 10 * (number - 1) + done else "",
            f"binlog.{number:06d}",
            name=f"b{number}-{done}",
        )
        for number, done in kept
    ]
    oldest = min([point.taken for point in points] + [extra * DAYS * SECOND])
    stays = [file for file, decision in zip(files, decide(points, oldest, files), strict=True) if not decision.remove]
    assert files[-1] in stays
    for point in points:
        assert follow(point, stays) == follow(point, files)
    # What is left has no gap in it: only the oldest went.
    assert stays == files[len(files) - len(stays) :]

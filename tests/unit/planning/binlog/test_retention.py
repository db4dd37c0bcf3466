"""Archived binlogs are removed only when no backup that stays could need them.

Whoever stays is rolled forward as far as before.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import SECOND, Kept, at, own
from zsnapdb.planning.binlog import purge
from zsnapdb.planning.binlog.purge import MARGIN, BinlogDecision, RetainedBackups
from zsnapdb.planning.binlog.route import BackupPoint, follow

DAYS = 86_400
"""A file a day, so that the margin of a day is one file."""


def archive(count: int, *, incarnation: str = "1") -> list[Kept]:
    return [own(number, number * DAYS, incarnation=incarnation) for number in range(1, count + 1)]


def decide(points: Sequence[BackupPoint], oldest: int | None, files: Sequence[Kept]) -> tuple[BinlogDecision, ...]:
    """Return the decisions if all readable backups stay, and no other is known."""
    names = [point.backup_id for point in points]
    return purge.decide(RetainedBackups(points, frozenset(names), names), oldest, files)


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


@given(
    count=st.integers(1, 8),
    readable=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.booleans()), max_size=4),
    lost=st.tuples(st.integers(1, 9), st.integers(0, 8)),
    claimed=st.integers(0, 100),
    is_recorded=st.booleans(),
)
def test_unreadable_backup_with_any_id_keeps_its_binlogs(
    count: int,
    readable: list[tuple[int, int, bool]],
    lost: tuple[int, int],
    claimed: int,
    is_recorded: bool,
) -> None:
    """Only its place in the order is known, if this host recorded it. Its id is a time by any clock."""
    files = archive(count)
    uuid = str(files[0].gtids).split(":", maxsplit=1)[0]

    def point(number: int, done: int, name: str) -> BackupPoint:
        last = 10 * (number - 1) + done
        return at(number * DAYS + done, f"{uuid}:1-{last}" if last else "", f"binlog.{number:06d}", name=name)

    made = sorted({(number, done): is_kept for number, done, is_kept in readable}.items())
    points = [point(number, done, f"b{number}-{done}") for (number, done), _ in made]
    kept = {f"b{number}-{done}" for (number, done), is_kept in made if is_kept} | {"lost"}
    real = point(*lost, "lost")
    order = [one.backup_id for one in points if one.taken < real.taken]
    order += [*(["lost"] if is_recorded else []), *(one.backup_id for one in points if one.taken >= real.taken)]
    oldest = min([one.taken for one in points if one.backup_id in kept] + [claimed * DAYS * SECOND])
    decided = purge.decide(RetainedBackups(points, frozenset(kept), order), oldest, files)
    stays = [file for file, decision in zip(files, decided, strict=True) if not decision.remove]
    for one in [*(one for one in points if one.backup_id in kept), real]:
        assert follow(one, stays) == follow(one, files)


@pytest.mark.parametrize(
    ("order", "first"),
    [(["b3", "lost", "b5"], 3), (["lost", "b3", "b5"], 1), (["b3", "b5", "lost"], 3), (["b3", "b5"], 1)],
)
def test_unreadable_backup_keeps_no_binlogs_of_older_ones(order: list[str], first: int) -> None:
    files = archive(6)
    uuid = str(files[0].gtids).split(":", maxsplit=1)[0]
    points = [at(n * DAYS, f"{uuid}:1-{10 * n - 1}", f"binlog.{n:06d}", name=f"b{n}") for n in (3, 5)]
    backups = RetainedBackups(points, frozenset({"b5", "lost"}), order)
    decided = purge.decide(backups, 100 * DAYS * SECOND, files)
    kept = [d for d in decided if not d.remove]
    assert (kept[0].name, kept[0].reason) == (f"binlog.{first:06d}", "lost may need it")


@given(count=st.integers(2, 8), first=st.integers(1, 8), planted=st.integers(1, 8), is_placed=st.booleans())
def test_foreign_backup_keeps_only_its_route(count: int, first: int, planted: int, is_placed: bool) -> None:
    files = archive(count)
    uuid = str(files[0].gtids).split(":", maxsplit=1)[0]
    own_point, forged = (
        at(n * DAYS, f"{uuid}:1-{10 * n - 1}", f"binlog.{n:06d}", name=name)
        for n, name in ((min(first, count), "own"), (min(planted, count), "forged"))
    )
    points = [own_point, *([forged] if is_placed else [])]
    backups = RetainedBackups(points, frozenset({"own", "forged"}), ["own"], frozenset({"forged"}))
    stays = {d.at for d in purge.decide(backups, own_point.taken, files) if not d.remove}
    alone = {d.at for d in decide([own_point], own_point.taken, files) if not d.remove}
    routed = set(follow(forged, files).places[0]) if is_placed else set()
    assert stays == alone | routed

"""What is newer than the newest reachable state, and what archived binlogs cover all the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.support.binlog_window import SECOND, A, B, at, gtids, own
from zsnapdb.planning.restore.newest_state_check import UnusableArchive, UnusableBackup, newer_than
from zsnapdb.planning.restore.point_forms import AtBackup, Latest
from zsnapdb.planning.restore.route_choice import RestoreRoute, choose

NOW = datetime(1970, 1, 2, tzinfo=UTC)


def id_at(second: int) -> str:
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second):%Y%m%dT%H%M%SZ}-0000"


def route(target: Latest | AtBackup) -> RestoreRoute:
    """The route from a backup at second 12, through binlogs with transactions 11 to 50, up to second 59."""
    point = at(12, f"{A}:1-12", offset=100, name=id_at(12))
    return choose(target, [point], [own(number) for number in range(2, 6)], NOW)


def newer(target: Latest | AtBackup, *known: Any) -> tuple[str, ...]:
    """Return what is newer than that route and cannot be used."""
    choice = route(target)
    return newer_than(choice.point.backup_id, choice, *known)


def unusable(second: int, text: str | None, server: str | None = A) -> UnusableBackup:
    return UnusableBackup(id_at(second), "it is gone", server, None if text is None else gtids(text))


def test_a_newer_backup_that_the_archived_binlogs_lead_past_is_not_missing() -> None:
    assert newer(Latest(), [unusable(45, f"{A}:1-44")], None, ()) == ()


@pytest.mark.parametrize(
    "item",
    [
        unusable(45, None),
        unusable(45, f"{A}:1-60"),
        unusable(45, f"{A}:1-44", B),
        unusable(90, f"{A}:1-44"),
    ],
    ids=["its position is not known", "it holds more", "another server", "it is newer than the archive: a reset"],
)
def test_a_newer_backup_of_which_something_may_be_missing_is_named(item: UnusableBackup) -> None:
    (text,) = newer(Latest(), [item], None, ())
    assert item.backup_id in text


def test_the_newest_backup_alone_covers_nothing_newer() -> None:
    assert newer(AtBackup(None), [unusable(45, f"{A}:1-44")], None, ()) != ()


def test_the_order_in_which_this_host_stored_backups_outweighs_the_clocks_of_their_ids() -> None:
    later, earlier = unusable(5, None), unusable(30, None)
    order = (id_at(30), id_at(12), id_at(5))
    assert len(newer(Latest(), [later], None, order)) == 1
    assert newer(Latest(), [earlier], None, order) == ()


@pytest.mark.parametrize(
    ("file", "end", "second", "is_newer"),
    [
        ("binlog.000005", 1000, 59, False),
        ("binlog.000005", 1000, 60, True),
        ("binlog.000005", 1001, 30, True),
        ("binlog.000006", 100, 30, True),
        ("other.000001", 100, 30, True),
    ],
)
def test_lost_archive_is_older_only_by_position_and_time(file: str, end: int, second: int, is_newer: bool) -> None:
    lost = UnusableArchive("the archive is short", second * SECOND, file, end)
    assert bool(newer(Latest(), [], lost, ())) is is_newer
    assert newer(AtBackup(None), [], lost, ()) == ()

"""Whose snapshots keep a dataset of ours, and what holds them, is said before anything is stopped."""

from __future__ import annotations

import pytest

from zsnapdb.planning.foreign_snapshots import ForeignSnapshot, objection

SANOID = ForeignSnapshot("tank/zsnapdb/clones/life/r1@autosnap_2026-11-20_10:00:00_hourly")
HELD = ForeignSnapshot("tank/zsnapdb/clones/life/r1@mine", holds=("keep",))
CLONED = ForeignSnapshot("tank/zsnapdb/clones/life/r1@theirs", clones=("tank/other",))


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("a@autosnap_2026-11-20_10:00:00_hourly", "sanoid"),
        ("a@syncoid_host_2026-11-20:10:00:00-GMT00:00", "syncoid"),
        ("a@zfs-auto-snap_hourly-2026-11-20-1000", "zfs-auto-snapshot"),
        ("a@zrepl_20261120_100000_000", "zrepl"),
        ("a@zsnapdb-20261120T100000Z-000007", "another zsnapdb command"),
        ("a@before-the-upgrade", "an administrator or a program"),
    ],
)
def test_the_name_says_who_made_a_snapshot(name: str, maker: str) -> None:
    assert ForeignSnapshot(name).maker == maker


def test_without_the_option_every_snapshot_of_others_keeps_the_dataset_and_is_named() -> None:
    error = objection("clone life", [SANOID, HELD, CLONED], may_go=False)
    assert error is not None
    for text in (SANOID.name, "made by sanoid", "held by keep", "cloned as tank/other"):
        assert text in error.message
    assert "--with-foreign-snapshots" in error.hint
    assert "nothing was stopped" in error.hint


def test_with_the_option_only_what_a_hold_or_a_clone_needs_keeps_the_dataset() -> None:
    assert objection("clone life", [SANOID], may_go=True) is None
    for needed in (HELD, CLONED):
        error = objection("clone life", [SANOID, needed], may_go=True)
        assert error is not None
        assert needed.name in error.message
        assert SANOID.name not in error.message


def test_a_long_list_is_cut_and_counted() -> None:
    many = [ForeignSnapshot(f"tank/a@autosnap_{number}") for number in range(5)]
    error = objection("clone life", many, may_go=False)
    assert error is not None
    assert error.message.endswith("and 2 more")


def test_nothing_of_others_is_no_objection() -> None:
    assert objection("clone life", [], may_go=False) is None

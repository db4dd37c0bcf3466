"""A journal that is full, lost or has strange files beside it costs at most the resumption."""

from __future__ import annotations

import pytest

from tests.unit.support.interruption import die, interrupt, warnings_of
from tests.unit.support.world import World
from zsnapdb.base.errors import CommandError, DamagedError


@pytest.mark.parametrize("stray", [".20261120T100100Z-0064.swp", "20261120T100100Z-0064.bak", "README"])
def test_a_stray_file_beside_the_journals_stops_no_backup_and_stays(world: World, stray: str) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    file = world.folder / "journal" / "main" / stray
    file.write_text("a note")
    result = world.backup()
    assert [m.backup_id for m in result.continued] == [started]
    assert warnings_of(result) == (f"continuing backup {started}, which was interrupted",)
    assert world.journals() == [stray]
    file.unlink()
    world.check_settled()


@pytest.mark.parametrize("count", range(0, 16, 3))
def test_a_full_disk_under_the_journal_costs_only_the_resumption(world: World, count: int) -> None:
    world.journal_fails_at = count
    world.backup()
    world.check_settled()
    world.rise()
    world.journal_fails_at = count
    die(world, 30)
    world.journal_fails_at = None
    world.rise()
    world.backup()
    world.check_settled()


def test_without_a_journal_an_error_leaves_nothing_and_promises_nothing(world: World) -> None:
    before = set(world.snapshots), set(world.bookmarks)
    world.journal_fails_at, world.send_dies_at = 3, 9000
    with pytest.raises((CommandError, DamagedError)) as caught:
        world.backup()
    assert not any("is unfinished" in note for note in getattr(caught.value, "__notes__", ()))
    assert (set(world.snapshots), set(world.bookmarks), world.journals()) == (*before, [])
    world.journal_fails_at = world.send_dies_at = None
    world.backup()
    world.check_settled()


def test_a_journal_that_was_lost_leaves_no_hold_behind(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    (world.folder / "journal" / "main" / started).unlink()
    assert [snap.name for snap in world.snapshots.values() if "zsnapdb:base" in snap.holds]
    assert world.backup(full=True).continued == ()
    world.check_settled()

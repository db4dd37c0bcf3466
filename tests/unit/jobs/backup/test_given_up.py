"""An interrupted backup that cannot go on is given up with its reason, and stands in no other backup's way."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from tests.unit.support.fake_sources import VOLUMES
from tests.unit.support.interruption import interrupt, warnings_of
from tests.unit.support.world import World
from zsnapdb.base.errors import CommandTimeout
from zsnapdb.repository import crypto_keys, layout
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import holds, snapshots


def test_a_backup_that_cannot_be_continued_does_not_stand_in_the_way_of_new_ones(world: World) -> None:
    """If its send fails again, for example because of a bad block, the backup is given up and a new backup is made."""
    started = interrupt(world, "put main/chunks/", number=2)
    world.unreadable = started
    result = world.backup()
    assert result.continued == ()
    assert f"backup {started}, which was interrupted, is given up: it failed again: bad block" in result.warnings
    world.check_settled()


@pytest.mark.parametrize(("module", "question"), [(snapshots, "send_points"), (holds, "snapshots_with_hold")])
def test_a_question_that_is_not_answered_in_time_gives_no_backup_up(
    world: World, monkeypatch: pytest.MonkeyPatch, module: ModuleType, question: str
) -> None:
    started = interrupt(world, "put main/chunks/", number=2)

    def hang(*words: object) -> None:
        raise CommandTimeout("`zfs list` did not end within 60 s", hint="see `zpool status`")

    with monkeypatch.context() as pool:
        pool.setattr(module, question, hang)
        with pytest.raises(CommandTimeout):
            world.backup()
    assert [name for name in world.snapshots if started in name]
    assert world.journals() == [started]
    assert [m.backup_id for m in world.backup().continued] == [started]
    world.check_settled()


def lose_snapshot(world: World, started: str) -> None:
    snap = world.snapshots.pop(f"{VOLUMES['data']}@zsnapdb-{started}")
    assert snap.holds


def lose_base(world: World, started: str) -> None:
    for table in (world.snapshots, world.bookmarks):
        for name in [name for name in table if started not in name]:
            del table[name]


def lose_base_manifest(world: World, started: str) -> None:
    world.removed |= set(world.ids())
    world.local.delete(layout.manifest("main", world.ids()[0]))


def change_recipients(world: World, started: str) -> None:
    more = crypto_keys.AgeIdentity.new()
    world.recipients = (*world.recipients, more.recipient)


def change_repository(world: World, started: str) -> None:
    world.removed |= set(world.ids())
    for item in list(world.local.list("")):
        world.local.delete(item.key)
    Repository.open_or_create(world.local, "", "fedcba9876543210", world.instance.keyring())


def grow_old(world: World, started: str) -> None:
    world.time += timedelta(days=4)


def break_journal(world: World, started: str) -> None:
    file = world.folder / "journal" / "main" / started
    body = bytearray(file.read_bytes())
    body[100] ^= 1
    file.write_bytes(body)


GIVEN_UP = {
    lose_snapshot: "its snapshot of tank/mysql/data is gone",
    lose_base: "the snapshot that it is an increment of is gone from tank/mysql, tank/mysql/data",
    lose_base_manifest: "which the repository no longer holds",
    change_recipients: "the recipients were changed",
    change_repository: "it was started in repository",
    grow_old: "resume_within is 72.0 hours",
    break_journal: "cannot be read",
}


@pytest.mark.parametrize("change", GIVEN_UP, ids=lambda change: change.__name__)
def test_what_cannot_go_on_is_given_up_with_its_reason(world: World, change: Any) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    change(world, started)
    result = world.backup()
    assert result.continued == ()
    assert started in warnings_of(result)[0]
    assert GIVEN_UP[change] in warnings_of(result)[0]
    assert started not in world.ids()
    if change is lose_snapshot:
        # A snapshot was removed by force. The other snapshot of the set is removed only if it has our property.
        assert not [name for name in world.snapshots if started in name]
    world.check_settled()


def test_a_base_of_which_only_the_bookmark_is_left_is_good_enough(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    for name in [name for name in world.snapshots if started not in name]:
        del world.snapshots[name]
    assert [m.backup_id for m in world.backup().continued] == [started]
    world.check_settled()


def test_a_bookmark_goes_though_a_snapshot_of_its_backup_cannot(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    data, parent = (f"{dataset}@zsnapdb-{started}" for dataset in VOLUMES.values())
    assert {f"{dataset}#zsnapdb-{started}" for dataset in VOLUMES.values()} <= set(world.bookmarks)
    del world.snapshots[data]
    world.snapshots[parent].holds.add("somebody")
    result = world.backup()
    assert f"not all leftovers of backup {started} could be removed" in warnings_of(result)[1]
    assert not [name for name in world.bookmarks if started in name]
    assert [name for name in world.snapshots if started in name] == [parent]


def test_fresh_gives_up_what_was_interrupted(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    result = world.backup(fresh=True)
    assert (result.continued, warnings_of(result)) == (
        (),
        (f"backup {started}, which was interrupted, is given up: it was requested",),
    )
    world.check_settled()


def test_a_manifest_that_can_no_longer_be_read_protects_what_is_left_of_its_backup(world: World) -> None:
    started = interrupt(world, "set zsnapdb:state=stored")
    key = layout.manifest("main", started)
    good = world.local.get(key)
    world.local.put(key, b"{")
    result = world.backup()
    assert f"the leftovers of backup {started} stay" in warnings_of(result)[0]
    assert [name for name in world.snapshots if started in name]
    world.local.put(key, good)
    world.backup()
    world.check_settled()

"""However a run is killed, no good backup is lost, and the next run finishes what was begun."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.support.fake_sources import VOLUMES
from tests.unit.support.interruption import chunk_puts, die, interrupt, warnings_of
from tests.unit.support.world import World, made, stream
from zsnapdb.base.errors import CommandError, DamagedError
from zsnapdb.repository import layout


def test_two_runs_in_peace_are_a_full_backup_and_an_increment(world: World) -> None:
    result = world.backup()
    world.check_settled()
    assert not result.manifest.is_full
    assert (result.continued, result.warnings, world.reported) == ((), (), [])


def test_killed_before_any_step_the_next_run_finishes(tmp_path: Path) -> None:
    """Each change to snapshots, journal and repository is one step, and the run dies before each step in turn."""
    step = 0
    states = set()
    while True:
        step += 1
        (tmp_path / str(step)).mkdir()
        with made(tmp_path / str(step)) as world:
            (good,) = [world.backup().manifest.backup_id]
            if not die(world, step):
                break
            states.add(world.steps[-1].split()[0])
            assert good in world.ids()
            world.check_good()
            world.rise()
            result = world.backup()
            world.check_settled()
            assert not result.manifest.is_full
            assert {good, result.manifest.backup_id, *(m.backup_id for m in result.continued)} <= set(world.ids())
    assert step > 35
    assert {"snapshot", "hold", "bookmark", "torn", "put", "journal", "set", "release", "delete", "replace"} <= states


@pytest.mark.parametrize("seed", range(12))
def test_killed_again_and_again_at_random_and_with_streams_that_differ_each_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with made(tmp_path) as world:
        world.backup()
        for _ in range(6):
            world.salt += chance.randrange(2)
            die(world, chance.randrange(1, 60))
            world.check_good()
        world.rise()
        world.backup()
        world.check_settled()


def test_the_next_run_stores_only_what_is_missing_and_then_makes_a_backup_of_its_own(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=3)
    held_snapshots = [snap.name for snap in world.snapshots.values() if "zsnapdb:backup" in snap.holds]
    assert held_snapshots == [f"{dataset}@zsnapdb-{started}" for dataset in VOLUMES.values()]
    result = world.backup()
    assert [m.backup_id for m in result.continued] == [started]
    assert len(chunk_puts(world, started)) == 8 - 2
    assert len(result.continued[0].keys) == 2
    assert warnings_of(result) == (f"continuing backup {started}, which was interrupted",)
    assert result.manifest.volumes[0].from_guid == result.continued[0].volumes[0].guid
    world.check_settled()


def test_a_stream_that_differs_is_never_spliced(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=7)
    world.salt = 1
    world.backup()
    manifest = world.repository.manifest("main", started)
    data = manifest.volume("data")
    assert data is not None
    # `data` was complete before, so it stays as it was. `parent` is sent again, and is completely from the second run.
    assert world.content(started)["data"] == stream(f"{data.dataset}@{data.snapshot}", data.guid, data.from_guid or 0)
    parent = manifest.volume("parent")
    assert parent is not None
    assert world.content(started)["parent"] == stream(
        f"{parent.dataset}@{parent.snapshot}", parent.guid, parent.from_guid or 0, 1
    )
    world.check_settled()


def test_killed_while_a_chunk_is_replaced_the_journal_does_not_believe_the_old_one(world: World) -> None:
    """The first run stores A. The second run replaces A with B and dies right after.

    The third run, whose stream is A again, must not take B for A.
    """
    started = interrupt(world, "put main/chunks/", number=4)
    world.salt = 1
    interrupt(world, "journal chunk", number=1)
    world.salt = 0
    world.backup()
    world.salt = 1
    assert started in world.ids()
    world.check_settled()


def test_chunks_that_vanished_meanwhile_are_stored_again(world: World) -> None:
    started = interrupt(world, "put main/manifests/")
    for index in (1, 2):
        world.local.delete(layout.chunk("main", started, "data", index))
    world.backup()
    assert len(chunk_puts(world, started)) == 2
    world.check_settled()


def test_other_hosts_see_that_it_is_unfinished(world: World) -> None:
    from zsnapdb.repository.backup_marks import unfinished

    started = interrupt(world, "put main/chunks/", number=2)
    (mark,) = unfinished(world.repository, "main", world.ids())
    assert (mark.backup_id, set(mark.snapshots)) == (started, set(VOLUMES))
    assert started not in world.ids()


@pytest.mark.parametrize("seed", range(6))
def test_a_send_that_dies_anywhere_becomes_no_backup_and_the_next_run_goes_on(world: World, seed: int) -> None:
    before = world.ids()
    world.send_dies_at = random.Random(seed).randrange(0, 12_900)
    with pytest.raises((CommandError, DamagedError)):
        world.backup()
    assert world.ids() == before
    (started,) = world.journals()
    world.send_dies_at = None
    assert [m.backup_id for m in world.backup().continued] == [started]
    world.check_settled()


def test_a_stream_without_its_end_becomes_no_backup_even_if_send_ended_well(world: World) -> None:
    before = world.ids()
    world.end_is_missing = True
    with pytest.raises(DamagedError, match="END"):
        world.backup()
    assert world.ids() == before
    world.end_is_missing = False
    world.backup()
    world.check_settled()


def test_a_clock_that_steps_back_or_forward_loses_nothing_good(world: World) -> None:
    for step in (timedelta(days=-400), timedelta(days=300)):
        good = world.ids()
        started = interrupt(world, "put main/chunks/", number=2)
        world.time += step
        world.backup()
        assert set(good) <= set(world.ids())
        assert (started in world.ids()) == (step < timedelta(0))
        world.check_good()
        assert world.journals() == []


def test_a_full_backup_can_be_asked_for(world: World) -> None:
    assert world.backup(full=True).manifest.is_full
    world.check_settled()

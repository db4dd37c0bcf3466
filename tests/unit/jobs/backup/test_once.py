"""A run whose id its caller chose makes one backup, however it is killed and however often it is repeated."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb
from tests.unit.support.interruption import interrupt
from tests.unit.support.world import Died, World, made
from zsnapdb.base.errors import BusyError
from zsnapdb.jobs.base.run_locks import lock_instance

RUN, OTHER = "20261127T080000Z-0123abcd", "20261127T090000Z-0123abcd"


def test_repeated_after_success_it_shows_the_same_backup_and_changes_nothing(world: World) -> None:
    world.run_id = lambda: RUN
    first = world.backup(once=True)
    world.steps.clear()
    again = world.backup(once=True)
    assert (again.manifest, again.is_repeat, first.is_repeat) == (first.manifest, True, False)
    assert (world.steps, again.continued) == ([], ())
    world.run_id = lambda: OTHER
    assert world.backup(once=True).manifest.backup_id != first.manifest.backup_id


def test_a_backup_that_a_clock_ahead_dated_in_the_future_is_no_answer(world: World) -> None:
    """The id of a run is made of the time of its schedule: a clock ahead has used it up before."""
    world.run_id = lambda: RUN
    now = world.time
    world.time = now + timedelta(days=3)
    ahead = world.backup(once=True).manifest
    world.time = now
    made = world.backup(once=True)
    assert (made.is_repeat, made.manifest.backup_id != ahead.backup_id) == (False, True)
    assert world.backup(once=True).manifest == made.manifest


@pytest.mark.parametrize("boot", ["same", "another"])
@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=1), timedelta(days=400)])
@pytest.mark.parametrize("is_first", [True, False])
def test_it_is_no_answer_when_that_time_has_come_either(
    world: World, ahead: timedelta, boot: str, is_first: bool
) -> None:
    """The steady clock proves that more time has passed than the wall clock shows."""
    if not is_first:
        world.backup()
    world.time += ahead
    run = f"{world.time:%Y%m%dT%H%M%SZ}-0123abcd"
    world.run_id, world.steady = (lambda: run), ("same", 1000.0)
    early = world.backup(once=True).manifest
    world.time += timedelta(seconds=30)
    world.steady = (boot, 1000.0 + ahead.total_seconds())
    made = world.backup(once=True)
    assert (made.is_repeat, made.manifest.backup_id != early.backup_id) == (False, True)
    again = world.backup(once=True)
    assert (again.manifest, again.is_repeat) == (made.manifest, True)


@pytest.mark.parametrize("steady", [("same", 4600.0), ("another", 60.0), ("another", 3600.0), None])
def test_a_backup_of_a_clock_that_was_right_stays_the_answer(world: World, steady: tuple[str, float] | None) -> None:
    world.run_id = lambda: RUN
    world.steady = ("same", 1000.0)
    first = world.backup(once=True).manifest
    world.time += timedelta(hours=1)
    world.steady = steady
    assert world.backup(once=True).manifest == first


def test_a_full_disk_of_records_fails_no_backup(world: World) -> None:
    world.run_id = lambda: RUN
    (world.folder / "runs").write_text("no folder")
    first = world.backup(once=True).manifest
    assert world.backup(once=True).manifest == first


def test_killed_before_any_step_the_repetition_makes_one_backup(tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        (tmp_path / str(step)).mkdir()
        with made(tmp_path / str(step)) as world:
            world.backup()
            world.run_id = lambda: RUN
            world.rise()
            world.die_at = step
            try:
                world.backup(once=True)
                break
            except Died:
                world.rise()
            result = world.backup(once=True)
            assert (len(world.ids()), world.ids()[-1]) == (2, result.manifest.backup_id)
            assert result.manifest.run_id == RUN
            assert world.backup(once=True).manifest == result.manifest
            # A hold that the killed run left is released by the next backup.
            world.run_id = lambda: OTHER
            world.backup(once=True)
            world.check_settled()
    assert step > 35


def test_what_another_run_finished_is_still_the_backup_of_the_run_that_began_it(world: World) -> None:
    world.run_id = lambda: RUN
    started = interrupt(world, "put main/chunks/", number=3)
    world.run_id = lambda: OTHER
    assert [one.backup_id for one in world.backup().continued] == [started]
    world.run_id = lambda: RUN
    assert world.backup(once=True).manifest.backup_id == started


def test_while_a_run_is_at_work_it_is_busy_and_says_how_to_repeat(world: World) -> None:
    world.run_id = lambda: RUN
    with lock_instance(world.instance, "backup", "backing up"), pytest.raises(BusyError) as refused:
        world.backup(once=True)
    assert (refused.value.exit_code, f"--once {RUN}" in refused.value.hint) == (75, True)


def test_what_is_done_is_shown_while_another_run_is_at_work(world: World) -> None:
    world.run_id = lambda: RUN
    first = world.backup(once=True)
    world.run_id = lambda: OTHER
    interrupt(world, "put main/chunks/", number=3)
    world.run_id = lambda: RUN
    with lock_instance(world.instance, "backup", "backing up"):
        assert world.backup(once=True).manifest == first.manifest


@pytest.mark.parametrize("given", ["x", "", f"{RUN}0", "$(reboot)"])
def test_an_id_of_another_form_is_refused_before_anything_is_read(given: str) -> None:
    done = zsnapdb("backup", "--once", given, "--config", "/nowhere")
    assert done.returncode == 2
    assert "is not a run id" in done.stderr

"""A local snapshot set asks no repository, disturbs no backup, expires by its rules, and leaks nothing if killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.unit.support.fake_sources import VOLUMES, FakeObservation, FakeServer
from tests.unit.support.world import Died, World, made
from zsnapdb.base.errors import BusyError, ServerError
from zsnapdb.config.repository import KeepRules, KeepSettings
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.backup.local_snapshot import LocalSnapshotResult
from zsnapdb.jobs.backup.source_interface import SnapshotRequest
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.host.local_snapshot_sets import local_sets
from zsnapdb.jobs.repository import prune
from zsnapdb.report.backup import LocalSetsView, LocalSnapshotPlanView, LocalSnapshotView
from zsnapdb.zfs import snapshots


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with made(tmp_path) as world:
        yield world


def keeping(world: World, last: int) -> Instance:
    settings = world.instance.settings.model_copy(
        update={"local": KeepRules(last=last), "keep": KeepSettings(last=last)}
    )
    return replace(world.instance, settings=settings)


def snapshot(world: World, last: int = 9) -> LocalSnapshotResult:
    return local_snapshot.snapshot(keeping(world, last), opener=world.open_source)


def local_ids(world: World) -> list[str]:
    return [one.backup_id for one in local_snapshot.sets(world.instance, "local")]


def test_a_local_set_is_complete_has_its_position_and_asks_no_repository(world: World) -> None:
    (world.folder / "store").rmdir()
    made_set = snapshot(world)
    (found,) = local_sets(world.instance, "local")
    assert (found.backup_id, set(found.snapshots)) == (
        made_set.backup_id,
        set(VOLUMES),
    )
    assert made_set.position == "0-1-2"
    assert [snap.holds for snap in world.snapshots.values()] == [set(), set()]
    (listed,) = local_snapshot.complete_sets(world.instance)
    assert (listed.state, listed.position, listed.used) == ("local", "0-1-2", 2048)
    assert made_set.backup_id in LocalSetsView([listed]).text()
    assert "in no repository" in LocalSnapshotView(made_set).text()


def test_while_the_server_is_down_the_newest_backup_names_the_volumes(world: World) -> None:
    def down(_instance: Instance) -> NoReturn:
        raise ServerError("the server is down")

    made_set = snapshot(world)
    settings = world.instance.settings.model_copy(update={"volumes": None})
    unnamed = replace(world.instance, settings=settings)
    with pytest.raises(ServerError):
        local_snapshot.complete_sets(unnamed, opener=down)
    world.backup()
    assert made_set.backup_id in [one.backup_id for one in local_snapshot.complete_sets(unnamed, opener=down)]


def test_expired_sets_go_and_needed_ones_stay(world: World) -> None:
    first, second, third = (snapshot(world).backup_id for _ in range(3))
    world.snapshots[f"tank/mysql/data@zsnapdb-{first}"].properties["clones"] = "tank/clone"
    world.zfs.run(["zfs", "hold", "other", f"tank/mysql@zsnapdb-{second}"])
    planned = local_snapshot.plan(keeping(world, 1), opener=world.open_source)
    assert [decision.keep for decision in planned.decisions] == [True, True, True]
    assert "tank/clone" in LocalSnapshotPlanView(planned).text()
    fourth = snapshot(world, last=1)
    assert (fourth.expired, fourth.warnings) == ((third,), ())
    assert local_ids(world) == [first, second, fourth.backup_id]


def test_a_set_that_gets_a_clone_at_the_last_moment_is_a_warning_and_goes_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshot(world).backup_id
    cloned = world.snapshots[f"tank/mysql/data@zsnapdb-{first}"].properties
    owned = snapshots.owned_among

    def before_the_clone(asked: Sequence[str], names: Sequence[str]) -> object:
        cloned.pop("clones", None)
        seen = owned(asked, names)
        cloned["clones"] = "tank/clone"
        return seen

    with monkeypatch.context() as late:
        late.setattr(snapshots, "owned_among", before_the_clone)
        result = snapshot(world, last=1)
    assert (result.expired, len(result.warnings)) == ((), 1)
    assert first in result.warnings[0]
    del cloned["clones"]
    assert snapshot(world, last=1).expired == (first, result.backup_id)


def test_backups_and_local_sets_do_not_touch_each_other(world: World) -> None:
    world.backup()
    mine = [snapshot(world).backup_id]
    second = world.backup().manifest
    mine.append(snapshot(world).backup_id)
    assert not second.is_full
    prune.prune(keeping(world, 1), trusts_clock=True)
    world.backup(full=True)
    prune.prune(keeping(world, 1), trusts_clock=True)
    assert local_ids(world) == mine
    assert snapshot(world, last=1).expired == tuple(mine)
    stored = {one.backup_id for one in local_sets(world.instance)}
    assert set(world.ids()) <= stored
    world.check_good()


def test_a_local_snapshot_that_is_killed_at_any_step_leaves_nothing_behind_for_long(world: World) -> None:
    for _ in range(2):
        snapshot(world)
    world.steps.clear()
    snapshot(world, last=1)
    steps = len(world.steps)
    assert steps >= 6
    for at in range(1, steps + 1):
        for _ in range(2):
            snapshot(world)
        world.steps.clear()
        world.die_at = at
        with pytest.raises(Died):
            snapshot(world, last=1)
        world.rise()
        newest = snapshot(world, last=1).backup_id
        assert local_ids(world) == [newest]
        assert {name.partition("@")[0] for name in world.snapshots} == set(VOLUMES.values())
        assert len(world.snapshots) == 2
        assert not [snap for snap in world.snapshots.values() if snap.holds]


def test_a_local_snapshot_and_a_backup_never_hold_the_server_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each undoes what a killed run left on the server, such as a stopped applier. The other one is not such a run."""
    refused: list[str] = []

    def recover(self: FakeServer) -> None:
        with pytest.raises(BusyError), exclusive("source-main", doing="test", folder=world.folder / "run"):
            raise AssertionError("the lock was free")
        refused.append("recover")

    def hold(self: FakeServer, observed: FakeObservation, request: SnapshotRequest, events: Events) -> str:
        with pytest.raises(BusyError), exclusive("source-main", doing="test", folder=world.folder / "run"):
            raise AssertionError("the lock was free")
        refused.append("hold")
        world.snapshot(request)
        return "at least 0-1-2"

    monkeypatch.setattr(FakeServer, "recover", recover)
    monkeypatch.setattr(FakeServer, "hold", hold)
    snapshot(world)
    world.backup()
    assert refused == ["recover", "hold", "recover", "hold"]


def test_where_there_are_many_sets_most_runs_list_none_and_what_expires_goes_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_snapshot, "_PER_SKIP", 3)
    looks: list[int] = []
    owned = snapshots.owned_among

    def counted(asked: Sequence[str], names: Sequence[str]) -> object:
        listed = owned(asked, names)
        looks.append(len(listed))
        return listed

    monkeypatch.setattr(snapshots, "owned_among", counted)
    most = 0
    for _ in range(24):
        snapshot(world, last=6)
        most = max(most, len(world.snapshots) // 2)
    # A look that leaves six sets lets two runs go without one: the last looks are those of the runs 7, 10, 13, … 22.
    assert (len(looks), most) == (10, 8)
    snapshot(world, last=1)
    assert len(world.snapshots) == 2, "changed rules hold at once"


@pytest.mark.parametrize("content", [b"", b"x", b"-1 {}", b"9" * 30, b"\xff\xfe", b"5", b"5 {}"])
def test_a_note_of_what_to_skip_that_is_not_ours_skips_nothing(world: World, content: bytes) -> None:
    first = snapshot(world).backup_id
    file = local_snapshot._skips_file(world.instance)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    assert snapshot(world, last=1).expired == (first,)


def test_a_run_that_is_repeated_with_its_id_makes_one_set_also_if_it_was_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(number: int) -> LocalSnapshotResult:
        world.run_id = lambda: f"20261127T080000Z-{number:08x}"
        return local_snapshot.snapshot(keeping(world, 9), once=True, opener=world.open_source)

    def dies(*_: object) -> NoReturn:
        raise Died

    for number, killed_in in enumerate(("snapshot_set.Source", "local_snapshot.write", "local_snapshot._expire")):
        before = local_ids(world)
        with monkeypatch.context() as patch:
            if number:
                patch.setattr(f"zsnapdb.jobs.backup.{killed_in}", dies)
            else:
                world.die_at = 1
            with pytest.raises(Died):
                once(number)
        world.rise()
        # Of a set that was not proved nothing is used.
        made_set = once(number)
        assert local_ids(world) == [*before, made_set.backup_id]
        again = once(number)
        assert (again.backup_id, again.position) == (made_set.backup_id, "0-1-2")
        assert local_ids(world) == [*before, made_set.backup_id]

"""A backup whose store is away takes its snapshots now, and stores them when the store is back."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.unit.support.interruption import interrupt, warnings_of
from tests.unit.support.world import Died, World, made
from zsnapdb.base.errors import UnreachableError


class Away:
    """A store that cannot be reached for a number of checks; `seen` are the snapshots of that time."""

    def __init__(self, world: World, checks: int) -> None:
        self.world, self.checks, self.seen = world, checks, set[str]()
        world.on_call = self

    def __call__(self, name: str, key: str) -> None:
        if self.checks > 0:
            self.checks -= name == "check"
            self.seen |= set(self.world.snapshots)
            raise UnreachableError("the network is gone")


def test_the_snapshots_are_of_the_time_of_the_command_and_stored_when_the_store_is_back(world: World) -> None:
    before = set(world.snapshots)
    away = Away(world, 3)
    result = world.backup()
    assert len(away.seen - before) == 2
    assert away.seen - before == {f"{v.dataset}@{v.snapshot}" for v in result.manifest.volumes}
    assert not result.manifest.is_full
    assert "the store is unreachable (the network is gone)" in warnings_of(result)[0]
    world.check_settled()


def test_an_interrupted_backup_is_finished_first_when_the_store_is_back(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=2)
    Away(world, 2)
    result = world.backup()
    assert [manifest.backup_id for manifest in result.continued] == [started]
    assert world.ids()[-2:] == [started, result.manifest.backup_id]
    world.check_settled()


def test_a_store_that_stays_away_leaves_a_local_set_that_expires_by_its_rules(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "instance", world.instance.impatient(0.0))
    before = set(world.snapshots)
    Away(world, 10**6)
    with pytest.raises(UnreachableError) as caught:
        world.backup()
    assert any("stays on this host (`zsnapdb list --local`)" in note for note in caught.value.__notes__)
    made = {name: world.snapshots[name] for name in set(world.snapshots) - before}
    assert {snapshot.properties["zsnapdb:state"] for snapshot in made.values()} == {"local"}
    assert not any(snapshot.holds for snapshot in made.values())


def test_the_first_backup_of_a_host_fails_at_once_if_the_store_is_away(tmp_path: Path) -> None:
    with made(tmp_path) as world:
        Away(world, 10**6)
        with pytest.raises(UnreachableError):
            world.backup()
        assert world.snapshots == {}


@pytest.mark.parametrize("step", range(2, 26, 3))
def test_killed_at_any_step_it_leaves_what_the_next_run_settles(world: World, step: int) -> None:
    Away(world, 2)
    world.die_at = step
    with contextlib.suppress(Died):
        world.backup()
    world.on_call = None
    world.rise()
    world.backup()
    local = {name for name, snapshot in world.snapshots.items() if snapshot.properties["zsnapdb:state"] == "local"}
    for name in local:
        # The rules of local sets do not mind the hold that each new set has.
        assert "zsnapdb:base" not in world.snapshots[name].holds
        del world.snapshots[name]
        # Retention destroys its bookmark with it.
        world.bookmarks.pop(name.replace("@", "#"), None)
    world.check_settled()

"""A store that is unreachable, refuses or loses what it accepted: no backup that it lacks is listed as good."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.interruption import interrupt, warnings_of
from tests.unit.support.world import World, made
from zsnapdb.base.errors import ConsistencyError, LeaseError, RepositoryError
from zsnapdb.repository.writer_lease import Holder


def test_a_store_that_cannot_be_reached_gives_nothing_up(world: World) -> None:
    started = interrupt(world, "put main/chunks/", number=2)

    def broken(name: str, key: str) -> None:
        if "/chunks/" in key and name == "put":
            raise RepositoryError("the network is gone")

    world.on_call = broken
    with pytest.raises(RepositoryError) as caught:
        world.backup()
    assert any(f"backup {started} is unfinished" in note for note in caught.value.__notes__)
    assert world.journals() == [started]
    world.on_call = None
    assert [m.backup_id for m in world.backup().continued] == [started]
    world.check_settled()


def test_a_lease_that_is_lost_ends_the_run_before_its_manifest(world: World) -> None:
    before = world.ids()
    them = Holder(
        "them", "db2", 7, "elsewhere", "backing up", "now", 1, "", 30.0, "held", world.repository.id, "main/writer"
    )

    def displaced(name: str, key: str) -> None:
        if name == "put" and key.endswith("parent/00000003"):
            world.local.put("main/writer.lock", them.encode())

    world.on_call = displaced
    with pytest.raises(LeaseError, match="was lost to process 7 on db2"):
        world.backup()
    assert world.ids() == before
    world.on_call = None
    world.rise()
    world.backup()
    world.check_settled()


def test_a_store_that_acknowledges_what_it_does_not_keep_is_found_out(world: World) -> None:
    before = world.ids()
    world.on_call = lambda name, key: 0 if name == "put" and key.endswith("data/00000002") else None
    with pytest.raises(ConsistencyError, match="the store accepted main"):
        world.backup()
    assert world.ids() == before
    world.on_call = None
    assert len(world.backup().continued) == 1
    world.check_settled()


@pytest.mark.parametrize("refused", ["list", "get", "check", "read_version"])
def test_being_refused_is_never_taken_for_an_empty_repository(world: World, refused: str) -> None:
    def deny(name: str, key: str) -> None:
        if name == refused:
            raise RepositoryError("access denied")

    snapshots = set(world.snapshots)
    world.on_call = deny
    with pytest.raises(RepositoryError, match="access denied"):
        world.backup()
    assert set(world.snapshots) == snapshots
    assert world.journals() == []
    world.on_call = None
    result = world.backup()
    assert not result.manifest.is_full
    world.check_settled()


def test_a_host_that_may_neither_read_chunks_nor_remove_anything_backs_up_incrementally(tmp_path: Path) -> None:
    with made(tmp_path) as world:

        def write_only(name: str, key: str) -> None:
            if name == "delete" or (name in ("get", "read_version") and "/chunks/" in key):
                raise RepositoryError("access denied")

        world.on_call = write_only
        first = world.backup()
        interrupt(world, "put main/chunks/", number=3)
        second = world.backup()
        assert (first.manifest.is_full, second.manifest.is_full, len(second.continued)) == (True, False, 1)
        assert warnings_of(second) == (f"continuing backup {second.continued[0].backup_id}, which was interrupted",)
        world.check_settled()


def test_a_backup_lists_the_manifests_once(world: World) -> None:
    listings: list[str] = []
    world.on_call = lambda name, key: listings.append(key) if name == "list" and "/manifests/" in key else None
    world.backup()
    assert len(listings) == 1

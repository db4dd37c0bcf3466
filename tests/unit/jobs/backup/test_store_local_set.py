"""A set of `zsnapdb snapshot` is stored later as a backup, without its server; whatever fails, the set stays."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.support.interruption import interrupt
from tests.unit.support.world import Died, World
from zsnapdb.base.errors import CommandError, NotFound, PreflightError, RepositoryError
from zsnapdb.config.repository import KeepRules
from zsnapdb.jobs.backup import local_snapshot, plan
from zsnapdb.jobs.backup import run as job
from zsnapdb.jobs.backup.plan import BackupPlan
from zsnapdb.zfs import snapshots


def snapshot(world: World) -> str:
    return local_snapshot.snapshot(world.instance, opener=world.open_source).backup_id


def store(world: World, requested: str, **options: bool) -> job.BackupResult:
    return job.backup_local_set(world.instance, requested, **options)


def states(world: World, backup_id: str) -> set[str]:
    return {
        snap.properties["zsnapdb:state"]
        for snap in world.snapshots.values()
        if snap.properties["zsnapdb:backup"] == backup_id
    }


@pytest.mark.parametrize("requested", ["latest", "its id"])
def test_a_local_set_becomes_an_increment_and_the_next_backup_builds_on_it(world: World, requested: str) -> None:
    made = snapshot(world)
    described = local_snapshot.read(world.instance, made)
    result = store(world, made if requested == "its id" else requested)
    assert described is not None
    assert (result.manifest.backup_id, result.manifest.is_full) == (made, False)
    assert (result.manifest.source, result.manifest.created) == (described.source, described.created)
    assert world.ids()[-1] == made
    world.check_settled()
    following = world.backup().manifest
    assert [volume.from_guid for volume in following.volumes] == [volume.guid for volume in result.manifest.volumes]
    world.check_settled()


@pytest.mark.parametrize("is_another_given_up", [False, True])
def test_retention_spares_the_set_while_its_backup_is_planned(
    world: World, monkeypatch: pytest.MonkeyPatch, is_another_given_up: bool
) -> None:
    if is_another_given_up:
        interrupt(world, "put main/chunks/", number=2)
    made = snapshot(world)

    def planned(*given: Any, **named: Any) -> BackupPlan:
        settings = world.instance.settings
        rules = settings.model_copy(update={"local": KeepRules(last=1)})
        local_snapshot.snapshot(replace(world.instance, settings=rules), opener=world.open_source)
        return plan.plan(*given, **named)

    monkeypatch.setattr(job, "plan", planned)
    assert store(world, made, fresh=True).manifest.backup_id == made
    assert not [snap.name for snap in world.snapshots.values() if snap.holds]


def test_a_set_that_is_older_than_the_newest_backup_builds_on_the_backup_before_it(world: World) -> None:
    first = world.repository.manifest("main", world.ids()[-1])
    made = snapshot(world)
    newer = world.backup().manifest
    result = store(world, made)
    assert [volume.from_guid for volume in result.manifest.volumes] == [volume.guid for volume in first.volumes]
    assert world.ids() == [first.backup_id, made, newer.backup_id]
    world.check_good()
    assert store(world, snapshot(world), full=True).manifest.is_full


def test_a_set_that_is_not_here_or_that_nothing_describes_is_refused(world: World) -> None:
    for requested in ("latest", world.ids()[-1]):
        with pytest.raises(NotFound, match="has no local set"):
            store(world, requested)
    made = snapshot(world)
    local_snapshot.remove(world.instance, made)
    with pytest.raises(PreflightError, match="nothing on this host describes"):
        store(world, made)
    assert states(world, made) == {"local"}


def test_a_set_that_cannot_be_bookmarked_stays_a_local_set(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = snapshot(world)

    def refuse(names: Sequence[str]) -> None:
        raise CommandError("zfs bookmark failed", hint="")

    with monkeypatch.context() as without:
        without.setattr(snapshots, "bookmark", refuse)
        with pytest.raises(CommandError):
            store(world, made)
    assert states(world, made) == {"local"}
    assert local_snapshot.read(world.instance, made) is not None
    world.backup()
    assert states(world, made) == {"local"}
    assert store(world, made).manifest.backup_id == made


def test_a_set_whose_store_refuses_stays_a_local_set(world: World) -> None:
    made = snapshot(world)

    def deny(name: str, key: str) -> None:
        if name in ("put", "replace") and key.endswith("writer.lock"):
            raise RepositoryError("access denied")

    world.on_call = deny
    with pytest.raises(RepositoryError) as caught:
        store(world, made)
    assert any("stays on this host" in note for note in caught.value.__notes__)
    assert states(world, made) == {"local"}
    world.on_call = None
    assert store(world, made).manifest.backup_id == made
    world.check_settled()


def test_without_a_journal_a_set_that_cannot_be_stored_is_a_local_set_again(world: World) -> None:
    made = snapshot(world)
    world.journal_fails_at = 0

    def broken(name: str, key: str) -> None:
        if name == "put" and "/chunks/" in key:
            raise RepositoryError("the network is gone")

    world.on_call = broken
    with pytest.raises(RepositoryError):
        store(world, made)
    world.on_call, world.journal_fails_at = None, None
    assert states(world, made) == {"local"}
    assert store(world, made).manifest.backup_id == made
    world.check_settled()


@pytest.mark.parametrize("step", [*range(1, 12), 13, 17, 21, 30])
def test_killed_at_any_step_the_set_is_stored_or_stays(world: World, step: int) -> None:
    made = snapshot(world)
    world.steps.clear()
    world.die_at = step
    with contextlib.suppress(Died):
        store(world, made)
    world.rise()
    world.backup()
    left = states(world, made)
    assert left in ({"local"}, {"stored"})
    assert not [snap.name for snap in world.snapshots.values() if snap.holds]
    if left == {"local"}:
        store(world, made)
    world.check_good()

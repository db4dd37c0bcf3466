"""A source without a server and a position uses the same engine: backup, resume, verify, prune, copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.fake_sources import VOLUMES, FakeDisks, FakeMachine, FakeObservation, FakeProof, FakeServer
from tests.unit.support.stored_backups import Site
from tests.unit.support.world import Died, World, made
from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.config.repository import KeepSettings
from zsnapdb.jobs.backup import plan as backup_plan
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.repository import copy, prune, verify
from zsnapdb.jobs.repository.protection_status import status
from zsnapdb.report.backup import BackupPlanView, BackupView
from zsnapdb.report.repository.protection import StatusView
from zsnapdb.repository.manifest import OtherSourcePart, ZvolType
from zsnapdb.repository.manifest_source import MachineSourcePart
from zsnapdb.repository.verifications import Depth

DISKS = OtherSourcePart.model_validate({"kind": "disks", "grade": "crash"})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A host whose instance is disks, with one good backup."""
    with made(tmp_path) as world:
        world.source = FakeDisks
        world.backup()
        world.check_settled()
        world.steps.clear()
        yield world


def interrupted(world: World, at: str) -> None:
    """Run a backup that is killed before a step that has `at` in its name."""
    step = world.step

    def watched(what: str) -> None:
        if at in what:
            world.dead = True
            raise Died
        step(what)

    world.step = watched  # type: ignore[method-assign]
    with pytest.raises(Died):
        world.backup()
    world.step = step  # type: ignore[method-assign]
    world.rise()


def keeping(world: World, last: int) -> Instance:
    settings = world.instance.settings.model_copy(update={"keep": KeepSettings(last=last)})
    return replace(world.instance, settings=settings)


def test_the_increment_says_what_its_source_said(world: World) -> None:
    manifest = world.backup().manifest
    world.check_settled()
    assert (manifest.is_full, manifest.source) == (False, DISKS)
    assert world.repository.manifest("main", manifest.backup_id).source == DISKS
    assert {type(volume.type) for volume in manifest.volumes} == {ZvolType}
    names = [f"{dataset}@zsnapdb-{manifest.backup_id}" for dataset in VOLUMES.values()]
    assert [world.snapshots[name].properties["zsnapdb:grade"] for name in names] == ["crash", "crash"]


@pytest.mark.parametrize("at", ["hold", "bookmark", "/chunks/", "/manifests/", "release"])
def test_a_backup_that_was_interrupted_goes_on_without_its_source(world: World, at: str) -> None:
    interrupted(world, at)
    result = world.backup()
    world.check_settled()
    assert len(world.ids()) in (2, 3)
    for backup_id in world.ids():
        assert world.repository.manifest("main", backup_id).source == DISKS
    assert all(manifest.source == DISKS for manifest in result.continued)
    # What is released is a base that is committed: nothing is left to continue.
    assert bool(result.continued) == (at in ("/chunks/", "/manifests/"))


def test_what_its_source_does_not_prove_is_gone_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(world.snapshots)

    def refuse(self: FakeDisks, observed: FakeObservation, hold: str, made: SnapshotSet) -> FakeProof:
        raise ConsistencyError("not proved")

    monkeypatch.setattr(FakeDisks, "prove", refuse)
    with pytest.raises(ConsistencyError, match="not proved"):
        world.backup()
    assert set(world.snapshots) == before
    assert world.journals() == []


def test_an_instance_may_change_its_source_within_a_chain(world: World) -> None:
    world.source = FakeServer
    manifest = world.backup().manifest
    world.check_settled()
    assert (manifest.is_full, manifest.source.kind) == (False, "server")


def test_it_is_verified_and_pruned_like_any_other(world: World) -> None:
    for _ in range(2):
        world.backup(full=True)
    assert verify.verify(keeping(world, 1), Depth.LISTED).is_whole
    first, second, last = world.ids()
    prune.prune(keeping(world, 1), trusts_clock=True)
    world.removed = {first, second}
    assert world.ids() == [last]
    world.check_settled()


def test_it_is_copied_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tmp_path) as world:
        world.source = FakeDisks
        world.recipients = ()
        for _ in range(2):
            world.backup()
        names = world.ids()
    (tmp_path / "store-there").mkdir()
    site = Site(tmp_path / "store")
    result = copy.copy(site.instance(), site.instance("there"))
    assert sorted(result.copied) == names
    there = site.instance("there")
    assert verify.verify(there, Depth.READ).is_whole
    assert {there.open_repository().manifest("main", name).source for name in names} == {DISKS}


def test_its_plan_and_its_result_can_be_shown(world: World) -> None:
    plan = backup_plan.plan_now(world.instance, opener=world.open_source)
    assert (plan.observed.volumes, plan.base.base is not None) == (VOLUMES, True)
    assert "snapshot" in BackupPlanView(plan).text()
    assert BackupPlanView(plan).fields()["server"] is None
    view = BackupView(world.backup())
    assert "source    disks" in view.text()
    assert (view.fields()["backup"]["source"], view.fields()["backup"]["position"]) == ("disks", None)


def test_a_virtual_machine_uses_the_same_engine(tmp_path: Path) -> None:
    with made(tmp_path) as world:
        world.source = FakeMachine
        world.backup()
        interrupted(world, "/chunks/")
        result = world.backup()
        world.check_settled()
        assert len(result.continued) == 1
        sources = [world.repository.manifest("main", name).source for name in world.ids()]
        assert {(type(source), source.kind) for source in sources} == {(MachineSourcePart, "vm")}
        summaries = world.instance.summaries(world.repository).backups
        assert [backup.source.summary() for backup in summaries] == [source.summary() for source in sources]
        assert {backup.writer for backup in summaries} == {"virtual machine 11111111-2222-4333-8444-555555555555"}
        assert verify.verify(keeping(world, 1), Depth.LISTED).is_whole
        known = status(world.instance)
        assert StatusView(known).text()

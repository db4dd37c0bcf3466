"""A forged manifest cannot make the chunks of a backup pass for another stream."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from tests.unit.support.world import World
from zsnapdb.base.errors import DamagedError, RepositoryError
from zsnapdb.config.repository import KeepSettings
from zsnapdb.jobs.backup import plan as backup_plan
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import adopt, prune
from zsnapdb.repository import layout, stored_document
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository


def test_a_chunk_of_another_backup_does_not_pass_even_with_a_manifest_that_names_it(world: World) -> None:
    """An attacker who can write to the repository and forge an unsigned manifest cannot swap encrypted backups."""
    other = world.backup(full=True).manifest
    target = world.backup(full=True).manifest
    moved = target.volumes[0].model_copy(update={"chunks": other.volumes[0].chunks, "sha256": other.volumes[0].sha256})
    forged = target.model_copy(update={"keys": other.keys, "volumes": (moved, *target.volumes[1:])})
    for index in range(1, len(moved.chunks) + 1):
        body = world.local.get(layout.chunk("main", other.backup_id, "data", index))
        world.local.put(layout.chunk("main", target.backup_id, "data", index), body)
    world.local.put(layout.manifest("main", target.backup_id), forged.encode() + b"\n")
    with pytest.raises(DamagedError, match="does not decrypt"):
        world.content(target.backup_id)


def test_a_stream_that_was_shortened_by_its_last_chunks_does_not_pass(world: World) -> None:
    target = world.backup(full=True).manifest
    rows = target.volumes[0].chunks[:-1]
    shorter = target.volumes[0].model_copy(update={"chunks": rows, "plain_size": sum(row.plain_size for row in rows)})
    world.local.put(
        layout.manifest("main", target.backup_id),
        target.model_copy(update={"volumes": (shorter, *target.volumes[1:])}).encode() + b"\n",
    )
    with pytest.raises(DamagedError, match="does not decrypt"):
        world.content(target.backup_id)


def test_a_manifest_from_the_future_is_no_base_though_it_names_snapshots_of_this_host(world: World) -> None:
    honest = world.backup().manifest
    forged = honest.model_copy(update={"backup_id": "20991111T000000Z-0001"})
    world.local.put(layout.manifest("main", forged.backup_id), forged.encode() + b"\n")
    base = backup_plan.plan_now(world.instance, opener=world.open_source).base
    assert base.base is not None
    assert base.base.backup_id == honest.backup_id


@pytest.mark.parametrize("knows_chunks", [True, False])
def test_forged_manifest_finishes_no_interrupted_backup(
    world: World, monkeypatch: pytest.MonkeyPatch, knows_chunks: bool
) -> None:
    world.backup(full=True)
    written: list[Manifest] = []
    with monkeypatch.context() as patch:

        def interrupted(_: Repository, manifest: Manifest) -> str:
            written.append(manifest)
            raise RepositoryError("the store is gone")

        patch.setattr(Repository, "commit", interrupted)
        with pytest.raises(RepositoryError):
            world.backup(full=True)
    (genuine,) = written
    volumes = genuine.volumes
    if not knows_chunks:
        first = volumes[0].chunks[0]._replace(stored_sha256="0" * 64)
        volumes = (volumes[0].model_copy(update={"chunks": (first, *volumes[0].chunks[1:])}), *volumes[1:])
    forged = genuine.model_copy(update={"volumes": volumes, "zfs_version": "forged"})
    key = layout.manifest("main", genuine.backup_id)
    world.local.put(key, stored_document.with_digest(forged.encode()))
    snapshots = set(world.snapshots)
    world.backup(full=True)
    assert snapshots <= set(world.snapshots)
    assert any(genuine.backup_id in line and "did not store" in line for line in world.reported)
    record = host_backup_record.record_of(world.instance, world.instance.open_repository()).backups()
    assert genuine.backup_id not in {one.backup_id for one in record.stored}
    world.local.delete(key)
    world.backup(full=True)
    assert world.repository.manifest("main", genuine.backup_id) == genuine


@pytest.mark.parametrize("is_rewritten", [True, False])
def test_host_without_record_and_key_removes_nothing_though_it_has_the_snapshots(
    world: World, is_rewritten: bool
) -> None:
    """Its snapshots say which state a backup has, and nothing about the manifest that is there now."""
    for _ in range(3):
        world.backup(full=True)
    names, snapshots = world.ids(), set(world.snapshots)
    shutil.rmtree(world.instance.host.records)
    for name in names[1:] if is_rewritten else ():
        key = layout.manifest("main", name)
        fields = json.loads(world.local.get(key).partition(b"\n")[0]) | {"zfs_version": "rewritten"}
        world.local.put(key, json.dumps(fields).encode() + b"\n")
    instance = replace(
        world.instance, settings=world.instance.settings.model_copy(update={"keep": KeepSettings(last=1)})
    )
    assert not instance.open_repository().keyring.trusted
    done = prune.prune(instance, trusts_clock=True)
    assert (done.removed, done.swept, done.destroyed, world.ids()) == ((), (), (), names)
    assert set(world.snapshots) == snapshots
    assert [one.backup.backup_id for one in adopt.plan(instance).candidates] == names
    adopt.adopt(instance, adopt.plan(instance))
    assert prune.prune(instance, trusts_clock=True).removed == tuple(reversed(names[:-1]))

"""A forged manifest cannot make the chunks of a backup pass for another stream."""

from __future__ import annotations

import pytest

from tests.unit.support.world import World
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.backup import plan as backup_plan
from zsnapdb.repository import layout


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

"""What verify found damaged in the repository is no base: neither of the next backup nor of an interrupted one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.support.interruption import interrupt
from tests.unit.support.world import World
from zsnapdb.jobs.backup import plan as backup_plan
from zsnapdb.jobs.repository import verify
from zsnapdb.planning.backup_chain import ReasonKind
from zsnapdb.repository import layout
from zsnapdb.repository.verifications import Depth


def flip(world: World, backup_id: str) -> bytes:
    """Flip a bit of a chunk of the backup. Return the good chunk."""
    key = layout.chunk("main", backup_id, "data", 1)
    good = world.local.get(key)
    world.local.put(key, good[:20] + bytes([good[20] ^ 1]) + good[21:])
    return good


def read_all(world: World) -> None:
    """Verify everything by reading, with the identity."""
    settings = world.instance.repository
    encryption = settings.encryption.model_copy(update={"identity_file": world.folder / "identity"})
    reader = replace(world.instance, repository=settings.model_copy(update={"encryption": encryption}))
    verify.verify(reader, Depth.READ)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_the_next_backup_is_full_and_says_why(world: World, damaged: int) -> None:
    for _ in range(2):
        world.backup()
    backup_id = world.ids()[damaged]
    flip(world, backup_id)
    assert world.backup().manifest.is_full is False, "nobody knows of the damage yet"
    read_all(world)
    planned = backup_plan.plan_now(world.instance, opener=world.open_source)
    base = planned.base
    assert (base.base, base.why) == (None, ReasonKind.DAMAGED)
    assert [finding for finding in planned.observed.findings if f"backup {backup_id} is damaged" in finding.detail]
    assert f"backup {backup_id} is damaged, known since 2026-11-20" in str(base.reasons[-1])
    assert "by verify --deep: chunk main/chunks/" in str(base.reasons[-1])
    assert world.backup().manifest.is_full
    assert not world.backup().manifest.is_full, "the chain of the new full backup is good"


def test_a_backup_that_reading_found_whole_again_is_a_base_again(world: World) -> None:
    backup_id = world.ids()[0]
    good = flip(world, backup_id)
    read_all(world)
    world.local.put(layout.chunk("main", backup_id, "data", 1), good)
    verify.verify(world.instance, Depth.LISTED)
    assert backup_plan.plan_now(world.instance, opener=world.open_source).base.why is ReasonKind.DAMAGED
    read_all(world)
    assert backup_plan.plan_now(world.instance, opener=world.open_source).base.why is ReasonKind.INCREMENT


def test_an_interrupted_increment_of_a_damaged_backup_is_given_up(world: World) -> None:
    base = world.ids()[-1]
    started = interrupt(world, "put main/chunks/", number=2)
    world.local.delete(layout.chunk("main", base, "data", 1))
    verify.verify(world.instance, Depth.LISTED)
    result = world.backup()
    assert (result.continued, result.manifest.is_full) == ((), True)
    assert [
        text for text in result.warnings if f"backup {started}, which was interrupted, is given up: it is an" in text
    ]

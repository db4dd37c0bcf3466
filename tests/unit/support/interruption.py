"""Backups that are killed at a chosen step, and the results of their repetition."""

from __future__ import annotations

import pytest

from tests.unit.support.world import Died, World
from zsnapdb.jobs.backup.run import BackupResult


def die(world: World, step: int) -> bool:
    """Run a backup that is killed before that step. Return whether the backup reached the step."""
    world.rise()
    world.die_at = step
    try:
        world.backup()
    except Died:
        return True
    finally:
        world.dead = False
    return False


def interrupt(world: World, at: str, number: int = 1) -> str:
    """Run a backup that is killed before the given occurrence of a step; return its id."""
    world.rise()
    seen: list[str] = []
    step = world.step

    def watched(what: str) -> None:
        if at in what:
            seen.append(what)
            if len(seen) == number:
                world.dead = True
                raise Died
        step(what)

    world.step = watched  # type: ignore[method-assign]
    with pytest.raises(Died):
        world.backup()
    world.step = step  # type: ignore[method-assign]
    world.rise()
    (started,) = world.journals()
    return started


def warnings_of(result: BackupResult) -> tuple[str, ...]:
    """Return the warnings of a run, without the one about the lease of the killed run."""
    return tuple(text for text in result.warnings if not text.startswith("taking over"))


def chunk_puts(world: World, backup_id: str) -> list[str]:
    return [step for step in world.steps if step.startswith("put ") and f"/chunks/{backup_id}/" in step]

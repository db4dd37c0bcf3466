"""A source that is larger than a manifest with the configured chunks is backed up with larger ones, or refused."""

from __future__ import annotations

import pytest

from tests.unit.support.interruption import chunk_puts, interrupt
from tests.unit.support.world import World
from zsnapdb.base.errors import ConfigError
from zsnapdb.jobs.backup import send
from zsnapdb.stream import upload

TB = 10**12


def estimating(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have ZFS say that each stream has so many bytes."""
    monkeypatch.setattr(send, "estimate", lambda name, base, flags: size)


def cuts(world: World, monkeypatch: pytest.MonkeyPatch, *, full: bool) -> list[int]:
    """Make a backup, and return the chunk size of each of its uploads in bytes."""
    seen: list[int] = []

    def watched(*args: object, **named: object) -> object:
        seen.append(args[2].chunk_size)  # type: ignore[attr-defined]
        return upload.upload(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(send, "upload", watched)
    world.backup(full=full)
    return seen


def test_large_backup_has_larger_chunks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = world.instance.upload_settings().chunk_size
    estimating(monkeypatch, 50 * TB)
    (chosen,) = set(cuts(world, monkeypatch, full=True))
    assert chosen > configured
    assert set(cuts(world, monkeypatch, full=False)) == {chosen}
    estimating(monkeypatch, 1000)
    assert set(cuts(world, monkeypatch, full=False)) == {configured}


def test_small_backup_has_the_configured_chunks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    estimating(monkeypatch, 1000)
    assert set(cuts(world, monkeypatch, full=True)) == {world.instance.upload_settings().chunk_size}


def test_stream_with_too_many_chunks_is_refused_before_upload(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup that was begun with small chunks, and whose source has grown since, stores no chunk more."""
    started = interrupt(world, "put main/chunks/", number=1)
    estimating(monkeypatch, 10**6 * TB)
    before = chunk_puts(world, started)
    with pytest.raises(ConfigError, match="chunks of"):
        world.backup()
    assert chunk_puts(world, started) == before

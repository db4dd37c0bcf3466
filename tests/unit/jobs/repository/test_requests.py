"""How often the store is asked: what was read once is asked for no more, however many backups there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.world import World, made
from zsnapdb.jobs.backup import run as backup
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.repository import inventory, protection_status
from zsnapdb.store.local import LocalStore


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with made(tmp_path) as world:
        yield world


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was asked of the store, by kind of request and what the key is of."""
    seen: Counter[str] = Counter()
    get, list_ = LocalStore.get, LocalStore.list

    def counted_get(self: LocalStore, key: str, *words: object, **options: object) -> object:
        seen["manifest" if "/manifests/" in key else "other object"] += 1
        return get(self, key, *words, **options)

    def counted_list(self: LocalStore, prefix: str, *words: object, **options: object) -> object:
        seen["list"] += 1
        return list_(self, prefix, *words, **options)

    monkeypatch.setattr(LocalStore, "get", counted_get)
    monkeypatch.setattr(LocalStore, "list", counted_list)
    return seen


def site(world: World, backups: int) -> Instance:
    for _ in range(backups):
        backup.backup(world.instance, opener=world.open_source)
    return world.instance


@pytest.mark.parametrize("backups", [2, 7])
def test_no_manifest_is_read_twice_and_the_number_of_backups_costs_no_request(
    world: World, read: Counter[str], backups: int
) -> None:
    instance = site(world, backups)
    inventory.inventory(instance)
    for look in (protection_status.status, inventory.inventory, instance_checks.describe_stored):
        read.clear()
        look(instance)
        assert read["manifest"] == 0, look
        assert read["list"] <= 12, (look, read)
        assert read["other object"] <= 8, (look, read)

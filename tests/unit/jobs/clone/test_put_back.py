"""After a rewind without a backup, the newest stored one may be of what was taken back: it is not the latest."""

from __future__ import annotations

import pytest

from tests.unit.support.clone_pool import SOURCE, ClonePool, Thing
from tests.unit.support.manifests import manifest
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone.locate import _taken_back
from zsnapdb.repository.manifest import Manifest

HISTORY = "20261126T115900Z-0174"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.zfs.version.pool_guid", lambda _: 5)
    return pool


@pytest.fixture
def instance() -> Instance:
    text = f'[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\nvolumes = {{ data = "{SOURCE}" }}\n'
    return Instance.of(parse(text, "the test"), "main")


def backup(guid: int, createtxg: int) -> Manifest:
    made = manifest()
    volume = made.volumes[0].model_copy(update={"role": "data", "guid": guid})
    return made.model_copy(update={"volumes": (volume,), "createtxg": createtxg, "pool_guid": 5})


def put_back(pool: ClonePool, made: int) -> None:
    pool.things[SOURCE].properties["zsnapdb:incarnation"] = HISTORY
    pool.things[SOURCE].txg = made


def test_backup_from_before_a_rewind_is_what_was_taken_back(pool: ClonePool, instance: Instance) -> None:
    assert _taken_back(instance, backup(7, 50)) == ""
    put_back(pool, 60)
    assert _taken_back(instance, backup(7, 50)) == HISTORY
    assert _taken_back(instance, backup(7, 70)) == "", "it was made since"


def test_backup_of_a_replaced_server_is_what_was_taken_back(pool: ClonePool, instance: Instance) -> None:
    """While a rewind prepares, production goes on, and is backed up."""
    put_back(pool, 1)
    old = f"{SOURCE}-replaced-{HISTORY.lower()}"
    facts = {"replaced": HISTORY, "replaced-instance": "main", "replaced-role": "data", "replaced-at": "x"}
    pool.things[old] = Thing({f"zsnapdb:{key}": value for key, value in facts.items()})
    guid = pool.things[pool.snapshot(f"{old}@b")].txg
    assert _taken_back(instance, backup(guid, 70)) == HISTORY


@pytest.mark.parametrize("is_clone", [True, False])
def test_backup_that_a_server_was_put_back_to_is_of_its_history(
    pool: ClonePool, instance: Instance, is_clone: bool
) -> None:
    put_back(pool, 60)
    base = pool.snapshot("tank/old@b" if is_clone else f"{SOURCE}@b")
    if is_clone:
        pool.things["tank/old"] = Thing()
        pool.things[SOURCE].origin = base
    assert _taken_back(instance, backup(pool.things[base].txg, 50)) == ""

"""Two pools can have the same received set, for example after a split: production's pool decides, not its name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.clone_pool import ClonePool, Thing, origin
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.clone import cached_sets
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.zfs import datasets

SET_ID = "20261120T100000Z-000a"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> ClonePool:
    """The pools aaa and zzz with the same received set, as after `zpool split`: names, properties, GUIDs."""
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr(datasets, "pools", lambda: ["aaa", "zzz"])
    facts = {"kept": SET_ID, "key": "k" * 64, "phase": "ready", "instance": "main", "backup": SET_ID, "point": "there"}
    facts |= {"source": SourceKind.POINT, "origin": origin().encode(), "used": "2026-11-22T00:00:00Z"}
    anchor = Thing({f"zsnapdb:{key}": value for key, value in (facts | {"created": facts["used"]}).items()})
    volume = Thing({"zsnapdb:kept": SET_ID, "zsnapdb:role": "data", "mountpoint": "/nowhere"})
    for name in ("aaa", "zzz"):
        home = f"{name}/zsnapdb"
        pool.things |= {top: Thing() for top in (name, home, f"{home}/clones", f"{home}/received")}
        pool.things[f"{home}/received/{SET_ID}"] = replace(anchor)
        pool.things[f"{home}/received/{SET_ID}/data"] = replace(volume)
        pool.things[f"{home}/received/{SET_ID}/data@zsnapdb-{SET_ID}"] = Thing(txg=7)
    return pool


SETTINGS = Settings.model_validate({"instance": {}, "repository": {}})


def instance(volumes: dict[str, str] | None) -> Any:
    return SimpleNamespace(name="main", settings=SimpleNamespace(volumes=volumes))


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("pool", ["aaa", "zzz"])
def test_set_in_the_pool_of_production_is_taken(pool: str) -> None:
    taken = cached_sets.find_point(SETTINGS, instance({"data": f"{pool}/db"}), SET_ID)
    assert taken is not None
    snapshot = f"{pool}/zsnapdb/received/{SET_ID}/data@zsnapdb-{SET_ID}"
    assert (taken.set.snapshots["data"].full_name, taken.pool) == (snapshot, pool)
    assert cached_sets.find_reached(f"{pool}/zsnapdb/clones", "main", "there") == taken
    assert cached_sets.find_ready_point(f"{pool}/zsnapdb/clones", SET_ID) == taken


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("volumes", [None, {"data": "other/db"}, {"data": "aaa/db", "log": "zzz/log"}])
def test_doubt_about_the_pool_is_named(volumes: dict[str, str] | None) -> None:
    with pytest.raises(PreflightError, match=f"several pools have the set {SET_ID}: aaa/.*, zzz/"):
        cached_sets.find_point(SETTINGS, instance(volumes), SET_ID)


def test_set_of_the_configured_home_alone_is_taken(pools: ClonePool) -> None:
    """With `clones.dataset`, clones and their sets are in one pool."""
    settings = Settings.model_validate({"instance": {}, "repository": {}, "clones": {"dataset": "zzz/zsnapdb/clones"}})
    taken = cached_sets.find_point(settings, instance(None), SET_ID)
    assert taken is not None
    assert taken.pool == "zzz"

"""Two pools can have the same received set, for example after a split: production's pool decides, not its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.clone import cached_sets
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.planning.clone.lease import SourceKind

ANY: Any = None
SET_ID = "20261120T100000Z-000a"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pools aaa and zzz have the same received set."""

    def read(kind: str, above: list[str]) -> Any:
        facts = {"instance": "main", "source": SourceKind.POINT, "phase": CopyPhase.READY, "set_id": SET_ID}
        sets = [SimpleNamespace(anchor=f"{top}/{SET_ID}", point="there", **facts) for top in above]
        return SimpleNamespace(copies=sets)

    monkeypatch.setattr(cached_sets, "homes", lambda settings: [f"{pool}/zsnapdb/clones" for pool in ("aaa", "zzz")])
    monkeypatch.setattr(cached_sets, "_read_sets", read)
    monkeypatch.setattr(cached_sets, "_source_of", lambda stored, kind, *, is_prepared: stored.anchor)


def instance(volumes: dict[str, str] | None) -> Any:
    return SimpleNamespace(name="main", settings=SimpleNamespace(volumes=volumes))


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("pool", ["aaa", "zzz"])
def test_set_in_the_pool_of_production_is_taken(pool: str) -> None:
    taken: Any = cached_sets.find_point(ANY, instance({"data": f"{pool}/db"}), SET_ID)
    assert taken == f"{pool}/zsnapdb/received/{SET_ID}"
    assert cached_sets.find_reached(f"{pool}/zsnapdb/clones", "main", "there") == taken


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("volumes", [None, {"data": "other/db"}, {"data": "aaa/db", "log": "zzz/log"}])
def test_doubt_about_the_pool_is_named(volumes: dict[str, str] | None) -> None:
    with pytest.raises(PreflightError, match=f"several pools have the set {SET_ID}: aaa/.*, zzz/"):
        cached_sets.find_point(ANY, instance(volumes), SET_ID)

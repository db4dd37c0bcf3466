"""The target of a restore that names none: in the pool of the backup, or in the only pool of the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.restore import plan
from zsnapdb.zfs import datasets

HANDOVERS = ("run", "promote")


def target(monkeypatch: pytest.MonkeyPatch, pools: list[str], handover: str) -> str:
    monkeypatch.setattr(datasets, "pools", lambda: pools)
    monkeypatch.setattr(datasets, "exists", lambda _: False)
    monkeypatch.setattr(datasets, "alternate_root", lambda _: None)
    manifest: Any = SimpleNamespace(instance="main", volumes=[SimpleNamespace(dataset="tank/mysql/data")])
    request: Any = SimpleNamespace(name=None, handover=SimpleNamespace(kind=handover))
    return plan._default_top(manifest, request)


@pytest.mark.parametrize("handover", HANDOVERS)
@pytest.mark.parametrize(("pools", "chosen"), [(["data"], "data"), (["data", "tank"], "tank")])
def test_restore_uses_the_pool_of_the_backup_or_the_only_one(
    monkeypatch: pytest.MonkeyPatch, pools: list[str], chosen: str, handover: str
) -> None:
    assert target(monkeypatch, pools, handover) == f"{chosen}/zsnapdb/restored/main"


@pytest.mark.parametrize("handover", HANDOVERS)
@pytest.mark.parametrize("pools", [[], ["data", "other"]])
def test_restore_without_a_clear_pool_asks_for_the_target(
    monkeypatch: pytest.MonkeyPatch, pools: list[str], handover: str
) -> None:
    with pytest.raises(PreflightError, match="this host has no pool tank") as refused:
        target(monkeypatch, pools, handover)
    assert "--target" in refused.value.hint

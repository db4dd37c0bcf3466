"""A clone of a consolidated backup is made of the snapshots on the host, if they are the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.manifests import manifest as example
from tests.unit.support.planning_host import PlanningHost
from zsnapdb.jobs.clone import cached_sets, source_lookup
from zsnapdb.jobs.clone.sources import RemoteBackup
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository

ORIGINAL, CONSOLIDATED = "20261101T000000Z-0001", "20261101T000000Z-0002"


def consolidated() -> Manifest:
    volumes = tuple(
        volume.model_copy(update={"snapshot": f"zsnapdb-{ORIGINAL}", "from_guid": None}) for volume in example().volumes
    )
    return example(CONSOLIDATED).model_copy(update={"volumes": volumes})


@pytest.mark.parametrize("difference", [0, 1])
def test_the_set_on_this_host_is_cloned_if_its_guids_are_those_of_the_backup(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, difference: int
) -> None:
    target = consolidated()
    here: Any = SimpleNamespace(
        pool="tank",
        guids={role: guid + difference for role, guid in target.guids().items()},
    )
    monkeypatch.setattr(source_lookup, "find_local", lambda *words: here if words[-1] == ORIGINAL else None)
    monkeypatch.setattr(Repository, "backup_ids", lambda *words: [CONSOLIDATED])
    monkeypatch.setattr(Repository, "manifest", lambda *words: target)
    monkeypatch.setattr(source_lookup, "home", lambda *words: "tank/zsnapdb/clones")
    monkeypatch.setattr(source_lookup, "pool_for", lambda *words: "tank")
    monkeypatch.setattr(cached_sets, "find_received", lambda *words: None)
    monkeypatch.setattr(cached_sets, "prepared_form", lambda home, source, rules: source)
    located = source_lookup.locate(host.settings, host.instance, CONSOLIDATED)
    assert (located is here) is (difference == 0)
    assert isinstance(located, RemoteBackup) is (difference == 1)

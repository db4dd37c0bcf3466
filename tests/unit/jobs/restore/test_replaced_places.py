"""A restore asks about the datasets that it replaces on this host. The backup may have had other names."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import zsnapdb
from tests.unit.support.planning_host import PlanningHost
from zsnapdb.jobs.host import affected_replicas
from zsnapdb.jobs.restore import replaced_server, server_restore
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.mysql.process.service import ServingProcess
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Promote, PromotePart
from zsnapdb.zfs import version
from zsnapdb.zfs.datasets import Property

READERS = {"jobs/restore/handover_plan.py", "jobs/restore/plan.py"}
"""These modules may read the places of the source: the first finds the places here, the second maps mount points."""
HERE = {"vault/mysql": "enabled", "vault/mysql/data": "disabled"}


def promoted(host: PlanningHost) -> RestorePlan:
    """Return a plan that replaces datasets of the pool `vault`, from a backup of the pool `tank`."""
    made = server_restore.restore(host.settings, host.instance, RestoreRequest("latest-backup", "tank/again")).plan
    assert all(dataset.startswith("tank/") for dataset, _ in made.layout.places.values())
    parts = [PromotePart(name, f"vault/new/{name}", name, f"{name}-old", f"/{name}") for name in HERE]
    fresh = PromotePart("logs", "vault/new/logs", "vault/logs", None, "/logs")
    return replace(made, steps=(*made.steps[:-1], Promote((*parts, fresh), (), "20261120T120000Z-0001")))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The datasets of each question to ZFS. Only those of `HERE` exist."""
    names = list[list[str]]()

    def properties_of(datasets: list[str], keys: list[str]) -> dict[str, dict[str, Property]]:
        names.append(datasets)
        return {name: {key: Property(HERE[name], "local") for key in keys} for name in datasets}

    for module in (replaced_server, affected_replicas):
        zfs = SimpleNamespace(properties_of=properties_of, exists=HERE.__contains__)
        monkeypatch.setattr(module, "datasets", zfs)
    return names


def test_only_the_planning_of_a_promotion_reads_the_places_of_the_source() -> None:
    package = Path(zsnapdb.__file__).parent
    reading = [path for path in package.rglob("*.py") if "layout.places" in path.read_text()]
    assert {str(path.relative_to(package)) for path in reading} == READERS


def test_clean_end_is_judged_by_the_datasets_of_this_host(
    host: PlanningHost, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = promoted(host)
    monkeypatch.setattr(replaced_server, "serving_process", lambda _: ServingProcess(4166, ("mysqld",)))
    monkeypatch.setattr(version, "kernel_release", lambda: (2, 3))
    monkeypatch.setattr(type(host.instance), "session", lambda _: nullcontext())
    variables = {"innodb_flush_method": "O_DIRECT", "version": "11.8.9-MariaDB"}
    monkeypatch.setattr(replaced_server, "global_variables", lambda *_: variables)
    monkeypatch.setattr(replaced_server, "count_page_compressed", lambda *_: 1)
    (finding,) = replaced_server.judge_end(host.instance, planned)
    assert finding.hint == "zfs set direct=disabled vault/mysql"
    assert asked == [list(HERE)]


def test_readers_are_noted_for_the_datasets_of_this_host(host: PlanningHost, asked: list[list[str]]) -> None:
    affected_replicas.note(host.instance, promoted(host), None)
    assert asked == [list(HERE)]

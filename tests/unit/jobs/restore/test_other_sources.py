"""Jobs that start a server on a backup refuse a backup of another kind, name that kind, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.unit.support.manifests import manifest, of_kind
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone.source_lookup import locate
from zsnapdb.jobs.restore import plan
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.trial import drill, rescue
from zsnapdb.jobs.trial.rescue import Destination, RescueRequest
from zsnapdb.planning.sql_quoting import parse_table
from zsnapdb.planning.trial.rescue import DumpFile
from zsnapdb.repository import layout
from zsnapdb.zfs import datasets

SERVER, DISK = "20261120T101112Z-7f3a", "20261121T101112Z-7f3a"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(datasets, "exists", lambda dataset: False)
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store", is_after_examples=True)
    repository = site.instance().open_or_create_repository()
    for made in (manifest(SERVER), of_kind("disk", DISK)):
        repository.commit(made.model_copy(update={"repository_id": repository.id}))
    return site


def restored(settings: Settings, instance: Instance, to: str) -> object:
    return plan.make(settings, instance, instance.open_repository(), RestoreRequest(to=to))


def drilled(settings: Settings, instance: Instance, to: str) -> object:
    return drill.plan(settings, instance, instance.open_repository(), drill.DrillRequest(to, seed=1))


def rescued(settings: Settings, instance: Instance, to: str) -> object:
    where = Destination(DumpFile("/nonexistent/dump.sql"), SecretStr(""))
    request = RescueRequest(parse_table("shop.item"), to, where, None, None, 60.0)
    return rescue.plan(settings, instance, instance.open_repository(), request)


def cloned(settings: Settings, instance: Instance, to: str) -> object:
    return locate(settings, instance, to)


@pytest.mark.parametrize("command", [restored, drilled, rescued, cloned])
@pytest.mark.parametrize("to", ["latest", DISK])
def test_a_backup_of_another_kind_is_refused_by_its_kind(
    site: Site, command: Callable[[Settings, Instance, str], object], to: str
) -> None:
    with pytest.raises(PreflightError, match=f"backup {DISK} is a backup of kind disk") as refused:
        command(parse(site.text(), "test"), site.instance(), to)
    assert refused.value.exit_code == 4
    assert refused.value.hint


def test_a_moment_is_looked_for_behind_the_backups_of_servers_alone(site: Site) -> None:
    with pytest.raises(NotFound, match=f"cannot be reached from backup {SERVER}"):
        restored(parse(site.text(), "test"), site.instance(), "2026-11-22T00:00:00Z")


def test_a_moment_of_an_instance_without_backups_of_servers_is_refused_by_their_kind(site: Site) -> None:
    (site.folder / layout.manifest("main", SERVER)).unlink()
    with pytest.raises(PreflightError, match="is a backup of kind disk"):
        restored(parse(site.text(), "test"), site.instance(), "2026-11-22T00:00:00Z")

"""Damage that verify found is told by every command that shows backups: list, show, status, doctor, restore, prune."""

from __future__ import annotations

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.repository import inventory, protection_status, verify
from zsnapdb.jobs.restore import chain_checks
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.report.repository.list import BackupDetailView, InventoryView
from zsnapdb.report.repository.protection import StatusView
from zsnapdb.repository import layout
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.local import LocalStore
from zsnapdb.zfs import datasets


@pytest.fixture
def names(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two chains; the first backup of the first chain is damaged, and verify has found that."""
    monkeypatch.setattr(datasets, "exists", lambda dataset: False)
    names = site.fill([None, 0, None, 2])
    store, key = LocalStore(site.folder), layout.chunk("main", names[0], "data", 2)
    body = store.get(key)
    store.put(key, body[:50] + bytes([body[50] ^ 1]) + body[51:])
    verify.verify(site.instance(), Depth.READ)
    return names


def test_list_names_what_is_damaged_and_what_needs_it(site: Site, names: list[str]) -> None:
    view = InventoryView(inventory.inventory(site.instance()))
    assert f"damaged: backup {names[0]} is damaged, known since 20" in view.text()
    assert f"by verify --deep: chunk main/chunks/{names[0]}/data/00000002" in view.text()
    assert f"damaged: backup {names[1]} needs {names[0]}" in view.text()
    assert [bool(row["known_damage"]) for row in view.fields()["backups"]] == [True, True, False, False]


@pytest.mark.parametrize("number", range(4))
def test_show_names_the_damage_of_the_whole_chain(site: Site, names: list[str], number: int) -> None:
    view = BackupDetailView(inventory.detail(site.instance(), names[number]))
    damaged = number < 2
    assert (f"damaged   backup {names[0]} is damaged, known since" in view.text()) == damaged
    assert [row["name"] for row in view.fields()["known_damage"]] == ([names[0]] if damaged else [])


def test_status_calls_nothing_recoverable_that_is_known_to_be_damaged(site: Site, names: list[str]) -> None:
    view = StatusView(protection_status.status(site.instance()))
    shown = {backup for part in view.fields()["recoverable"] for backup in part["backups"]}
    assert shown == set(names[2:])
    assert f"damaged       backup {names[0]} is damaged, known since" in view.text()
    assert [row["name"] for row in view.fields()["known_damage"]] == [names[0]]


def test_the_doctor_warns_of_backups_that_cannot_be_restored(site: Site, names: list[str]) -> None:
    findings = [finding for finding in instance_checks.describe_stored(site.instance()) if finding.what == "damage"]
    assert [finding.severity for finding in findings] == [Severity.WARNING, Severity.WARNING]
    assert findings[0].detail.startswith("2 of 4 backups cannot be restored")
    assert f"backup {names[0]} is damaged" in findings[1].detail


def test_the_plan_of_a_restore_names_the_damage_of_its_chain(site: Site, names: list[str]) -> None:
    repository = site.instance().open_repository()
    bad = chain_checks.judge_damage(site.instance(), repository, names[:2])
    assert [finding.severity for finding in bad] == [Severity.WARNING]
    assert f"backup {names[0]} is damaged" in bad[0].detail
    assert chain_checks.is_damaged(bad)
    assert chain_checks.judge_damage(site.instance(), repository, names[2:]) == []

"""Every command that reads a repository says what it lacks of what this host stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.manifests import stored_manifests
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import adopt, inventory, protection_status, prune, verify
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.report.repository.list import InventoryView
from zsnapdb.report.repository.protection import StatusView
from zsnapdb.report.repository.prune import VerifyView
from zsnapdb.repository import layout
from zsnapdb.zfs import datasets

TEXT = "the repository lacks 1 backup that this host stored: deleted, hidden, or rolled back"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A repository with two of the three backups that this host stored: the newest is gone."""
    monkeypatch.setattr(datasets, "exists", lambda name: False)
    for name in ("store", "run"):
        (tmp_path / name).mkdir()
    made = Site(tmp_path / "store")
    names = made.fill([None, None, None])
    instance = made.instance()
    repository = instance.open_repository()
    for manifest in stored_manifests(repository):
        host_backup_record.note_stored(instance, repository, manifest)
    repository.delete(layout.manifest("main", names[2]))
    return made


def test_status_says_it(site: Site) -> None:
    state = protection_status.status(site.instance())
    assert [finding.is_alarming for finding in state.missing] == [True]
    assert f"MISSING       {TEXT}" in StatusView(state).text()


def test_list_says_it(site: Site) -> None:
    listing = inventory.inventory(site.instance())
    assert TEXT in listing.missing[0].text
    assert '"kind": "backups-missing"' in InventoryView(listing).document()


def test_verify_says_it_and_the_repository_is_not_whole(site: Site) -> None:
    result = verify.verify(site.instance(), verify.Depth.LISTED)
    assert not result.is_whole
    assert f"  MISSING   {TEXT}" in VerifyView(result).text()


def test_show_of_a_backup_says_it_and_show_of_the_latest_is_refused(site: Site) -> None:
    first = site.instance().open_repository().backup_ids("main")[0]
    assert TEXT in inventory.detail(site.instance(), first).missing[0].text
    with pytest.raises(DamagedError, match="newer ones were stored"):
        inventory.detail(site.instance(), "latest")


def test_prune_says_it(site: Site) -> None:
    assert TEXT in prune.plan(site.instance(), local=NOTHING_LOCAL).missing[0].text


def test_the_doctor_says_it(site: Site) -> None:
    findings = instance_checks.describe_stored(site.instance())
    assert [finding.detail for finding in findings if TEXT in finding.detail]


def test_a_copy_of_the_repository_is_not_held_against_what_was_stored_here(site: Site) -> None:
    (site.folder.parent / "store-there").mkdir()
    site.instance("there").open_or_create_repository()
    assert inventory.inventory(site.instance("there")).missing == ()


def test_what_a_person_forgets_is_no_longer_missed(site: Site) -> None:
    planned = adopt.plan_forget(site.instance(), ())
    assert len(planned.backups) == 1
    assert inventory.inventory(site.instance()).missing != ()
    assert adopt.forget(site.instance(), planned.backups) == planned
    assert inventory.inventory(site.instance()).missing == ()
    assert adopt.plan_forget(site.instance(), ()).backups == ()


def test_a_backup_that_the_repository_has_is_not_forgotten(site: Site) -> None:
    first = site.instance().open_repository().backup_ids("main")[0]
    with pytest.raises(NotFound, match=first):
        adopt.forget(site.instance(), (first,))

"""A host that was rebuilt adopts what it can prove to be whole, and shows what it believes."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.unit.support.pruning import forge, manifests, plan, prune
from tests.unit.support.stored_backups import Site, store_backup
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import adopt
from zsnapdb.report.repository.list import AdoptView
from zsnapdb.report.repository.prune import PrunePlanView
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.store.local import LocalStore


@pytest.fixture
def rebuilt(site: Site) -> Site:
    """A repository with two chains, and a host that lost its record."""
    site.fill([None, 0, None, 2, 3])
    shutil.rmtree(site.host.records)
    return site


def test_rebuilt_host_removes_nothing_until_it_adopted(rebuilt: Site) -> None:
    before = manifests(rebuilt)
    assert prune(rebuilt).removed == ()
    assert "this host knows no backup" in PrunePlanView(plan(rebuilt)).text()
    planned = adopt.plan(rebuilt.instance())
    assert [backup.backup_id for backup in planned.adopted] == before
    assert "all chunks are listed with their sizes" in AdoptView(planned, is_planned=True).text()
    adopt.adopt(rebuilt.instance(), planned)
    assert set(prune(rebuilt).removed) == set(before[:2])
    assert adopt.plan(rebuilt.instance()).is_empty


def test_made_up_backup_without_data_is_not_adopted(rebuilt: Site) -> None:
    made_up = forge(rebuilt, manifests(rebuilt)[-1], "aaaa")
    planned = adopt.plan(rebuilt.instance())
    assert made_up not in {backup.backup_id for backup in planned.adopted}
    (candidate,) = [one for one in planned.candidates if one.backup.backup_id == made_up]
    assert candidate.objection.startswith("it is damaged: chunk ")
    with pytest.raises(PreflightError, match="cannot be adopted"):
        adopt.plan(rebuilt.instance(), [made_up])


def test_named_backup_alone_is_adopted(rebuilt: Site) -> None:
    names = manifests(rebuilt)
    adopt.adopt(rebuilt.instance(), adopt.plan(rebuilt.instance(), [names[2]], is_deep=True))
    repository = rebuilt.instance().open_repository()
    known = rebuilt.instance().summaries(repository)
    checked = host_backup_record.check(rebuilt.instance(), repository, known.backups, ())
    assert set(checked.provenance.proofs) == {names[2]}
    with pytest.raises(NotFound):
        adopt.plan(rebuilt.instance(), [names[2]])


def test_host_that_prunes_for_another_believes_its_key_and_adopts_nothing(site: Site) -> None:
    public = site.begin_to_sign()
    names = site.fill([None] * 4)
    made_up = forge(site, names[-1], "aaaa")
    shutil.rmtree(site.host.records)
    site.signing_key = None
    site.signers = (public,)
    assert prune(site).removed == (names[0],)
    assert set(plan(site).provenance.foreign) == {made_up}
    later = store_backup(signing(site), f"{names[-1][:-4]}ffff", 9, None)
    assert later.backup_id in plan(site).provenance.proofs


@pytest.mark.parametrize("adopted", [None, 3], ids=["all", "one by its name"])
def test_unreadable_backup_at_adoption_keeps_what_it_may_need(rebuilt: Site, adopted: int | None) -> None:
    """It may be of the host whose backups this one adopts."""
    rebuilt.keep = "last = 1"
    names = manifests(rebuilt)
    LocalStore(rebuilt.folder).put(layout.manifest("main", names[1]), b"{")
    assert prune(rebuilt).removed == ()
    chosen = [] if adopted is None else [names[adopted], names[0]]
    adopt.adopt(rebuilt.instance(), adopt.plan(rebuilt.instance(), chosen))
    assert names[0] not in prune(rebuilt).removed


def test_unreadable_backup_of_another_signing_host_keeps_its_base(site: Site) -> None:
    site.keep = "last = 1"
    public = site.begin_to_sign()
    names = site.fill([None, 0, None])
    shutil.rmtree(site.host.records)
    site.signing_key, site.signers = None, (public,)
    key = layout.manifest("main", names[1])
    LocalStore(site.folder).put(key, b"{" + LocalStore(site.folder).get(key))
    assert prune(site).removed == ()


def signing(site: Site) -> Repository:
    """Return the repository for the host that signs."""
    key = site.folder.parent / "signing"
    return replace(site.instance().open_repository(), keyring=Keyring(signing_key_file=key))

"""A host that was rebuilt adopts what it can prove to be whole, and shows what it believes."""

from __future__ import annotations

import shutil

import pytest

from tests.unit.support.pruning import forge, manifests, plan, prune
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import NotThere, PreflightError
from zsnapdb.jobs.record import host_record
from zsnapdb.jobs.repository import adopt
from zsnapdb.report.repository.adopt import AdoptView
from zsnapdb.report.repository.prune import PrunePlanView


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
    checked = host_record.check(rebuilt.instance(), repository, known.backups, ())
    assert set(checked.provenance.proofs) == {names[2]}
    with pytest.raises(NotThere):
        adopt.plan(rebuilt.instance(), [names[2]])

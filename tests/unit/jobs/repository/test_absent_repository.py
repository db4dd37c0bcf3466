"""No command takes an empty place for a new repository if this host stored backups that would be missing there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.s3 import bucket
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import NotFound
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.events import SILENT, KeptWarnings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog import archive_run
from zsnapdb.jobs.doctor.instance_checks import describe_stored
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.jobs.repository import adopt, init, protection_status
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.repository.host_backup_record import StoredKind


@pytest.fixture(params=["folder", "bucket"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "store").mkdir()
    made = Site(tmp_path / "store")
    monkeypatch.setitem(THIS_HOST.__dict__, "records", made.host.records)
    if request.param == "folder":
        yield made
    else:
        with bucket():
            yield replace(made, url="s3://backups/some/prefix")


def empty(site: Site) -> Site:
    """Remove all objects, as if the file system were not mounted."""
    store, prefix = site.host.open_store(site.instance().repository, None)
    store.delete_many([item.key for item in store.list(prefix)])
    return site


def move(site: Site) -> Site:
    """Return the site with a mistake in its address, where the user made a folder."""
    if not site.url:
        (site.folder / "typo").mkdir(exist_ok=True)
    return replace(site, url=f"{site.url or f'file://{site.folder}'}/typo")


def init_of(instance: Instance) -> object:
    return init.init(
        parse(f'[instance.main]\nsocket = "/x"\nrepository = "here"\n{_repository(instance)}', "t"), "here"
    )


def _repository(instance: Instance) -> str:
    return f'[repository.here]\nurl = "{instance.repository.url}"\nregion = "us-east-1"\n'


def second_instance(instance: Instance) -> object:
    """Open the repository for the first backup of another instance of this host."""
    return replace(instance, name="second").open_or_create_repository()


WRITERS: dict[str, Callable[[Instance], object]] = {
    "backup": Instance.open_or_create_repository,
    "archive": archive_run.open_archive,
    "init": init_of,
}


@pytest.mark.parametrize("lose", [empty, move])
@pytest.mark.parametrize("writer", [*WRITERS.values(), second_instance], ids=[*WRITERS, "second"])
def test_empty_place_of_known_backups_is_refused(
    site: Site, lose: Callable[[Site], Site], writer: Callable[[Instance], object]
) -> None:
    newest = site.fill([None, 0])[-1]
    lost = lose(site)
    if lose is move:
        # A new address is a decision of the user, for example a new bucket.
        writer(lost.instance())
        return
    with pytest.raises(NotFound) as caught:
        writer(lost.instance())
    assert f"this host stored 2 backups of main there, the newest {newest}" in caught.value.message
    assert "correct `url` in [repository.here]" in str(caught.value.hint)
    assert "`zsnapdb init here --new`" in str(caught.value.hint)
    assert lost.objects() == []


def test_backups_in_two_records_of_one_place_are_counted_once(site: Site) -> None:
    names = site.fill([None, 0, 1])
    instance = site.instance()
    repository = instance.open_repository()
    stored = HostRecord.of_copy(instance, repository).change_backups
    own = host_backup_record.record_of(instance, repository).backups()
    stored(lambda copied: copied.with_stored(*own.stored[:2]))
    with pytest.raises(NotFound) as caught:
        empty(site).instance().open_or_create_repository()
    assert caught.value.message.endswith(f"this host stored 3 backups of main there, the newest {names[-1]}")


def test_doctor_reports_absent_repository_as_unfit(site: Site) -> None:
    site.fill([None])
    (finding,) = describe_stored(empty(site).instance())
    assert (finding.what, finding.severity) == ("repository", Severity.UNFIT)
    assert "this host stored 1 backup of main" in finding.detail


def test_readers_of_a_new_address_name_the_backups_at_the_other_one(site: Site) -> None:
    site.fill([None])
    before = site.instance().repository.url
    with pytest.raises(NotFound, match=f"this host stored 1 backup of main at {re.escape(before)}"):
        move(site).instance().open_repository()


def test_new_repository_at_a_new_address_begins_with_a_warning(site: Site) -> None:
    (newest,) = site.fill([None])
    before, events = site.instance().repository.url, KeptWarnings(SILENT)
    replace(move(site).instance(), events=events).open_or_create_repository()
    (warning,) = events.warnings
    assert f"without what this host stored: 1 backup of main at {before}, the newest {newest}." in warning
    replace(move(site).instance(), events=events).open_or_create_repository()
    assert len(events.warnings) == 1


def test_first_backup_still_creates_the_repository(site: Site) -> None:
    assert site.instance().open_or_create_repository().id == site.instance().open_repository().id


def test_init_new_creates_it_and_the_loss_stays_reported(site: Site) -> None:
    names = site.fill([None, 0])
    settings = parse(site.text(), "t")
    empty(site)
    assert init.plan(settings, "here", is_new=True).step is init.InitStep.CREATE
    init.init(settings, "here", is_new=True)
    repository = site.instance().open_or_create_repository()
    (other,) = protection_status.status(site.instance()).missing
    assert (other.kind, other.backups) == (StoredKind.OTHER_REPOSITORY, tuple(names))
    assert "`zsnapdb acknowledge-removed main`" in other.hint
    assert adopt.plan_forget(site.instance(), ()).backups == tuple(names)
    assert adopt.forget(site.instance(), ()).backups == tuple(names)
    assert protection_status.status(site.instance()).missing == ()
    assert host_backup_record.check(site.instance(), repository, (), ()).findings == ()


def test_second_repository_is_created_next_to_the_first(site: Site) -> None:
    site.fill([None])
    Path(f"{site.folder}-there").mkdir()
    assert init.init(parse(site.text(), "t"), "there").step is init.InitStep.CREATE
    assert site.instance("there").open_repository().id != site.instance().open_repository().id

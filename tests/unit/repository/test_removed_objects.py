"""A store that keeps versions and refuses a new object in the place of a removed one (If-None-Match)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.support.binlog_archive import ID, INCARNATION, add
from tests.unit.support.stored_backups import Site, store_backup
from zsnapdb.base.errors import ExistsError, NotFound, RepositoryError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.repository import copy
from zsnapdb.jobs.repository import init as init_job
from zsnapdb.repository import backup_marks, layout, marker
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import lease
from zsnapdb.store.base import Body, Store
from zsnapdb.store.layers import Layer

Gone = set[str]


class TakesRemovedForPresent(Layer):
    """Refuses an object that must be new under a key that was removed before, by whatever opening of the store."""

    def __init__(self, inner: Store, gone: Gone) -> None:
        super().__init__(inner)
        self.gone = gone

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        if only_if_absent and key in self.gone:
            raise ExistsError(f"{key} is there")
        super().put(key, body, only_if_absent=only_if_absent, sha256=sha256)

    def delete(self, key: str) -> None:
        self.gone.add(key)
        super().delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        self.gone |= set(keys)
        super().delete_many(keys)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site whose two stores both speak the dialect."""
    for name in ("store", "store-there"):
        (tmp_path / name).mkdir()
    site = Site(tmp_path / "store")
    for name in ("here", "there"):
        gone: Gone = set()
        site.wraps[name] = lambda store, gone=gone: TakesRemovedForPresent(store, gone)  # type: ignore[misc]
    return site


def test_removed_objects_can_be_stored_again(site: Site) -> None:
    names = site.fill([None] * 2)
    repository = site.instance().open_repository()
    manifest = repository.manifest("main", names[0])
    archive = BinlogArchive(repository, "main")
    archive.begin(INCARNATION)
    segment = add(archive, 0, b"x" * 100, number=1)
    bodies = {item.key: repository._store.get(item.key) for item in repository._store.list("")}
    repository._store.delete_many(list(bodies))
    repository = Repository.open_or_create(*site.instance().open_store(), "fedcba9876543210", site.instance().keyring())
    assert repository.id != manifest.repository_id
    store_backup(repository, names[0], 0, None)
    archive = BinlogArchive(repository, "main")
    archive.begin(INCARNATION)
    add(archive, 0, b"x" * 100, number=1)
    for key in (archive.incarnation_key(ID), archive.segment_key(ID, segment), layout.manifest("main", names[0])):
        assert repository.exists(key)
        with pytest.raises(ExistsError):
            repository.put_alone(key, b"something else")


def test_copies_of_removed_backups_and_pins_are_made_again(site: Site) -> None:
    name = site.fill([None])[0]
    here = site.instance().open_repository()
    backup_marks.pin(here, "main", name, "the audit")
    copy.copy(site.instance(), site.instance("there"))
    there = site.instance("there").open_repository()
    backup_marks.unpin(there, "main", name)
    assert backup_marks.copy_pin(here, there, "main", name)
    assert backup_marks.pins(there, "main").keys() == {name}
    there.delete_many([layout.manifest("main", name), *there.sizes(layout.chunks_of_backup("main", name))])
    assert copy.copy(site.instance(), site.instance("there")).copied == (name,)
    assert there.backup_ids("main") == [name]


def test_proof_of_replacements_holds_twice(site: Site) -> None:
    objects = site.instance().open_or_create_repository()
    for _ in range(2):
        marker.prove_replacements(objects)


@pytest.mark.parametrize("speaks", [True, False])
def test_init_names_the_dialect(site: Site, monkeypatch: pytest.MonkeyPatch, speaks: bool) -> None:
    monkeypatch.setattr(init_job, "open_store", lambda settings: site.host.open_store(settings, None))
    if not speaks:
        site.wraps.clear()
    note = init_job.init(parse(site.text(), "test"), "here").store_note
    assert ("refuses a new object in the place of a removed one" in note) is speaks
    assert not site.instance().open_repository().exists(layout.PROBE)


def test_removed_lease_is_never_taken_without_a_condition(site: Site) -> None:
    repository: Repository = site.instance().open_or_create_repository()

    def take() -> None:
        with lease(repository, "main/writer", doing="testing", tell=lambda line: None, sleep=lambda seconds: None):
            pass

    take()
    repository.delete(layout.lease("main/writer"))
    with pytest.raises(RepositoryError, match="missing when it is read"):
        take()
    with pytest.raises(NotFound):
        repository.get(layout.lease("main/writer"))

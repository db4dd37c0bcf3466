"""Summaries are read once and then known; what there is, the store says every time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.manifests import manifest, of_kind
from zsnapdb.base.errors import DamagedError, NotFound, RepositoryError
from zsnapdb.repository import layout
from zsnapdb.repository.catalogue import Cache, Summary, summaries
from zsnapdb.repository.manifest import OtherSourcePart, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import StoredObject
from zsnapdb.store.local import LocalStore

FIRST, SECOND = "20261120T101112Z-7f3a", "20261121T101112Z-7f3a"


class CountingStore(LocalStore):
    """Counts what is fetched, and can hide or refuse an object."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fetched: list[str] = []
        self.hidden: set[str] = set()
        self.refused: set[str] = set()
        self.unlisted: set[str] = set()

    def get(self, key: str) -> bytes:
        self.fetched.append(key)
        if key in self.hidden:
            raise NotFound(key)
        if key in self.refused:
            raise RepositoryError(f"reading {key}: denied")
        return super().get(key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return (item for item in super().list(prefix) if item.key not in self.unlisted)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    (tmp_path / "store").mkdir()
    return CountingStore(tmp_path / "store")


@pytest.fixture
def repository(store: CountingStore) -> Repository:
    new_repository = Repository.open_or_create(store, "", "id-1")
    for backup_id in (FIRST, SECOND):
        new_repository.commit(manifest(backup_id))
    store.fetched.clear()
    return new_repository


@pytest.fixture
def cache(tmp_path: Path, repository: Repository) -> Cache:
    return Cache.of(tmp_path / "cache", repository, "main")


def ids(repository: Repository, cache: Cache | None) -> list[str]:
    return [backup.backup_id for backup in summaries(repository, "main", cache).backups]


def test_a_summary_says_what_its_manifest_says(repository: Repository) -> None:
    summary, stored = summaries(repository, "main", None).backups[0], manifest(FIRST)
    assert (summary.backup_id, summary.is_full, summary.plain_size, summary.stored_size) == (
        stored.backup_id,
        stored.is_full,
        stored.plain_size,
        stored.stored_size,
    )
    assert (server_source(summary).position, server_source(summary).lock, summary.created) == (
        server_source(stored).position,
        server_source(stored).lock,
        stored.created,
    )
    assert [(v.role, v.guid, v.from_guid, v.chunk_count) for v in summary.volumes] == [
        (v.role, v.guid, v.from_guid, 1) for v in stored.volumes
    ]


def test_a_summary_of_a_backup_of_another_kind_says_its_kind(repository: Repository, cache: Cache) -> None:
    repository.commit(of_kind("disk", "20261122T101112Z-7f3a"))
    for _ in range(2):
        newest = summaries(repository, "main", cache).backups[-1]
        assert (newest.source, newest.plain_size) == (OtherSourcePart(kind="disk"), 10)


def test_a_manifest_is_fetched_once(repository: Repository, store: CountingStore, cache: Cache) -> None:
    first = summaries(repository, "main", cache)
    store.fetched.clear()
    assert summaries(repository, "main", cache) == first
    assert store.fetched == []
    repository.commit(manifest("20261122T101112Z-7f3a"))
    store.fetched.clear()
    assert len(ids(repository, cache)) == 3
    assert store.fetched == [layout.manifest("main", "20261122T101112Z-7f3a")]


def test_what_was_removed_is_gone_whatever_the_cache_knows(
    repository: Repository, store: CountingStore, cache: Cache
) -> None:
    ids(repository, cache)
    store.delete(layout.manifest("main", FIRST))
    assert ids(repository, cache) == [SECOND]
    assert ids(repository, cache) == [SECOND]


def test_a_manifest_that_was_cut_since_is_damaged_whatever_the_cache_knows(
    repository: Repository, store: CountingStore, cache: Cache
) -> None:
    ids(repository, cache)
    key = layout.manifest("main", FIRST)
    store.put(key, store.get(key)[:-9])
    listed = summaries(repository, "main", cache)
    assert ([b.backup_id for b in listed.backups], list(listed.unreadable)) == ([SECOND], [FIRST])


def test_a_manifest_replaced_by_one_of_the_same_size_is_read_again(
    repository: Repository, store: CountingStore, cache: Cache
) -> None:
    before = summaries(repository, "main", cache)
    key = layout.manifest("main", FIRST)
    body = store.get(key)
    store.put(key, body.replace(b'"created":"2026-11-20T', b'"created":"2026-11-21T'))
    assert len(store.get(key)) == len(body)
    store.fetched.clear()
    assert summaries(repository, "main", cache) != before
    assert store.fetched == [key]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 0, "signers": [], "entries": {}}', b'{"version": 1}'])
def test_a_cache_that_is_not_one_is_made_anew(repository: Repository, cache: Cache, content: bytes) -> None:
    cache.file.parent.mkdir(parents=True)
    cache.file.write_bytes(content)
    assert ids(repository, cache) == [FIRST, SECOND]
    assert set(cache.read()) == {FIRST, SECOND}


def test_a_cache_with_a_flipped_bit_is_made_anew(repository: Repository, store: CountingStore, cache: Cache) -> None:
    good = summaries(repository, "main", cache)
    written = cache.file.read_bytes()
    cache.file.write_bytes(written.replace(b"binlog.0", b"binlog.1"))
    store.fetched.clear()
    assert summaries(repository, "main", cache) == good
    assert len(store.fetched) == 2
    assert cache.file.read_bytes() == written


def test_a_cache_that_cannot_be_written_is_done_without(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ids(repository, Cache.of(tmp_path / "file", repository, "main")) == [FIRST, SECOND]


def test_a_cache_read_under_other_signers_is_not_believed(
    repository: Repository, store: CountingStore, cache: Cache
) -> None:
    ids(repository, cache)
    store.fetched.clear()
    ids(repository, Cache(cache.file, ("another",)))
    assert len(store.fetched) == 2


def test_a_manifest_removed_between_listing_and_reading_is_no_backup(
    repository: Repository, store: CountingStore
) -> None:
    key = layout.manifest("main", FIRST)
    listed = store.list

    def list_then_hide(prefix: str) -> Iterator[StoredObject]:
        items = list(listed(prefix))
        store.hidden.add(key)
        store.unlisted.add(key)
        return iter(items)

    store.list = list_then_hide  # type: ignore[method-assign]
    backups = summaries(repository, "main", None)
    assert ([b.backup_id for b in backups.backups], backups.unreadable) == ([SECOND], {})


def test_a_manifest_that_stays_listed_but_is_not_there_is_damaged_not_absent(
    repository: Repository, store: CountingStore
) -> None:
    store.hidden.add(layout.manifest("main", FIRST))
    assert isinstance(summaries(repository, "main", None).unreadable[FIRST], DamagedError)


def test_a_manifest_that_may_not_be_read_is_an_error_not_an_absence(
    repository: Repository, store: CountingStore
) -> None:
    store.refused.add(layout.manifest("main", FIRST))
    with pytest.raises(RepositoryError, match="denied"):
        summaries(repository, "main", None)


def test_the_cache_holds_no_variables_of_the_server(repository: Repository, cache: Cache) -> None:
    ids(repository, cache)
    assert b"datadir" not in cache.file.read_bytes()
    assert server_source(Summary.of(manifest(), "0" * 64)).server.variables == {}

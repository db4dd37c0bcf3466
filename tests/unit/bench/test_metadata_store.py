"""The store of the large benchmark lists what a folder with the same objects lists, and counts its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import large_server, metadata_store
from tests.bench.metadata_store import MetadataStore
from tests.unit.support.manifests import stored_manifests
from zsnapdb.base.errors import NotFound
from zsnapdb.repository.repository import Repository
from zsnapdb.store.local import LocalStore


@pytest.fixture
def stores(tmp_path: Path) -> tuple[MetadataStore, LocalStore]:
    """Return such a store and a folder with the same objects: two documents, and chunks of two volumes."""
    writer, folder = metadata_store.writer(tmp_path / "model"), LocalStore(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    for key in ("main/manifests/a.json", "main/manifests/b.json"):
        writer.add_document(key, b"{}")
        folder.put(key, b"{}")
    for volume, count in (("main/chunks/a/data/", 11), ("main/chunks/a/parent/", 1)):
        writer.add_chunks(volume, count, 3)
        for number in range(1, count + 1):
            folder.put(f"{volume}{number:08d}", b"abc")
    writer.finish()
    return MetadataStore(tmp_path / "model"), folder


@pytest.mark.parametrize(
    "prefix",
    ["", "main/", "main/chunks/", "main/chunks/a/data/", "main/chunks/a/data/00000007", "main/manifests/b", "x/"],
)
def test_metadata_store_lists_as_a_folder(stores: tuple[MetadataStore, LocalStore], prefix: str) -> None:
    """Every prefix has the same keys and sizes in both, also one inside the keys of a volume."""
    model, folder = ([(one.key, one.size) for one in store.list(prefix)] for store in stores)
    assert model == folder
    if prefix.endswith("/"):
        assert list(stores[0].folders(prefix)) == list(stores[1].folders(prefix))


def test_metadata_store_counts_pages_and_misses(tmp_path: Path) -> None:
    """A listing is a request for each thousand keys; an object that is missing was asked for too."""
    writer = metadata_store.writer(tmp_path / "model")
    writer.add_chunks("main/chunks/a/data/", 1001, 3)
    writer.finish()
    model = MetadataStore(tmp_path / "model")
    assert len(list(model.list("main/chunks/a/data/"))) == 1001
    assert model.requests == {"LIST": 2}
    with pytest.raises(NotFound):
        model.get("main/manifests/c.json")
    assert model.requests == {"LIST": 2, "GET": 1}


def test_large_server_repository_is_readable(tmp_path: Path) -> None:
    """Backups and binlogs of the smallest server are read without damage, with the sizes that the model says."""
    server = large_server.sizes(days=1)["10GB"]
    writer = metadata_store.writer(tmp_path / "model")
    large_server.write(server, writer)
    repository = Repository.open(MetadataStore(tmp_path / "model"), "")
    known = stored_manifests(repository)
    assert len(known) == server.backups
    assert known[0].volumes[0].plain_size == pytest.approx(server.size, rel=0.01)

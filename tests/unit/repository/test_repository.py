"""A backup exists when its manifest does; a manifest is written once and proved."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.support.faulty_store import Fault, FaultyStore
from tests.unit.support.manifests import manifest, of_kind
from tests.unit.support.s3 import bucket, s3, s3_that_ignores
from zsnapdb.base.errors import (
    ChangedError,
    ConsistencyError,
    DamagedError,
    ExistsError,
    NotFound,
    PreflightError,
    UnreachableError,
)
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import server_source
from zsnapdb.repository.marker import Marker, prove_conditional_writes
from zsnapdb.repository.objects import Part, RepositoryObjects
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Body
from zsnapdb.store.layers import RetryingStore
from zsnapdb.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def repository(store: LocalStore) -> Repository:
    return Repository.open_or_create(store, "", "id-1")


def test_a_committed_manifest_reads_back_the_same(repository: Repository) -> None:
    repository.commit(manifest())
    assert repository.manifest("main", "20261120T101112Z-7f3a") == manifest()
    assert repository.backup_ids("main") == ["20261120T101112Z-7f3a"]


def test_a_manifest_is_never_written_over_another(repository: Repository) -> None:
    repository.commit(manifest())
    other = manifest().model_copy(update={"createtxg": 3})
    with pytest.raises(ConsistencyError, match="read back different"):
        repository.commit(other)
    assert repository.manifest("main", "20261120T101112Z-7f3a") == manifest()


def test_a_commit_whose_answer_was_lost_can_be_repeated(repository: Repository) -> None:
    repository.commit(manifest())
    repository.commit(manifest())
    assert repository.backup_ids("main") == ["20261120T101112Z-7f3a"]


def test_chunks_without_a_manifest_are_no_backup(repository: Repository) -> None:
    repository.chunks("main", "20261120T101112Z-7f3a", "data").put_chunk(1, b"x", "")
    assert repository.backup_ids("main") == []
    with pytest.raises(NotFound, match="has no backup"):
        repository.manifest("main", "20261120T101112Z-7f3a")


def test_instances_with_alike_names_do_not_see_each_other(repository: Repository) -> None:
    repository.commit(manifest(instance="main2"))
    assert repository.backup_ids("main") == []


def test_foreign_objects_beside_the_manifests_are_passed_over(store: LocalStore, repository: Repository) -> None:
    store.put("main/manifests/README.txt", b"by hand")
    store.put("main/manifests/sub/20261120T101112Z-7f3a.json", b"{}")
    assert repository.backup_ids("main") == []


@pytest.mark.parametrize(
    "change",
    [lambda b: b[:-20], lambda b: b.replace(b'"guid"', b'"gui"'), lambda b: b.replace(b'"format":1', b'"format":2')],
)
def test_an_altered_manifest_is_damage_not_absence(
    store: LocalStore, repository: Repository, change: Callable[[bytes], bytes]
) -> None:
    repository.commit(manifest())
    key = layout.manifest("main", "20261120T101112Z-7f3a")
    store.put(key, change(store.get(key)))
    with pytest.raises(DamagedError, match="manifest main/manifests/20261120T101112Z-7f3a"):
        repository.manifest("main", "20261120T101112Z-7f3a")


def test_a_manifest_under_another_name_is_refused(store: LocalStore, repository: Repository) -> None:
    store.put(layout.manifest("main", "20261120T101113Z-0000"), manifest().encode())
    with pytest.raises(DamagedError, match=r"belongs to backup 20261120T101112Z-7f3a of instance main"):
        repository.manifest("main", "20261120T101113Z-0000")


def test_unknown_fields_of_a_newer_tool_are_passed_over(store: LocalStore, repository: Repository) -> None:
    document = {**json.loads(manifest().encode()), "since_later": 1}
    store.put(layout.manifest("main", "20261120T101112Z-7f3a"), json.dumps(document).encode())
    assert repository.manifest("main", "20261120T101112Z-7f3a") == manifest()


def test_opening_again_keeps_the_identity(store: LocalStore, repository: Repository) -> None:
    assert Repository.open_or_create(store, "", "id-2").id == "id-1"


def test_where_nothing_is_there_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no repository: p/"):
        Repository.open(LocalStore(tmp_path), "p/")


@pytest.mark.parametrize("marker", [b"{}", b"not json", b'{"format": 9, "id": "x"}'])
def test_a_marker_that_is_not_ours_stops_everything(tmp_path: Path, marker: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put(layout.MARKER, marker)
    with pytest.raises(DamagedError):
        Repository.open_or_create(store, "", "id")
    assert store.get(layout.MARKER) == marker


class _Careless(LocalStore):
    """A store that takes conditional writes and does not look at the condition, as some S3 servers do."""

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        super().put(key, body, sha256=sha256)


def test_no_repository_is_made_in_a_store_that_cannot_keep_two_writers_apart(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="If-None-Match"):
        Repository.open_or_create(_Careless(tmp_path), "", "id-1")
    assert list(LocalStore(tmp_path).list("")) == []


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_no_repository_is_made_behind_a_gateway_that_loses_a_condition(header: str) -> None:
    with bucket():
        with pytest.raises(PreflightError, match=f"ignored a conditional write .{header}.") as caught:
            Repository.open_or_create(s3_that_ignores(header), "", "id-1")
        assert "use an S3 server with conditional writes" in caught.value.hint
        assert list(s3().list("")) == []


class _Stubborn(LocalStore):
    """A store that refuses every replacement."""

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        raise ChangedError("no")


def test_no_repository_is_made_in_a_store_in_which_no_lease_could_be_renewed(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"refused to replace the version of init\.lock that it named itself"):
        Repository.open_or_create(_Stubborn(tmp_path), "", "id-1")
    assert list(LocalStore(tmp_path).list("")) == []


def test_a_new_repository_needs_no_right_to_remove_what_its_store_was_tried_with(tmp_path: Path) -> None:
    for new_id in ("id-1", "id-2"):
        store = FaultyStore(LocalStore(tmp_path), {"delete": [Fault.DENIED]})
        assert Repository.open_or_create(store, "", new_id).id == new_id
        assert [item.key for item in store.list("")] == ["init.lock", layout.MARKER]
        store.delete(layout.MARKER)


class _Lossy(LocalStore):
    """A store whose first answer to each writer is lost: to the second request the object is there."""

    answered = False

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self.answered = not self.answered
        if self.answered:
            if not only_if_absent or not list(self.list(key)):
                super().put(key, body, sha256=sha256)
            raise UnreachableError("the answer was lost")
        super().put(key, body, only_if_absent=only_if_absent, sha256=sha256)


def test_a_lost_answer_is_not_taken_for_a_store_that_ignores_conditions(tmp_path: Path) -> None:
    store = RetryingStore(_Lossy(tmp_path), 30.0)
    marker = Marker(id="id-1")
    objects = RepositoryObjects(store, "")
    marker.write(objects)
    prove_conditional_writes(objects)
    assert Marker.read(objects) == marker


def test_the_proof_leaves_the_marker_as_it_was(tmp_path: Path) -> None:
    marker = Marker(id="id-1", recipients=("age1x",))
    objects = RepositoryObjects(LocalStore(tmp_path), "")
    objects.put(layout.MARKER, marker.encode())
    prove_conditional_writes(objects)
    with pytest.raises(PreflightError, match="If-None-Match"):
        prove_conditional_writes(RepositoryObjects(_Careless(tmp_path), ""))
    assert Marker.read(objects) == marker
    with pytest.raises(ExistsError):
        marker.write(objects)


def test_a_backup_of_a_kind_that_is_not_known_reads_back_with_all_it_says(repository: Repository) -> None:
    disk = of_kind("disk", domain="web", grade={"reached": "frozen"})
    repository.commit(disk)
    read = repository.manifest("main", disk.backup_id)
    assert read == disk
    assert json.loads(read.encode())["source"] == {"kind": "disk", "domain": "web", "grade": {"reached": "frozen"}}


def test_who_needs_a_server_is_told_the_kind_that_a_backup_has() -> None:
    with pytest.raises(PreflightError, match="is a backup of kind disk, not of a database server") as refused:
        server_source(of_kind("disk"))
    assert (refused.value.exit_code, bool(refused.value.hint)) == (4, True)
    with pytest.raises(PreflightError, match="is a zvol, not a filesystem"):
        _ = of_kind("disk").volumes[0].filesystem


@pytest.mark.parametrize(
    "source", [{"kind": "server"}, {"kind": "../x"}, {}, [], {"kind": 7}, {"kind": "server", "position": None}]
)
def test_a_source_that_says_too_little_is_damage(store: LocalStore, repository: Repository, source: object) -> None:
    document = {**json.loads(manifest().encode()), "source": source}
    store.put(layout.manifest("main", "20261120T101112Z-7f3a"), json.dumps(document).encode())
    with pytest.raises(DamagedError, match="cannot be read: source"):
        repository.manifest("main", "20261120T101112Z-7f3a")


class _Inner(Part):
    number: int


class _Outer(Part):
    inner: tuple[_Inner, ...]


def test_a_document_that_threads_read_first_is_read_by_all_of_them() -> None:
    gate = threading.Barrier(8)

    def read(number: int) -> int:
        gate.wait(120)
        return _Outer.decode(b'{"inner":[{"number":%d}]}' % number, "it").inner[0].number

    assert not _Outer.__pydantic_complete__
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(8))) == list(range(8))
    assert _Outer.__pydantic_complete__

"""Every store keeps the same promises.

The suite runs on the local folder, on S3 (moto), and through the layers around a store. One of the stores fails at
every first attempt, before or after it did the request: with patience it must keep the same promises.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.support.cloud_servers import in_azurite, in_google, in_library_memory
from tests.unit.support.dialect_server import Dialect, dialect_server, refusal
from tests.unit.support.faulty_store import Fault, FaultyStore
from tests.unit.support.s3 import bucket, fill, s3, s3_that_ignores
from zsnapdb.base.errors import (
    ChangedError,
    ConfigError,
    DamagedError,
    ExistsError,
    NotFound,
    RepositoryError,
    UnreachableError,
)
from zsnapdb.config.repository import STORE_ADDRESSES, RepositorySettings, S3Settings
from zsnapdb.store.base import DeletionPolicy, Store
from zsnapdb.store.layers import STORES, Pauses, RetryingStore, ThrottledStore, open_store
from zsnapdb.store.local import LocalStore, TimedFolder
from zsnapdb.store.s3 import S3Store

if TYPE_CHECKING:
    pass


CALLS = ("check", "put", "get", "read_into", "read_version", "replace", "list", "folders", "delete", "delete_many")


@contextmanager
def in_a_folder(folder: Path) -> Iterator[Store]:
    yield TimedFolder(LocalStore(folder), folder)


@contextmanager
def in_a_bucket(_: Path) -> Iterator[Store]:
    with bucket():
        yield s3()


PLACES: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "file": in_a_folder,
    "s3": in_a_bucket,
    "azure": in_azurite,
    "gs": in_google,
}
"""An empty store of each registered kind. A new kind gets its line here and keeps all promises below."""

LAYERS = ("faulty", "limited", "flaky", "forgetful")


def layered(kind: str, inner: Store) -> Store:
    if kind == "faulty":
        return FaultyStore(inner)
    if kind == "limited":
        return ThrottledStore(inner, 1 << 40)
    fault = Fault.UNREACHED if kind == "flaky" else Fault.ANSWER_LOST
    faulty = FaultyStore(inner, {call: [fault, Fault.FINE] * (2 if call == "list" else 100) for call in CALLS})
    return RetryingStore(faulty, 20, pauses=Pauses(first=0.0001))


@pytest.fixture(params=[*STORES, *LAYERS, "gateway", "dialect", "library"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in LAYERS:
        yield layered(request.param, LocalStore(tmp_path))
        return
    if request.param == "library":
        with in_library_memory(tmp_path) as opened:
            yield opened
        return
    if request.param == "gateway":
        # That in front of which conditions are lost elsewhere: it does nothing else.
        with bucket():
            yield s3_that_ignores("X-Unknown")
        return
    if request.param == "dialect":
        old = Dialect(
            many=lambda keys: refusal(501, "NotImplemented"),
            put=lambda r: refusal(400, "InvalidArgument") if "x-amz-checksum-sha256" in r.headers else None,
            missing_is_an_error=True,
        )
        with dialect_server(tmp_path, old) as served:
            yield served.store()
        return
    with PLACES[request.param](tmp_path) as opened:
        yield opened


def test_every_registered_store_has_addresses_in_the_configuration_and_a_place_in_this_suite() -> None:
    assert set(STORES) == set(PLACES) == {address.partition("://")[0] for address in STORE_ADDRESSES}


def put_empty(store: Store, keys: Sequence[str]) -> None:
    if isinstance(store, S3Store) and store.endpoint is None:
        fill(keys)
        return
    for key in keys:
        store.put(key, b"")


def test_what_was_put_is_what_is_got(store: Store) -> None:
    store.put("a/b/1", b"one")
    store.put("a/b/2", memoryview(b"two"))
    store.put("a/b/empty", b"")
    assert (store.get("a/b/1"), store.get("a/b/2"), store.get("a/b/empty")) == (b"one", b"two", b"")


@pytest.mark.parametrize("key", ["main/writer.lock", f"main/pins/{'x' * 9}.json", "zsnapdb.json"])
def test_an_object_that_is_larger_than_any_of_its_kind_is_not_read(store: Store, key: str) -> None:
    store.put(key, b"x" * ((1 << 20) + 5000))
    with pytest.raises(DamagedError, match="has more than 1048576 bytes"):
        store.get(key)
    assert len(store.read_version(key).body) == (1 << 20) + 1


@pytest.mark.parametrize("room", [0, 2, 3, 10])
def test_an_object_is_read_into_memory_as_far_as_it_fits_and_its_whole_size_is_told(store: Store, room: int) -> None:
    store.put("k", b"one")
    target = bytearray(b"." * room)
    assert store.read_into("k", memoryview(target)) == 3
    assert target == (b"one" + b"." * room)[:room]


def test_a_large_object_is_read_into_memory_whole(store: Store) -> None:
    body = bytes(range(256)) * 10_000
    store.put("k", body)
    target = bytearray(len(body) + 1)
    assert store.read_into("k", memoryview(target)) == len(body)
    assert target == body + b"\0"


@pytest.mark.parametrize("kind", PLACES)
def test_retrieval_is_accepted_by_s3_and_refused_elsewhere(kind: str, tmp_path: Path) -> None:
    with PLACES[kind](tmp_path) as store:
        store.put("k", b"x")
        if kind == "s3":
            store.retrieve("k", "Standard", 1)
            return
        with pytest.raises(RepositoryError, match="only in S3 buckets") as refused:
            store.retrieve("k", "Standard", 1)
        assert refused.value.hint


def test_a_later_put_replaces_an_earlier_one(store: Store) -> None:
    store.put("k", b"old")
    store.put("k", b"new")
    assert store.get("k") == b"new"


def test_a_conditional_put_never_replaces(store: Store) -> None:
    store.put("k", b"first", only_if_absent=True)
    with pytest.raises(ExistsError):
        store.put("k", b"second", only_if_absent=True)
    assert store.get("k") == b"first"


def test_of_many_conditional_puts_exactly_one_wins(tmp_path: Path) -> None:
    store, won = LocalStore(tmp_path), []

    def attempt(number: int) -> None:
        try:
            store.put("k", str(number).encode(), only_if_absent=True)
            won.append(number)
        except ExistsError:
            pass

    threads = [threading.Thread(target=attempt, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(n).encode() for n in won] == [store.get("k")]


def test_of_many_replacements_of_one_version_exactly_one_is_done(tmp_path: Path) -> None:
    store, won = LocalStore(tmp_path), []
    store.put("k", b"lease")
    tag = store.read_version("k").tag

    def attempt(number: int) -> None:
        try:
            store.replace("k", str(number).encode(), tag=tag)
            won.append(number)
        except ChangedError:
            pass

    threads = [threading.Thread(target=attempt, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(n).encode() for n in won] == [store.get("k")]


def test_only_the_version_that_was_read_is_replaced(store: Store) -> None:
    store.put("lock", b"mine")
    read = store.read_version("lock")
    assert read.body == b"mine"
    store.replace("lock", b"mine, longer", tag=read.tag)
    with pytest.raises(ChangedError, match="lock"):
        store.replace("lock", b"too late", tag=read.tag)
    assert store.get("lock") == b"mine, longer"
    store.delete("lock")
    with pytest.raises(ChangedError):
        store.replace("lock", b"gone", tag=read.tag)
    with pytest.raises(NotFound):
        store.read_version("lock")
    assert list(store.list("")) == []


def test_what_is_not_there_is_said_to_be_so(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get("none")
    with pytest.raises(NotFound):
        store.read_into("none", memoryview(bytearray(1)))


def test_a_listing_is_sorted_and_exact_to_the_prefix(store: Store) -> None:
    for key in ("a/2", "a/10", "ab/1", "a/1"):
        store.put(key, key.encode())
    assert [(o.key, o.size) for o in store.list("a/")] == [("a/1", 3), ("a/10", 4), ("a/2", 3)]
    assert [o.key for o in store.list("nothing/")] == []


def test_a_listing_has_more_than_one_page(store: Store) -> None:
    # A page of S3 has a thousand.
    many = 1005 if isinstance(store, S3Store) else 25
    put_empty(store, [f"p/{number:04d}" for number in range(many)])
    assert len(list(store.list("p/"))) == many


def test_removing_can_be_repeated(store: Store) -> None:
    store.put("x/1", b"1")
    store.delete("x/1")
    store.delete("x/1")
    assert list(store.list("x/")) == []


def test_many_objects_are_removed_at_once_and_what_is_missing_counts_as_removed(store: Store) -> None:
    keys = [f"many/{number:04d}" for number in range(1003 if isinstance(store, S3Store) else 25)]
    put_empty(store, keys)
    store.put("many-not/1", b"")
    store.delete_many([*keys, "many/none"])
    store.delete_many([])
    assert [o.key for o in store.list("many")] == ["many-not/1"]


def test_a_listing_of_one_key_has_its_object_and_not_those_beside_it(store: Store) -> None:
    for key in ("w/writer.lock", "w/writer.lock-2/a", "w/writer.loc/b", "w/b"):
        store.put(key, b"")
    assert [item.key for item in store.list("w/writer.lock")] == ["w/writer.lock", "w/writer.lock-2/a"]


def test_folders_are_the_names_up_to_the_next_slash(store: Store) -> None:
    for key in ("p/b/1", "p/a/1", "p/a/2", "p/a/deep/3", "p/file", "pa/c/1"):
        store.put(key, b"")
    assert list(store.folders("p/")) == ["a", "b"]
    assert list(store.folders("nothing/")) == []


def test_a_listing_tells_when_an_object_was_written(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    store.put("when/1", b"")
    (listed,) = store.list("when/")
    assert listed.modified is not None
    assert before <= listed.modified <= datetime.now(UTC) + timedelta(seconds=2)


def test_nothing_is_held_where_nobody_locked_it(store: Store) -> None:
    store.put("k", b"")
    assert (store.hold("k"), store.hold("none")) == (None, None)
    is_cloud = type(store).__name__ == "CloudStore"
    assert store.afterlife() == DeletionPolicy(keeps_versions=None if is_cloud else False)


def test_check_passes_on_a_store_that_is_there(store: Store) -> None:
    store.check()


def test_a_missing_folder_is_not_an_empty_repository(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "unmounted")
    for ask in (
        store.check,
        lambda: store.get("k"),
        lambda: list(store.list("")),
        lambda: store.put("k", b""),
        lambda: store.delete("k"),
    ):
        with pytest.raises(NotFound, match="does not exist"):
            ask()
    assert not (tmp_path / "unmounted").exists()


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RepositoryError, match="No space left"):
        LocalStore(tmp_path).put("a/k", b"data")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.fixture
def aws() -> Iterator[None]:
    with bucket():
        yield


@pytest.mark.usefixtures("aws")
def test_a_missing_bucket_is_named_with_a_hint() -> None:
    with pytest.raises(NotFound, match="NoSuchBucket") as caught:
        s3("nowhere").check()
    assert "create the bucket nowhere" in caught.value.hint


def test_an_endpoint_nobody_listens_on_is_not_an_empty_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = S3Store(
        "b", endpoint="http://127.0.0.1:9", region="us-east-1", credentials_file=None, addressing="path", connections=1
    )
    with pytest.raises(UnreachableError):
        store.check()


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RepositoryError, match="no credentials"):
        s3().check()


def test_a_credentials_file_of_another_form_is_refused_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = AKIA\nsecret = hunter2\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        s3(credentials=file)
    assert "hunter2" not in str(caught.value)


def test_addresses_choose_the_store_and_its_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, _ = open_store(RepositorySettings(url=f"file://{tmp_path}", patience="10m"))
    assert isinstance(local, RetryingStore)
    assert (type(local.inner), local.patience) == (TimedFolder, 600)
    store, prefix = open_store(
        RepositorySettings(url="s3://bucket/some/prefix/", s3=S3Settings(region="us-east-1"), bandwidth="5MiB")
    )
    assert isinstance(store, RetryingStore)
    assert isinstance(store.inner, ThrottledStore)
    assert isinstance(store.inner.inner, S3Store)
    assert (store.inner.inner.bucket, prefix, store.inner.rate) == ("bucket", "some/prefix/", 5 << 20)
    assert open_store(RepositorySettings(url="s3://bucket", s3=S3Settings(region="us-east-1")))[1] == ""


@pytest.mark.parametrize("place", ["main", "main/manifests", "main/manifests/a.json"])
def test_a_link_in_the_folder_of_a_repository_leads_nowhere(tmp_path: Path, place: str) -> None:
    """The owner of a disk or an export can make one to any place of the host."""
    folder, victim = tmp_path / "repository", tmp_path / "victim"
    for top in (folder, victim):
        (top / "main/manifests").mkdir(parents=True)
        (top / "main/manifests/a.json").write_bytes(b"here" if top == folder else b"secret")
    real = folder / place
    real.rename(tmp_path / "aside")
    real.symlink_to(victim / place)
    store, key = LocalStore(folder), "main/manifests/a.json"
    for attempt in (
        lambda: store.get(key),
        lambda: store.read_into(key, memoryview(bytearray(9))),
        lambda: store.read_version(key),
        lambda: store.replace(key, b"new", tag=hashlib.sha256(b"secret").hexdigest()),
        lambda: store.put("main/manifests/b.json", b"x"),
        lambda: store.delete("main/manifests/b.json"),
        lambda: store.delete(key),
    ):
        with contextlib.suppress(RepositoryError):
            assert attempt() is None
    assert [file.read_bytes() for file in victim.rglob("*.json")] == [b"secret"]


def test_a_link_to_the_folder_of_a_repository_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = LocalStore(tmp_path / "link")
    store.put("a/b", b"x")
    assert store.get("a/b") == b"x"
    assert [item.key for item in store.list("a/")] == ["a/b"]

"""Credentials, limits and errors of stores in Azure and Google."""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import pytest

from tests.unit.support.cloud_emulators import ACCOUNT
from tests.unit.support.cloud_servers import azurite_settings, google_server, need_obstore
from zsnapdb.base.errors import (
    ArchivedError,
    ConfigError,
    NotFound,
    RepositoryError,
    UnreachableError,
    ZsnapdbError,
)
from zsnapdb.config.repository import AzureSettings, GoogleSettings, RepositorySettings
from zsnapdb.store import layers
from zsnapdb.store.base import Store
from zsnapdb.store.layers import Pauses, RetryingStore, open_store


@pytest.fixture(autouse=True)
def _library() -> None:
    need_obstore()


def opened(settings: RepositorySettings) -> Store:
    """Return the store without repetitions."""
    store, _ = open_store(settings)
    assert isinstance(store, RetryingStore)
    return store.inner


def azure(folder: Path, text: str, endpoint: str = "http://127.0.0.1:9/x") -> RepositorySettings:
    file = folder / "credentials"
    file.write_text(text)
    file.chmod(0o600)
    return RepositorySettings(
        url="azure://account/container", azure=AzureSettings(endpoint=endpoint, credentials_file=file)
    )


KEY = "AZURE_STORAGE_ACCOUNT_KEY=aHVudGVyMg==\n"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f"# a comment\n\n{KEY.replace('=a', ' = a')}",
        "AZURE_STORAGE_SAS_TOKEN=sv=2024&sig=hunter2\n",
        'AZURE_TENANT_ID=t\nAZURE_CLIENT_ID=c\nAZURE_CLIENT_SECRET="hunter2"\n',
    ],
)
def test_credentials_of_azure_are_used(tmp_path: Path, text: str) -> None:
    opened(azure(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2\n",
        "AZURE_STORAGE_ACCOUNT_KEY=\n",
        "AZURE_STORAGE_ACCOUNT_KEY=not base64: hunter2\n",
        f"{KEY}AZURE_STORAGE_SAS_TOKEN=sig=hunter2\n",
        f"{KEY}SECRET=hunter2\n",
        "AZURE_CLIENT_ID=c\nAZURE_CLIENT_SECRET=hunter2\n",
    ],
)
def test_other_credentials_of_azure_are_refused_unshown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(azure(tmp_path, text))
    assert "hunter2" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "hunter2", "[]", '{"type": "authorized_user", "client_secret": "hunter2"}'])
def test_other_credentials_of_google_are_refused_unshown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="no key of a service account") as caught:
        opened(RepositorySettings(url="gs://bucket", gs=GoogleSettings(credentials_file=file)))
    assert "hunter2" not in str(caught.value)


def test_credentials_that_others_can_read_are_refused(tmp_path: Path) -> None:
    settings = azure(tmp_path, KEY)
    (tmp_path / "credentials").chmod(0o644)
    with pytest.raises(ConfigError, match="credentials_file"):
        opened(settings)


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> object:
        raise ImportError(name="obstore")

    settings = azure(tmp_path, KEY)
    monkeypatch.setattr(layers, "import_module", missing)
    with pytest.raises(ConfigError, match="the library obstore is missing") as caught:
        open_store(settings)
    assert "obstore" in caught.value.hint


def test_address_of_azure_has_account_and_container(tmp_path: Path) -> None:
    settings = azure(tmp_path, KEY).model_copy(update={"url": "azure://account/container/a/b"})
    store, prefix = open_store(settings)
    assert prefix == "a/b/"
    assert isinstance(store, RetryingStore)
    with pytest.raises(UnreachableError, match=r"in azure://account/container at http://127\.0\.0\.1:9/x: HTTP error"):
        store.inner.get("k")


def test_signature_in_a_query_is_not_shown(tmp_path: Path) -> None:
    store = opened(azure(tmp_path, "AZURE_STORAGE_SAS_TOKEN=sv=2024&sig=hunter2\n"))
    for call in ("put", "get", "list", "delete"):
        with pytest.raises(UnreachableError) as caught:
            ask(store, call)
        assert "hunter2" not in f"{caught.value} {caught.value.__context__}"


REFUSALS: dict[tuple[int, str], type[ZsnapdbError]] = {
    (401, "AuthenticationRequired"): RepositoryError,
    (403, "AccessDenied"): RepositoryError,
    (404, "NoSuchBucket"): NotFound,
    (408, "RequestTimeout"): UnreachableError,
    (409, "OperationAborted"): UnreachableError,
    (409, "BlobImmutableDueToPolicy"): RepositoryError,
    (409, "BlobArchived"): ArchivedError,
    (409, "BlobBeingRehydrated"): ArchivedError,
    (429, "SlowDown"): UnreachableError,
    (500, "InternalError"): UnreachableError,
    (503, "ServerBusy"): UnreachableError,
    (400, "InvalidArgument"): RepositoryError,
}


@pytest.mark.parametrize(("status", "code"), REFUSALS)
@pytest.mark.parametrize("call", ["put", "create", "replace", "get", "list", "delete", "folders", "check"])
def test_refusal_of_a_provider_has_one_meaning(call: str, status: int, code: str, tmp_path: Path) -> None:
    with google_server(tmp_path) as (served, settings):
        store = opened(settings)
        served.refuse = lambda request: (status, code)
        with pytest.raises(ZsnapdbError) as caught:
            ask(store, call)
        assert type(caught.value) is REFUSALS[status, code]
        assert code in caught.value.message
        assert caught.value.hint
        assert "Debug source" not in caught.value.message
        assert len(served.requests) == (2 if status == 401 else 1)
        assert (str(tmp_path / "service-account.json") in caught.value.hint) is (status in (401, 403))


def ask(store: Store, call: str) -> None:
    calls = {
        "put": lambda: store.put("k", b"x"),
        "create": lambda: store.put("k", b"x", only_if_absent=True),
        "replace": lambda: store.replace("k", b"x", tag="1f"),
        "get": lambda: store.get("k"),
        "list": lambda: list(store.list("a/")),
        "delete": lambda: store.delete("k"),
        "folders": lambda: list(store.folders("a/")),
        "check": store.check,
    }
    calls[call]()


def test_busy_provider_is_asked_again(tmp_path: Path) -> None:
    with google_server(tmp_path) as (served, settings):
        store = RetryingStore(opened(settings), 20, pauses=Pauses(first=0.0001))
        served.refuse = lambda request: (503, "ServerBusy") if len(served.requests) % 3 else None
        store.put("k", b"body", only_if_absent=True)
        assert store.get("k") == b"body"


def test_replacement_without_a_version_is_refused(tmp_path: Path) -> None:
    with google_server(tmp_path) as (served, settings), pytest.raises(RepositoryError, match="named no version"):
        opened(settings).replace("k", b"", tag="")
    assert not served.requests


ODD_KEYS = ["a/b//c", "a/./b", "a/../b", "a/line\nbreak", "a/tab\t"]


@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize("call", ["list", "folders"])
def test_key_that_the_library_cannot_list_is_named(call: str, key: str, tmp_path: Path) -> None:
    with google_server(tmp_path) as (served, settings):
        store = opened(settings)
        served.objects[key] = (1, b"x", datetime.now(UTC))
        if call == "folders" and key == "a/b//c":
            assert list(store.folders("a/")) == ["b"]
            return
        with pytest.raises(RepositoryError, match="cannot list the object") as caught:
            ask(store, call)
        assert repr(key)[1:5] in caught.value.message
        assert "\n" not in caught.value.message
        assert "remove this object" in caught.value.hint


def test_missing_container_is_named_with_a_hint(tmp_path: Path) -> None:
    settings = azurite_settings(tmp_path).model_copy(update={"url": f"azure://{ACCOUNT}/nowhere"})
    store = opened(settings)
    for call in ("put", "create", "replace", "get", "list", "delete", "folders", "check"):
        with pytest.raises(NotFound) as caught:
            ask(store, call)
        assert f"create azure://{ACCOUNT}/nowhere" in caught.value.hint


def test_renewed_credentials_are_read_once_after_a_refusal(tmp_path: Path) -> None:
    settings = azurite_settings(tmp_path)
    file = settings.azure.credentials_file
    assert file is not None
    right = file.read_text()
    file.write_text(KEY)
    store = opened(settings)
    with pytest.raises(RepositoryError, match="AuthorizationFailure") as caught:
        store.put("k", b"x")
    assert "credentials" in caught.value.hint
    file.write_text(right)
    store.put("k", b"x")
    assert store.get("k") == b"x"


@pytest.mark.parametrize("call", ["put", "create", "replace", "get", "list", "delete", "folders", "check"])
def test_refused_token_is_replaced_with_the_same_key(call: str, tmp_path: Path) -> None:
    with google_server(tmp_path) as (served, settings):
        store = RetryingStore(opened(settings), 20, pauses=Pauses(first=0.0001))
        store.put("k", b"old")
        tag, before = store.read_version("k").tag, len(served.requests)
        if call == "create":
            store.delete("k")
        served.refuse = lambda _: (
            (401, "ExpiredToken") if len(served.requests) == before + 1 + (call == "create") else None
        )
        if call == "replace":
            store.replace("k", b"new", tag=tag)
        else:
            ask(store, call)


def test_new_client_is_created_once_for_a_refused_token(tmp_path: Path) -> None:
    settings = azure(tmp_path, KEY)
    client = importlib.import_module("zsnapdb.store.cloud_clients").connect(settings)
    first = client.raw
    assert not client.renew(first, is_expired=False)
    assert client.renew(first, is_expired=True)
    assert client.raw is not first
    second = client.raw
    assert client.renew(first, is_expired=True)
    assert client.raw is second


@pytest.mark.parametrize("denied_at", [1, 2, 3, 4])
def test_listing_is_whole_if_credentials_are_renewed(
    denied_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("zsnapdb.store.cloud"), "_PAGE", 10)
    with google_server(tmp_path) as (served, settings):
        assert settings.gs is not None
        file = settings.gs.credentials_file
        assert file is not None
        store = RetryingStore(opened(settings), 20, pauses=Pauses(first=0.0001))
        keys = [f"a/{number:02}" for number in range(35)]
        for key in keys:
            store.put(key, b"x")
        served.requests.clear()

        def expire_once(_: object) -> tuple[int, str] | None:
            if len(served.requests) != denied_at:
                return None
            fields = json.loads(file.read_text())
            file.write_text(json.dumps({**fields, "private_key_id": "renewed"}))
            return 403, "ExpiredToken"

        served.refuse = expire_once
        assert [item.key for item in store.list("a/")] == keys


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x"


def test_silent_provider_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = importlib.import_module("zsnapdb.store.cloud")
    monkeypatch.setattr(cloud, "REQUEST_SECONDS", 0.2)
    with silent_server() as endpoint:
        store = opened(azure(tmp_path, KEY, endpoint))
        for call in ("put", "replace", "get"):
            with pytest.raises(UnreachableError, match="takes too long"):
                ask(store, call)


def test_dripping_object_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = importlib.import_module("zsnapdb.store.cloud")
    monkeypatch.setattr(cloud, "_BLOCK", 4096)
    monkeypatch.setattr(cloud, "LEAST_RATE", 40960)
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.recv(65536)
            when = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
            head = f'HTTP/1.1 200 OK\r\nETag: "1"\r\nLast-Modified: {when}\r\nContent-Length: 9999\r\n\r\n'
            connection.sendall(head.encode())
            with contextlib.suppress(OSError):
                while not over.wait(0.02):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        store = opened(azure(tmp_path, KEY, f"http://127.0.0.1:{server.getsockname()[1]}/x"))
        with pytest.raises(UnreachableError, match="takes too long"):
            store.get("k")
        over.set()
        thread.join()


def test_signal_interrupts_a_request(tmp_path: Path) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with silent_server() as endpoint:
            store, began = opened(azure(tmp_path, KEY, endpoint)), time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupt):
                store.get("k")
            assert time.monotonic() - began < 20
    finally:
        signal.signal(signal.SIGALRM, before)

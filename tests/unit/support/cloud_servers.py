"""Servers of Azure Blob Storage (Azurite) and Google Cloud Storage on this machine, and stores in them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.cloud_emulators import (
    ACCOUNT,
    BUCKET,
    KEY,
    GoogleServer,
    create_container,
    running_google_server,
    start_azurite,
)
from zsnapdb.config.repository import AzureSettings, GoogleSettings, RepositorySettings
from zsnapdb.store.base import Store


def need_obstore() -> None:
    pytest.importorskip("obstore", reason="the library obstore is not installed (extras azure and gcs)")


@functools.cache
def azurite() -> int:
    """Return the port of Azurite, which runs until the end of this process. Skip the test if it is not installed."""
    need_obstore()
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("Azurite is not installed (npm install -g azurite)")
    process, port = start_azurite(program)
    atexit.register(process.kill)
    return port


def azurite_settings(folder: Path) -> RepositorySettings:
    """Return the settings of a repository in an empty container of Azurite."""
    port, container = azurite(), f"c{uuid.uuid4().hex}"
    create_container(port, container)
    file = folder / "azure-credentials"
    file.write_text(f"# of Azurite\nAZURE_STORAGE_ACCOUNT_KEY={KEY}\n")
    file.chmod(0o600)
    own = AzureSettings(endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}", credentials_file=file)
    return RepositorySettings(url=f"azure://{ACCOUNT}/{container}/of/ours", azure=own)


@contextlib.contextmanager
def in_azurite(folder: Path) -> Iterator[Store]:
    """An empty container of Azurite."""
    settings = azurite_settings(folder)
    from zsnapdb.store.cloud import open_at

    yield open_at(settings)[0]


@contextlib.contextmanager
def google_server(folder: Path) -> Iterator[tuple[GoogleServer, RepositorySettings]]:
    """A running server with an empty bucket, and the settings of a repository in it."""
    need_obstore()
    file = folder / "service-account.json"
    file.write_text(json.dumps({"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}))
    file.chmod(0o600)
    with running_google_server() as (served, port):
        own = GoogleSettings(endpoint=f"http://127.0.0.1:{port}", credentials_file=file)
        yield served, RepositorySettings(url=f"gs://{BUCKET}/of/ours", gs=own)


@contextlib.contextmanager
def in_google(folder: Path) -> Iterator[Store]:
    """An empty bucket of a server that knows Google's XML API."""
    need_obstore()
    from zsnapdb.store.cloud import open_at

    with google_server(folder) as (_, settings):
        yield open_at(settings)[0]


@contextlib.contextmanager
def in_library_memory(_: Path) -> Iterator[Store]:
    """A store of the library that has neither network nor disk."""
    need_obstore()
    from obstore.store import MemoryStore

    from zsnapdb.store.cloud import CloudStore
    from zsnapdb.store.cloud_clients import CloudClient

    yield CloudStore(CloudClient("memory://here", MemoryStore()))

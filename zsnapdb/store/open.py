"""Opens the store a repository's address names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from zsnapdb.config import RepositorySettings
from zsnapdb.store.base import Store
from zsnapdb.store.limited import LimitedStore
from zsnapdb.store.patient import PatientStore
from zsnapdb.store.s3_parts import S3Options


def open_store(settings: RepositorySettings, tell: Callable[[str], None] | None = None) -> tuple[Store, str]:
    """Return the store and the key prefix ("" or ending in a slash) of the repository. Nothing is asked yet.

    It is as patient and as fast as configured; `tell` gets a line when something has to be tried again for long.
    """
    store, prefix = _plain_store(settings)
    if settings.bandwidth is not None:
        store = LimitedStore(store, settings.bandwidth)
    return PatientStore(store, settings.patience, tell), prefix


def _plain_store(settings: RepositorySettings) -> tuple[Store, str]:
    parts = urlsplit(settings.url)
    if parts.scheme == "file":
        from zsnapdb.store.local import LocalStore

        return LocalStore(Path(parts.path)), ""
    from zsnapdb.store.s3 import S3Store

    prefix = parts.path.strip("/")
    store = S3Store(
        parts.netloc,
        endpoint=settings.endpoint,
        region=settings.region,
        credentials_file=settings.credentials_file,
        addressing=settings.addressing,
        connections=settings.stream.concurrency,
        options=S3Options(settings.storage_class, settings.sse, settings.sse_key, settings.checksum),
    )
    return store, f"{prefix}/" if prefix else ""

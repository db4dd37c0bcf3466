"""Opens the store a repository's address names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from zsnapdb.config import RepositorySettings
from zsnapdb.store.base import Store


def open_store(settings: RepositorySettings) -> tuple[Store, str]:
    """Return the store and the key prefix ("" or ending in a slash) of the repository. Nothing is asked yet."""
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
    )
    return store, f"{prefix}/" if prefix else ""

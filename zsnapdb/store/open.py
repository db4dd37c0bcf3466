"""Opens the store a repository's address names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

from zsnapdb.config import RepositorySettings
from zsnapdb.store.base import Store
from zsnapdb.store.limited import LimitedStore
from zsnapdb.store.patient import PatientStore

STORES = {
    "file": "zsnapdb.store.local",
    "s3": "zsnapdb.store.s3",
}
"""The module of each kind of store, by the scheme of its addresses.

Its `open_at(settings)` returns the store and the key prefix. It is imported only when it is used: clients are large.
The configuration says what an address of each kind looks like (`STORE_ADDRESSES`).
"""


def open_store(settings: RepositorySettings, tell: Callable[[str], None] | None = None) -> tuple[Store, str]:
    """Return the store and the key prefix ("" or ending in a slash) of the repository. Nothing is asked yet.

    It is as patient and as fast as configured; `tell` gets a line when something has to be tried again for long.
    """
    module = import_module(STORES[urlsplit(settings.url).scheme])
    opened: tuple[Store, str] = module.open_at(settings)
    store, prefix = opened
    if settings.bandwidth is not None:
        store = LimitedStore(store, settings.bandwidth)
    return PatientStore(store, settings.patience, tell), prefix

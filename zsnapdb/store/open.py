"""Opening of the store for a repository's address."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from zsnapdb.config.repository import RepositorySettings
from zsnapdb.store.base import Store
from zsnapdb.store.layers import RetryingStore, ThrottledStore

STORES = {
    "file": "zsnapdb.store.local",
    "s3": "zsnapdb.store.s3",
}
"""The module of each kind of store, by URL scheme.

`open_at(settings)` of the module returns the store and the key prefix. A module is imported only when it is used,
because client libraries are large. `STORE_ADDRESSES` in the configuration defines the form of each kind of address.
"""


def refuse_unfit(settings: RepositorySettings) -> None:
    """Raise PreflightError if the store is a folder on a file system that cannot hold a repository."""
    if settings.address.scheme == "file":
        import_module(STORES["file"]).refuse_unfit(settings)


def open_store(settings: RepositorySettings, tell: Callable[[str], None] | None = None) -> tuple[Store, str]:
    """Return the repository's store and key prefix ("" or ending in a slash). No request is sent yet.

    The store has the configured patience and bandwidth. `tell` gets a line before each long pause between attempts.
    """
    module = import_module(STORES[settings.address.scheme])
    opened: tuple[Store, str] = module.open_at(settings)
    store, prefix = opened
    if settings.bandwidth is not None:
        store = ThrottledStore(store, settings.bandwidth)
    return RetryingStore(store, settings.patience, tell), prefix

"""Chooses the pool of this host for a copy of datasets."""

from __future__ import annotations

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import pool_of
from zsnapdb.zfs import datasets


def pool_for_copy(dataset: str, hint: str) -> str:
    """Return the pool that has the name of the dataset's pool, else the only pool of this host.

    PreflightError with the hint if this host has several other pools, or no pool.
    """
    own, pools = pool_of(dataset), datasets.pools()
    if own not in pools and len(pools) != 1:
        raise PreflightError(
            f"there is no pool {own} here, and the host has {len(pools)}: {', '.join(pools) or 'none'}", hint=hint
        )
    return own if own in pools else pools[0]

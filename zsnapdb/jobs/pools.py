"""In which pool of this host a copy of datasets is made."""

from __future__ import annotations

from zsnapdb.errors import PreflightError
from zsnapdb.model import pool_of
from zsnapdb.zfs import datasets


def pool_for_copy(dataset: str, hint: str) -> str:
    """Return the pool of that name if this host has it, else its only pool.

    PreflightError with the hint if it has several, or none.
    """
    own, pools = pool_of(dataset), datasets.pools()
    if own not in pools and len(pools) != 1:
        raise PreflightError(
            f"there is no pool {own} here, and the host has {len(pools)}: {', '.join(pools) or 'none'}", hint=hint
        )
    return own if own in pools else pools[0]

"""The memory and the pools of this host that are available for new copies."""

from __future__ import annotations

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import PreflightError
from zsnapdb.zfs import datasets
from zsnapdb.zfs.kernel_facts import free_memory


def available() -> int:
    """Return the bytes of memory for a new program, by kernel and control groups; 0 if unknown."""
    return free_memory() or 0


def pool_for_copy(dataset: str, hint: str) -> str:
    """Return the pool with the name of the dataset's pool, else the only pool of this host.

    Raises PreflightError with `hint` if this host has several other pools, or none.
    """
    own, pools = pool_of(dataset), datasets.pools()
    if own not in pools and len(pools) != 1:
        raise PreflightError(
            f"this host has no pool {own}, but {len(pools)} others: {', '.join(pools) or 'none'}", hint=hint
        )
    pool = own if own in pools else pools[0]
    refuse_alternate_root(pool)
    return pool


def refuse_alternate_root(pool: str) -> None:
    """Raise PreflightError if the pool is imported with altroot, so that mount points are below another folder.

    The mount point of a copy would be below that folder too, and its server would not find it.
    """
    root = datasets.alternate_root(pool)
    if root is not None:
        raise PreflightError(
            f"the pool {pool} is imported with altroot={root}, so a copy would not be mounted at the path that its"
            f" server uses",
            hint=f"stop the programs that use it, then `zpool export {pool}` and `zpool import {pool}`, without -R",
        )

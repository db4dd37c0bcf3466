"""What this host has for new copies: memory and pools."""

from __future__ import annotations

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import pool_of
from zsnapdb.zfs import datasets
from zsnapdb.zfs.kernel_facts import free_memory


def available() -> int:
    """Return the bytes that a new program can have, by the kernel and the control groups; 0 if that is not known."""
    return free_memory() or 0


def pool_for_copy(dataset: str, hint: str) -> str:
    """Return the pool that has the name of the dataset's pool, else the only pool of this host.

    PreflightError with the hint if this host has several other pools, or no pool.
    """
    own, pools = pool_of(dataset), datasets.pools()
    if own not in pools and len(pools) != 1:
        raise PreflightError(
            f"there is no pool {own} here, and the host has {len(pools)}: {', '.join(pools) or 'none'}", hint=hint
        )
    pool = own if own in pools else pools[0]
    refuse_alternate_root(pool)
    return pool


def refuse_alternate_root(pool: str) -> None:
    """Raise PreflightError if the pool mounts its datasets below another folder than their mount points say.

    A mount point that is set there lies below that folder once more, so no copy would be where its server looks.
    """
    root = datasets.alternate_root(pool)
    if root is not None:
        raise PreflightError(
            f"the pool {pool} is imported with altroot={root}, so no copy would be mounted where its server looks",
            hint=f"stop what uses the pool, then `zpool export {pool}` and `zpool import {pool}`, without -R",
        )

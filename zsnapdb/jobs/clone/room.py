"""How much clones may write: each has a quota, and all together leave production the space of `clones.free_floor`.

A quota counts what a dataset and all below it occupy, snapshots too, and not what a clone shares with its source
(zfsprops(7), quota). So that of a clone bounds what its users can write, whatever they do in its server.
"""

from __future__ import annotations

import contextlib

from zsnapdb.config import Settings
from zsnapdb.errors import CommandError, PreflightError, UsageError
from zsnapdb.jobs.clone.catalogue import CloneInfo, find, homes, ready
from zsnapdb.jobs.clone.locks import on_clone
from zsnapdb.model import PROPERTY, pool_of
from zsnapdb.planning.clone.room import clone_quota, home_quota
from zsnapdb.quantities import size
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import number_in

_GUARD = f"{PROPERTY}:floor-quota"
"""On the home of all clones: the quota that zsnapdb has set there. Another quota there is the administrator's."""


def of_new_clone(settings: Settings, pool: str) -> int:
    """Return the quota of a new clone in bytes (0: none is configured)."""
    return clone_quota(settings.clones.quota, datasets.available(pool), settings.clones.free_floor)


def guard(settings: Settings) -> None:
    """Limit all clones together, so that they leave the pool `clones.free_floor`, by what is free now.

    Called when clones are made and by each reap. A quota that an administrator has set there stays.
    """
    for home in homes(settings):
        seen = datasets.properties(home, ["used", "quota", _GUARD])
        used, quota = (number_in(seen[key].value, ["zfs", "get", key, home]) for key in ("used", "quota"))
        if quota and seen[_GUARD].value != str(quota):
            continue
        wanted = home_quota(used, datasets.available(pool_of(home)), settings.clones.free_floor)
        # What is written at this moment may be more than that already (zfsprops(7)). The next call tries again.
        with contextlib.suppress(CommandError, PreflightError):
            datasets.set_properties(home, {"quota": str(wanted), _GUARD: str(wanted)})


def extend(settings: Settings, name: str, quota: int) -> CloneInfo:
    """Give the clone another quota, in bytes. The errors are those of `refuse`."""
    with on_clone(name):
        info = ready(settings, name)
        refuse(settings, info, quota)
        datasets.set_properties(info.current, {"quota": str(quota)})
        guard(settings)
        return find(settings, name)


def refuse(settings: Settings, info: CloneInfo, quota: int) -> None:
    """Raise UsageError if the clone has more of its own already, PreflightError if the pool has not as much free."""
    if quota < info.own_bytes:
        raise UsageError(
            f"clone {info.name} has {size(info.own_bytes)} of its own, which is more than {size(quota)}",
            hint="name a larger quota",
        )
    free, floor = datasets.available(pool_of(info.top)), settings.clones.free_floor
    if quota - info.own_bytes > free - floor:
        raise PreflightError(
            f"the pool has {size(free)} free and must keep {size(floor)}, so clone {info.name} cannot have"
            f" {size(quota)} of its own",
            hint="free space in the pool, or lower clones.free_floor",
        )

"""Orders what was made of snapshot sets by the sets: as ZFS made them, not by the times in their ids."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.model import is_backup_id, pool_of
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import snapshot_name
from zsnapdb.planning import order
from zsnapdb.planning.server_copy.origin import Origin
from zsnapdb.zfs import snapshots, version

T = TypeVar("T")


def _recorded(instance: Instance, pool: int) -> Mapping[str, int]:
    # What only orders the sets of the host does without the modules of repositories.
    from zsnapdb.jobs.record.host_record import recorded_groups

    return recorded_groups(instance, pool)


def oldest_first(
    instance: Instance, items: Iterable[T], set_of: Callable[[T], str], origin_of: Callable[[T], Origin]
) -> list[T]:
    """Return the items, those of the oldest set first.

    A set that production no longer has is placed by this host's record. One that neither knows counts as the oldest:
    its data is not proved to be newer than any other. So does one of another pool than production's.
    """
    listed = list(items)
    names: dict[str, set[str]] = {}
    for item in listed:
        place = next(iter(origin_of(item).volumes.values())).dataset
        names.setdefault(place, set()).add(set_of(item))
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    pools: dict[str, int] = {}
    for place, ids in names.items():
        # The datasets of a production that was moved or is gone order nothing.
        with contextlib.suppress(ZsnapdbError):
            pool = pools[place] = version.pool_guid(pool_of(place))
            shorts = {one: snapshot_name(one) if is_backup_id(one) else one for one in ids}
            here = snapshots.created_in(place, list(shorts.values()))
            known = _recorded(instance, pool) if len(here) < len(shorts) else {}
            groups |= {(place, one): (pool, here.get(short, known.get(one, 0))) for one, short in shorts.items()}
    volumes = instance.settings.volumes or {}
    production = {pool for place, pool in pools.items() if not volumes or place in volumes.values()}

    def group(item: T) -> tuple[int, int]:
        return groups.get((next(iter(origin_of(item).volumes.values())).dataset, set_of(item)), (0, 0))

    return order.by_pool(listed, group, production)

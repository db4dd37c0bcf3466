"""What this host has for the pool of an instance: memory, and space above what clones must leave free."""

from __future__ import annotations

from zsnapdb.base.errors import ConfigError, ZsnapdbError
from zsnapdb.base.model import pool_of
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.removal_time import removal_time
from zsnapdb.jobs.clone import masking_policy, reusable_sets, room
from zsnapdb.jobs.clone.catalogue import home
from zsnapdb.jobs.clone.locate import home_for
from zsnapdb.jobs.clone.pool import as_slot, slots_of
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.planning.clone.pool import LEAST_SPACE, HostRoom, PoolSlot, too_large
from zsnapdb.zfs import datasets, kernel_facts


def of_host(settings: Settings, instance: str, above: str, *, makes_form: bool) -> HostRoom:
    """Return what is free for clones below the dataset `above`.

    `makes_form`: a masked form of the newest set is made first. It is expected to take what the largest masked form of
    the instance takes.
    """
    known = reusable_sets.listing(settings) if makes_form else []
    forms = [one.own_bytes for one in known if one.instance == instance and one.rules and one.phase is CopyPhase.READY]
    form = max(forms, default=LEAST_SPACE) if makes_form else 0
    free = datasets.available(pool_of(above)) - settings.clones.free_floor
    space = max(0, min(free, room.available_below(above)))
    return HostRoom(kernel_facts.free_memory(), space, form)


def refuse_pool(settings: Settings, instance: Instance) -> None:
    """Raise ConfigError if the pool of the instance cannot be full on this host with what is free now.

    Its space is judged if it is known without a server where clones will be: volumes or clones.dataset are configured,
    or this host has one pool.
    """
    configured = instance.settings.pool
    if configured is None:
        return
    try:
        slots, host = _seen(settings, instance)
    except ZsnapdbError:
        # The configuration may be checked on a host without ZFS.
        slots, host = [], HostRoom(None, None)
    reason = too_large(slots, configured, host, kernel_facts.read_memory().total)
    if reason is not None:
        raise ConfigError(
            f"instance {instance.name}: {reason}",
            hint=f"set a smaller size in [instance.{instance.name}.pool], free space, or lower clones.free_floor",
        )


def _seen(settings: Settings, instance: Instance) -> tuple[list[PoolSlot], HostRoom]:
    """Return the clones that wait already, and what the host has for more."""
    above = _home(settings, instance)
    if above is None:
        return [], HostRoom(None, None)
    rules = masking_policy.rules_of(instance.settings.masking, requested=False)
    known = reusable_sets.listing(settings) if rules else []
    makes_form = bool(rules) and not any((one.instance, one.rules) == (instance.name, rules) for one in known)
    host = of_host(settings, instance.name, above, makes_form=makes_form)
    return [as_slot(instance, info, removal_time(instance.host).at) for info in slots_of(settings, instance)], host


def _home(settings: Settings, instance: Instance) -> str | None:
    """Return the dataset below which clones of the instance will be; None if it is not known without its server."""
    volumes, pools = instance.settings.volumes, datasets.pools()
    if volumes or settings.clones.dataset is not None:
        above = home_for(settings, list(volumes.values()) if volumes else [])
    elif len(pools) == 1:
        above = home(settings, pools[0])
    else:
        return None
    return above if pool_of(above) in pools else None

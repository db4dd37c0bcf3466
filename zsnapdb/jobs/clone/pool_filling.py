"""Fills the pool of an instance: drops the clones that nobody may have any more, and makes what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.errors import UnknownNameError, ZsnapdbError
from zsnapdb.base.model import backup_time
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.exclusion import exclusive, if_free
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.removal_time import removal_time
from zsnapdb.jobs.clone import address, locks, pool_room
from zsnapdb.jobs.clone.catalogue import of_dataset
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.create import create
from zsnapdb.jobs.clone.create_plan import planned_source
from zsnapdb.jobs.clone.destroy import destroy_locked
from zsnapdb.jobs.clone.locate import home_for
from zsnapdb.jobs.clone.pool import OWNER, as_slot, settings_of, slots_of, wish_of
from zsnapdb.jobs.clone.request import CloneRequest, random_name
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.planning.clone import pool as planning
from zsnapdb.planning.clone.masking import MaskingWay
from zsnapdb.planning.clone.pool import PoolPlan


@dataclass(frozen=True)
class FilledPool:
    """What filling a pool did: the plan, the clones that it made, and those that went."""

    plan: PoolPlan
    made: tuple[CloneInfo, ...]
    dropped: tuple[str, ...]

    @property
    def changed(self) -> str:
        """What was made and what went, in words; "" if nothing was."""
        made = ", ".join(info.name for info in self.made)
        parts = [f"made {made}" if made else "", f"destroyed {', '.join(self.dropped)}" if self.dropped else ""]
        return "; ".join(filter(None, parts))


def plan_fill(settings: Settings, instance: Instance) -> PoolPlan:
    """Return what `fill` would do; change nothing. ConfigError if the instance has no pool."""
    wish, time = wish_of(settings, instance, CloneRequest(OWNER)), removal_time(instance.host)
    slots = [as_slot(instance, info, time.at) for info in slots_of(settings, instance)]
    instance = with_volumes(instance)
    chosen = planned_source(settings, instance, CloneRequest(OWNER, waits=True))
    makes_form = chosen.masking.way is MaskingWay.PREPARES
    host = pool_room.of_host(
        settings, instance.name, home_for(settings, list(instance.volumes.values())), makes_form=makes_form
    )
    newest = backup_time(chosen.set_id)
    return planning.filling(slots, settings_of(instance), wish, time, host, newest)


def fill(settings: Settings, instance: Instance) -> FilledPool:
    """Drop the slots that nobody may have any more, and make what is missing, one after the other.

    BusyError while another process fills the pool of the instance. The errors are those of `create`.
    """
    with exclusive(f"pool-{instance.name}", doing=f"filling the pool of {instance.name}"):
        plan = plan_fill(settings, instance)
        dropped = [slot.name for slot, _ in plan.drops if _drop(settings, instance, slot.name)]
        made = []
        for _ in range(plan.makes):
            request = CloneRequest(
                OWNER, name=random_name(instance), ttl=_lease_seconds(settings, instance), waits=True
            )
            made.append(create(settings, instance, request).info)
        address.follow_if_there(settings, instance.host)
        return FilledPool(plan, tuple(made), tuple(dropped))


def _lease_seconds(settings: Settings, instance: Instance) -> float:
    """Return the lease of a slot. One that nobody fills any more goes with its lease, as any clone."""
    return min(2 * settings_of(instance).max_age, settings.clones.max_ttl)


def _drop(settings: Settings, instance: Instance, name: str) -> bool:
    """Destroy the slot if it is still nobody's and nobody works on it; return whether it did."""
    with if_free(locks.name_of_clone(name)) as is_free:
        if not is_free:
            return False
        try:
            is_of_nobody = of_dataset(settings, instance.host, name).is_of_nobody
        except UnknownNameError:
            return False
        try:
            return is_of_nobody and bool(destroy_locked(settings, instance.host, name))
        except ZsnapdbError as error:
            # Others may have made snapshots of it. The pool is filled all the same.
            instance.events.warn(f"clone {name} of the pool is not destroyed: {error.message}")
            return False

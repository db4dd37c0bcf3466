"""Fills an instance's pool: destroys unsuitable slots, and creates missing slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zsnapdb.base.domain_types import backup_time, pool_of
from zsnapdb.base.errors import ConfigError, UnknownNameError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive, if_free
from zsnapdb.jobs.clone import cached_sets, kept_ports, locks, masking_requirement, space_limits
from zsnapdb.jobs.clone.catalogue import home, of_dataset
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.create import create
from zsnapdb.jobs.clone.create_plan import planned_source
from zsnapdb.jobs.clone.destroy import destroy_locked
from zsnapdb.jobs.clone.pool import OWNER, as_slot, requested_slot, settings_of, slots_of
from zsnapdb.jobs.clone.request import CloneRequest, random_name
from zsnapdb.jobs.clone.source_lookup import home_for
from zsnapdb.jobs.clone.sources import production_here, with_volumes
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.binlog_spans import points_of
from zsnapdb.jobs.record.host_backup_record import checked_backups
from zsnapdb.planning.clone import pool as planning
from zsnapdb.planning.clone.abandoned_backups import abandoned_backups
from zsnapdb.planning.clone.masking import MaskingWay
from zsnapdb.planning.clone.pool import LEAST_SPACE, HostRoom, PoolPlan, PoolSlot, too_large
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.repository.manifest import is_of_server
from zsnapdb.zfs import datasets, kernel_facts


@dataclass(frozen=True)
class FilledPool:
    """The result of filling a pool: the plan, the created clones and the destroyed clones."""

    plan: PoolPlan
    made: tuple[CloneInfo, ...]
    dropped: tuple[str, ...]

    @property
    def changed(self) -> str:
        """The created and destroyed clones as text; "" if there are none."""
        made = ", ".join(info.name for info in self.made)
        parts = [f"made {made}" if made else "", f"destroyed {', '.join(self.dropped)}" if self.dropped else ""]
        return "; ".join(filter(None, parts))


def plan_fill(settings: Settings, instance: Instance) -> PoolPlan:
    """Return the plan of `fill`; change nothing.

    Raises:
        ConfigError: the instance has no pool.
    """
    wish, time = requested_slot(settings, instance, CloneRequest(OWNER)), removal_time(instance.host)
    known = slots_of(settings, instance)
    slots = [as_slot(instance, info, time.at) for info in known]
    is_discovered, instance = instance.settings.volumes is None, with_volumes(instance)
    if is_discovered:
        slots = [
            replace(slot, is_current=slot.is_current and is_of_volumes(info.origin, instance.volumes))
            for slot, info in zip(slots, known, strict=True)
        ]
    slots = _of_repository(instance, known, slots)
    chosen = planned_source(settings, instance, CloneRequest(OWNER, waits=True))
    makes_form = chosen.masking.way is MaskingWay.PREPARES
    host = read_host_room(
        settings, instance.name, home_for(settings, list(instance.volumes.values())), makes_form=makes_form
    )
    newest = backup_time(chosen.set_id)
    return planning.filling(slots, settings_of(instance), wish, time, host, newest)


def _of_repository(instance: Instance, known: Sequence[CloneInfo], slots: Sequence[PoolSlot]) -> list[PoolSlot]:
    """Return the slots, and mark those whose data is no longer current.

    A slot is no longer current if later backups in the repository do not continue the history of the slot's backup. The
    repository is read only if production is not on this host.
    """
    received = {info.name: info.original for info in known if production_here(instance, info.origin) is None}
    if not received:
        return list(slots)
    stored, checked = checked_backups(instance, instance.open_repository())
    usable = [one for one in stored.backups if is_of_server(one) and one.backup_id not in checked.unchosen]
    left = abandoned_backups(usable, {point.backup_id: point for point in points_of(usable)}) | checked.unchosen.keys()
    return [replace(slot, is_current=slot.is_current and received.get(slot.name) not in left) for slot in slots]


def is_of_volumes(origin: SourceServer, volumes: Mapping[str, str]) -> bool:
    """Return whether the data of a clone comes from the datasets in `volumes` (role to dataset).

    At a handout only configured datasets are compared, because a discovery of datasets would take too long.
    """
    return {role: place.dataset for role, place in origin.volumes.items()} == dict(volumes)


def fill(settings: Settings, instance: Instance) -> FilledPool:
    """Destroy the slots that are no longer handed out, and create missing slots one after the other.

    Raises the errors of `create`.

    Raises:
        BusyError: another process fills the pool of the instance.
    """
    with exclusive(locks.name_of_pool(instance.name), doing=f"filling the pool of {instance.name}"):
        plan = plan_fill(settings, instance)
        dropped = [slot.name for slot, _ in plan.drops if _drop(settings, instance, slot.name)]
        made = []
        # Slots have leases too: if the pool is never filled again, its slots expire like other clones.
        ttl = min(2 * settings_of(instance).max_age, settings.clones.max_ttl)
        for _ in range(plan.makes):
            request = CloneRequest(OWNER, name=random_name(instance), ttl=ttl, waits=True)
            made.append(create(settings, instance, request).info)
        kept_ports.follow_if_there(settings, instance.host)
        return FilledPool(plan, tuple(made), tuple(dropped))


def _drop(settings: Settings, instance: Instance, name: str) -> bool:
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
            # Snapshots that other programs created may prevent the removal of the slot. Continue with the other slots.
            instance.events.warn(f"clone {name} of the pool is not destroyed: {error.message}")
            return False


def read_host_room(settings: Settings, instance: str, above: str, *, makes_form: bool) -> HostRoom:
    """Return the free memory and space of this host for clones below the dataset `above`.

    If `makes_form` is set, a masked prepared set of the newest snapshot set must be created before the clones. It is
    assumed to be as large as the instance's largest masked prepared set.
    """
    known = cached_sets.listing(settings) if makes_form else []
    forms = [one.own_bytes for one in known if one.instance == instance and one.rules and one.phase is CopyPhase.READY]
    form = max(forms, default=LEAST_SPACE) if makes_form else 0
    free = datasets.available(pool_of(above)) - settings.clones.free_floor
    space = max(0, min(free, space_limits.available_below(above)))
    return HostRoom(kernel_facts.free_memory(), space, form)


def refuse_pool(settings: Settings, instance: Instance) -> None:
    """Raise ConfigError if this host has too little free memory or space for all clones of the instance's pool.

    Space is checked only if the dataset of the clones is known without asking the server. This is the case if `volumes`
    or `clones.dataset` is configured, or if this host has only one ZFS pool.
    """
    configured = instance.settings.pool
    if configured is None:
        return
    try:
        slots, host = _observe_pool(settings, instance)
    except ZsnapdbError:
        # The configuration may be checked on a host without ZFS.
        slots, host = [], HostRoom(None, None)
    reason = too_large(slots, configured, host, kernel_facts.read_memory().total)
    if reason is not None:
        raise ConfigError(
            f"instance {instance.name}: {reason}",
            hint=f"set a smaller size in [instance.{instance.name}.pool], free space, or lower clones.free_floor",
        )


def _observe_pool(settings: Settings, instance: Instance) -> tuple[list[PoolSlot], HostRoom]:
    above = _home(settings, instance)
    if above is None:
        return [], HostRoom(None, None)
    rules = masking_requirement.rules_of(instance.settings.masking, requested=False)
    known = cached_sets.listing(settings) if rules else []
    makes_form = bool(rules) and not any((one.instance, one.rules) == (instance.name, rules) for one in known)
    host = read_host_room(settings, instance.name, above, makes_form=makes_form)
    return [as_slot(instance, info, removal_time(instance.host).at) for info in slots_of(settings, instance)], host


def _home(settings: Settings, instance: Instance) -> str | None:
    """Return the dataset that will contain the instance's clones; None if the server must be asked for it."""
    volumes, pools = instance.settings.volumes, datasets.pools()
    if volumes or settings.clones.dataset is not None:
        above = home_for(settings, list(volumes.values()) if volumes else [])
    elif len(pools) == 1:
        above = home(settings, pools[0])
    else:
        return None
    return above if pool_of(above) in pools else None

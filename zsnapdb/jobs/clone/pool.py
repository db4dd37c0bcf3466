"""The pool of an instance: clones that were made before anybody asked, and are handed out in the time of a statement.

A slot is an ordinary clone with a mark. The change that takes the mark away gives the clone its owner. So a process
that dies before leaves a slot, and one that dies after it leaves a clone with an owner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from zsnapdb.base.errors import ConfigError, ServerError, UnknownNameError
from zsnapdb.base.model import backup_time, is_backup_id
from zsnapdb.config.pool import PoolSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.exclusion import exclusive, if_free
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.random_values import fresh_password
from zsnapdb.jobs.clone import catalogue, contract, credentials, heartbeat, lifecycle, locks, masking_policy, properties
from zsnapdb.jobs.clone.catalogue import CloneInfo, find
from zsnapdb.jobs.clone.create import Created, CreateDurations, create
from zsnapdb.jobs.clone.create_plan import CloneRequest, random_name
from zsnapdb.jobs.clone.destroy import destroy_locked
from zsnapdb.jobs.clone.sources import LATEST
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.properties import CopyPhase, owner_text
from zsnapdb.mysql.process.processes import resident_bytes
from zsnapdb.planning.clone import pool as planning
from zsnapdb.planning.clone.lease import Quota, admit, first_lease, heartbeat_seconds, policy, read_stamp, stamp
from zsnapdb.planning.clone.pool import PoolPlan, PoolSlot, PoolTerms
from zsnapdb.zfs import datasets, kernel_facts

OWNER = "pool"
"""The owner of the clones that wait."""


@dataclass(frozen=True)
class FilledPool:
    """What filling a pool did: the plan, the clones that it made, and those that went."""

    plan: PoolPlan
    made: tuple[CloneInfo, ...]
    dropped: tuple[str, ...]


def obtain(settings: Settings, instance: Instance, request: CloneRequest, *, fresh: bool = False) -> Created:
    """Hand out a slot of the pool if one fits the request, else make a clone. `fresh`: make one in any case.

    The errors are those of `create`.
    """
    handed = None if fresh else hand_out(settings, instance, request)
    return handed if handed is not None else create(settings, instance, request)


def plan_fill(settings: Settings, instance: Instance) -> PoolPlan:
    """Return what `fill` would do; change nothing. ConfigError if the instance has no pool."""
    rules = masking_policy.rules_of(instance.settings.masking, requested=False)
    slots = [_slot(info) for info in _slots(settings, instance)]
    return planning.filling(slots, _terms(instance), rules, instance.host.now(), kernel_facts.free_memory())


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
        return FilledPool(plan, tuple(made), tuple(dropped))


def candidate(settings: Settings, instance: Instance, request: CloneRequest) -> CloneInfo | None:
    """Return the slot that the request would get; None if there is none that fits. Nothing is changed."""
    return next(_candidates(settings, instance, request), None)


def hand_out(settings: Settings, instance: Instance, request: CloneRequest) -> Created | None:
    """Give a slot that fits to the owner of the request, with a new password; None if there is none.

    PreflightError or ExistsError if a quota, the lease or another clone of that name forbids it.
    """
    for info in _candidates(settings, instance, request):
        with if_free(locks.name_of_clone(info.name)) as is_free:
            if not is_free:
                continue
            try:
                now_there = find(settings, instance.host, info.name)
                if _fits(settings, instance, request, now_there) is not None:
                    continue
                return _hand_out(settings, instance, request, now_there)
            except (ServerError, UnknownNameError) as error:
                # Its server died, or it went. The next filling sees to it.
                instance.events.warn(f"slot {info.name} of the pool is not handed out: {error.message}")
    return None


def _hand_out(settings: Settings, instance: Instance, request: CloneRequest, info: CloneInfo) -> Created:
    began, host = time.monotonic(), instance.host
    masking_policy.refuse_unmasked(settings, info)
    clone = replace(lifecycle.server_of(settings, info), rights=request.rights)
    password = fresh_password()
    with lifecycle.session(info) as session:
        contract.make_users(session, clone, password)
    credentials.write(info.client_file, password, info.bind_address, info.port, clone.copy.settings.user)
    if request.heartbeat is not None:
        heartbeat.beat(host, info.name)
    with locks.names_and_ports():
        label = request.name or info.name
        _admit(settings, instance, request, info, label)
        lease = first_lease(request.ttl, policy(settings.clones), host.now())
        beats = heartbeat_seconds(request.heartbeat) if request.heartbeat is not None else properties.NO_HEARTBEAT
        facts = {
            properties.POOL_PROPERTY: properties.HANDED_OUT,
            properties.LABEL_PROPERTY: label,
            properties.RIGHTS_PROPERTY: request.rights.value,
            properties.MASK_PROPERTY: "yes" if request.masks or info.asks_for_masking else "no",
            properties.HEARTBEAT_PROPERTY: str(beats),
            properties.USED_PROPERTY: stamp(host.now()),
            copy_properties.OWNER_PROPERTY: owner_text(request.owner),
            copy_properties.CREATED_PROPERTY: stamp(host.now()),
            **copy_properties.lease_values(lease),
        }
        datasets.set_properties(info.top, facts)
    seconds = CreateDurations(source=0.0, clone=0.0, identity=0.0, start=time.monotonic() - began)
    return Created(find(settings, host, info.name), password, seconds, is_of_pool=True)


def _admit(settings: Settings, instance: Instance, request: CloneRequest, info: CloneInfo, label: str) -> None:
    """Raise PreflightError or ExistsError if the owner may not have one more clone, or none of that name.

    The slot exists already: it takes no more room of the pool, and is one of the clones that may exist.
    """
    known = catalogue.known(settings, instance.host)
    others = [other for other in known.copies if other.name != info.name]
    catalogue.refuse_label(others, label)
    quota = Quota(settings.clones.per_owner, settings.clones.total, 0)
    admit(quota, request.owner, [*(other.owner for other in others), *("" for _ in known.unreadable)], 0)


def _candidates(settings: Settings, instance: Instance, request: CloneRequest) -> Iterator[CloneInfo]:
    """Yield the slots that fit the request, those with the newest data first."""
    if instance.settings.pool is None or not _may_be_of_pool(request):
        return
    slots = sorted(_slots(settings, instance), key=lambda info: _slot(info).data_of, reverse=True)
    for info in slots:
        if _fits(settings, instance, request, info) is None:
            yield info


def _may_be_of_pool(request: CloneRequest) -> bool:
    newest = (request.source, request.at, request.point, request.requested) == (LATEST, None, None, None)
    return newest and request.starts and not (request.is_ephemeral or request.waits) and request.follows is None


def _fits(settings: Settings, instance: Instance, request: CloneRequest, info: CloneInfo) -> str | None:
    """Return why the request does not get the slot; None if it does."""
    if not info.waits:
        return "it was handed out"
    if (request.profile, request.bind_address or settings.clones.bind_address) != (info.profile, info.bind_address):
        return "it has another profile or address"
    rules = masking_policy.rules_of(instance.settings.masking, requested=request.masks)
    return planning.objection(_slot(info), _terms(instance), rules, instance.host.now())


def _slots(settings: Settings, instance: Instance) -> list[CloneInfo]:
    known = catalogue.listing(settings, instance.host)
    return [info for info in known if info.waits and info.instance == instance.name]


def _slot(info: CloneInfo) -> PoolSlot:
    data_of = backup_time(info.backup_id) if is_backup_id(info.backup_id) else read_stamp(info.created)
    runs = info.pid is not None and info.phase is CopyPhase.READY
    memory = resident_bytes(info.pid) if info.pid is not None else 0
    return PoolSlot(info.name, data_of, runs, info.rules, memory)


def _settings(instance: Instance) -> PoolSettings:
    if instance.settings.pool is None:
        raise ConfigError(f"instance {instance.name} has no pool", hint=f"set size in [instance.{instance.name}.pool]")
    return instance.settings.pool


def _terms(instance: Instance) -> PoolTerms:
    configured = _settings(instance)
    return PoolTerms(configured.size, configured.max_age, configured.memory)


def _lease_seconds(settings: Settings, instance: Instance) -> float:
    """Return the lease of a slot. One that nobody fills any more goes with its lease, as any clone."""
    return min(2 * _settings(instance).max_age, settings.clones.max_ttl)


def _drop(settings: Settings, instance: Instance, name: str) -> bool:
    """Destroy the slot if it still waits and nobody works on it; return whether it did."""
    with if_free(locks.name_of_clone(name)) as is_free:
        if not is_free:
            return False
        try:
            still_waits = find(settings, instance.host, name).waits
        except UnknownNameError:
            return False
        return still_waits and bool(destroy_locked(settings, instance.host, name))

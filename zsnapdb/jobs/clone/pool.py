"""The pool of an instance: clones that are created in advance, so that their handout takes only a moment.

A slot is a clone that waits in the pool. The slot's anchor has a mark. A handout removes the mark and sets the owner in
a single change of properties. So a killed process leaves either a slot or a clone with an owner.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from pydantic import SecretStr

from zsnapdb.base.domain_types import backup_time, is_backup_id
from zsnapdb.base.errors import ConfigError, ConsistencyError, UnknownNameError, ZsnapdbError
from zsnapdb.config.services import PoolSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.events import told
from zsnapdb.jobs.base.host import fresh_password
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import if_free
from zsnapdb.jobs.clone import (
    catalogue,
    clone_info,
    credentials,
    expected_clone,
    isolated_start,
    kept_ports,
    lifecycle,
    locks,
    masking_requirement,
    reset_baseline,
)
from zsnapdb.jobs.clone.cached_sets import oldest_first
from zsnapdb.jobs.clone.catalogue import of_dataset
from zsnapdb.jobs.clone.clone_info import CloneClaim, CloneInfo
from zsnapdb.jobs.clone.request import CloneRequest, Created, CreateDurations
from zsnapdb.jobs.clone.sources import LATEST, has_state, production_history
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import HALF_MADE, CopyPhase, owner_text
from zsnapdb.jobs.dataset_copies.property_fields import PropertyTransition
from zsnapdb.mysql.accounts import server_use
from zsnapdb.mysql.probe import binlog_status, probe
from zsnapdb.mysql.process.process_managers import resident_bytes
from zsnapdb.mysql.session import Session
from zsnapdb.planning import creation_order
from zsnapdb.planning.clone import pool as planning
from zsnapdb.planning.clone.isolation import AccountRights
from zsnapdb.planning.clone.lease import admit, first_lease, policy, quota_of, read_stamp, stamp
from zsnapdb.planning.clone.pool import PoolMark, PoolSlot, SlotWish
from zsnapdb.zfs import datasets

OWNER = clone_info.POOL_OWNER


def obtain(settings: Settings, instance: Instance, request: CloneRequest) -> Created:
    """Hand out a suitable slot of the pool. If there is none, create a clone. Raises the errors of `create`."""
    slot = hand_out(settings, instance, request)
    if slot is not None:
        return slot
    # Import late: loading the code that creates clones takes longer than handing out a slot.
    from zsnapdb.jobs.clone.create import create

    return create(settings, instance, request)


def candidate(settings: Settings, instance: Instance, request: CloneRequest) -> CloneInfo | None:
    """Return the slot that the request would get; None if no slot is suitable. Change nothing.

    Raises the errors of `hand_out`.
    """
    info = next(_candidates(settings, instance, request), None)
    if info is not None:
        _facts(settings, instance, request, info)
    return info


def hand_out(settings: Settings, instance: Instance, request: CloneRequest) -> Created | None:
    """Give a suitable slot to the owner of the request, with a new password. Return None if no slot is suitable.

    A slot is not handed out if it has been used, its server does not answer, or its server is not separate from the
    source.

    Raises:
        UsageError: the name is not allowed.
        PreflightError: a quota or the lease does not allow the clone.
        ExistsError: another clone has the name.
    """
    for info in _candidates(settings, instance, request):
        with if_free(locks.name_of_clone(info.name)) as is_free:
            if not is_free:
                continue
            with contextlib.suppress(UnknownNameError):
                now_there = of_dataset(settings, instance.host, info.name)
                if _fits(settings, instance, request, now_there) is None:
                    _facts(settings, instance, request, now_there)
                    created = _hand_out(settings, instance, request, now_there)
                    if created is not None:
                        return created
    return None


def _hand_out(settings: Settings, instance: Instance, request: CloneRequest, info: CloneInfo) -> Created | None:
    began, host = time.monotonic(), instance.host
    password = fresh_password()
    try:
        give_login(settings, instance, info, request.rights, password)
    except ZsnapdbError as error:
        set_aside(instance, info, error)
        return None
    if request.heartbeat is not None:
        clone_info.beat(host, info.name)
    with locks.names_and_ports():
        # This lock prevents two runs from taking the same name or port.
        facts = _facts(settings, instance, request, info)
        if request.quota is not None:
            # Set the quota before the clone has a user.
            datasets.set_properties(info.current, {"quota": str(min(request.quota, info.quota or request.quota))})
        datasets.set_properties(info.top, facts)
        handed_out = kept_ports.route_port(settings, of_dataset(settings, host, info.name), instance.events)
    seconds = CreateDurations(start=time.monotonic() - began)
    return Created(handed_out, password, seconds, is_of_pool=True)


def give_login(
    settings: Settings, instance: Instance, info: CloneInfo, rights: AccountRights, password: SecretStr
) -> None:
    """Replace the users' account of the slot with an account that has the given password and rights.

    The caller must hold the slot's lock.

    Raises:
        ZsnapdbError: the slot is not masked or not separate, or was used since its creation.
    """
    clone = lifecycle.server_of(settings, replace(info, rights=rights))
    masking_requirement.refuse_unmasked(settings, info)
    with lifecycle.session(info) as session:
        _refuse_used(instance, info, session)
        isolated_start.check(session, probe(session), clone)
        isolated_start.make_users(session, clone, password)
    credentials.write(info.client_file, password, info.bind_address, info.port, clone.copy.settings.user)


def set_aside(instance: Instance, info: CloneInfo, error: ZsnapdbError) -> None:
    """Mark the slot so that it is no longer handed out, and warn."""
    datasets.set_properties(info.top, {clone_info.POOL_PROPERTY: PoolMark.NOT_GOOD})
    reason = told(error)
    instance.events.warn(f"clone {info.name} of the pool is not handed out: {reason}")


def _refuse_used(instance: Instance, info: CloneInfo, session: Session) -> None:
    state = reset_baseline.read(instance.host, info)
    status = binlog_status(session)
    is_same = state is not None and (state.file, str(state.offset)) == (status.get("File"), status.get("Position"))
    if not is_same or server_use(session).clients:
        raise ConsistencyError(
            "it was used before it was handed out", hint="the next filling of the pool makes another one"
        )


def _facts(settings: Settings, instance: Instance, request: CloneRequest, info: CloneInfo) -> dict[str, str]:
    """Return the properties that turn the slot into the requested clone. Raises the errors of `hand_out`."""
    label = request.name or info.name
    clone_info.refuse_name(label)
    others = _admitted_beside(settings, request, info, label)
    now = instance.host.latest()
    taken = replace(
        info,
        pool=PoolMark.HANDED_OUT,
        label=label,
        rights=request.rights,
        asks_for_masking=request.masks or info.asks_for_masking,
        lease=first_lease(request.ttl, policy(settings.clones), now, request.heartbeat),
        used=stamp(now),
        run_id=instance.host.run_id(),
        owner=owner_text(request.owner),
        created=stamp(now),
        kept_port=kept_ports.choose(settings, others, info.bind_address),
    )
    return property_fields.changed_by("hand_out", taken, PropertyTransition.TAKEN)


def _admitted_beside(settings: Settings, request: CloneRequest, info: CloneInfo, label: str) -> list[CloneClaim]:
    """Check that the slot may be handed out. Return the names and ports of the other clones.

    Space is not checked, because the slot already exists. For the same reason, the number of clones does not change.

    Raises:
        PreflightError: the owner has reached the maximum number of clones.
        ExistsError: another clone has the name.
    """
    known = catalogue.claims(settings)
    others = [other for other in known.copies if other.name != info.name]
    catalogue.refuse_label(others, label)
    quota = replace(quota_of(settings, is_subject=bool(expected_clone.current_causer())), free_floor=0)
    owners = [*(other.owner for other in others), *("" for _ in known.unreadable)]
    admit(quota, owner_text(request.owner), owners, 0)
    return others


def _candidates(settings: Settings, instance: Instance, request: CloneRequest) -> Iterator[CloneInfo]:
    if instance.settings.pool is None or not _may_be_of_pool(request):
        return
    for info in reversed(slots_of(settings, instance)):
        if _fits(settings, instance, request, info) is None:
            yield info


def _may_be_of_pool(request: CloneRequest) -> bool:
    newest = (request.source, request.at, request.point, request.requested) == (LATEST, None, None, None)
    # The slot runs the server program that was configured when the slot was created.
    is_ordinary = (request.fresh, request.program, request.follows) == (False, None, None)
    return newest and is_ordinary and request.starts and not (request.is_ephemeral or request.waits)


def _fits(settings: Settings, instance: Instance, request: CloneRequest, info: CloneInfo) -> str | None:
    """Return the reason why the slot does not suit the request; None if it is suitable."""
    if request.quota is not None and 0 < settings.clones.quota < request.quota:
        return "it may have less of its own than is wanted"
    time = removal_time(instance.host)
    slot = as_slot(instance, info, time.latest)
    return planning.handout_objection(slot, requested_slot(settings, instance, request), time)


def requested_slot(settings: Settings, instance: Instance, request: CloneRequest) -> SlotWish:
    """Return the properties that a slot must have in order to suit the request.

    Raises:
        ConfigError: the instance has no pool.
    """
    rules = masking_requirement.rules_of(instance.settings.masking, requested=request.masks)
    address_of_server = request.bind_address or settings.clones.bind_address
    return SlotWish(settings_of(instance).max_age, rules, request.profile, address_of_server, request.quota or 0)


def slots_of(settings: Settings, instance: Instance) -> list[CloneInfo]:
    """Return the clones in the instance's pool that have no user, including clones that are no longer handed out.

    Clones with the oldest data come first.
    """
    known = catalogue.listing(settings, instance.host)
    own = [info for info in known if info.is_of_nobody and info.instance == instance.name]
    return oldest_first(instance, own, lambda info: info.original.removeprefix("@"), lambda info: info.origin)


def good_slots(settings: Settings, instance: Instance) -> list[CloneInfo]:
    """Return the clones that wait in the instance's pool and appear suitable for a handout."""
    request = CloneRequest(OWNER)
    return [info for info in slots_of(settings, instance) if _fits(settings, instance, request, info) is None]


def as_slot(instance: Instance, info: CloneInfo, now: datetime) -> PoolSlot:
    """Return the facts that decide whether the pool keeps a waiting clone at the time `now` (UTC)."""
    made = read_stamp(info.created)
    # A set is created before its clones. So if the time of the set is later than that of the clone, the clock was
    # wrong.
    data_of = creation_order.earliest(made, backup_time(info.backup_id)) if is_backup_id(info.backup_id) else made
    runs = info.pid is not None and info.phase is CopyPhase.READY
    memory = resident_bytes(info.pid) if info.pid is not None else 0
    mark, is_protected = info.pool or PoolMark.NOT_GOOD, info.lease.is_protected(now)
    return PoolSlot(
        info.name,
        data_of,
        info.original_key,
        runs,
        info.rules,
        info.profile,
        info.bind_address,
        memory,
        info.own_bytes,
        mark,
        is_protected=is_protected,
        is_complete=info.phase not in HALF_MADE,
        is_current=info.history == production_history(instance, info.origin)
        and has_state(instance, info.origin, info.original),
    )


def settings_of(instance: Instance) -> PoolSettings:
    """Return the settings of the pool.

    Raises:
        ConfigError: the instance has no pool.
    """
    if instance.settings.pool is None:
        raise ConfigError(f"instance {instance.name} has no pool", hint=f"set size in [instance.{instance.name}.pool]")
    return instance.settings.pool

"""Resets a clone to the data of a snapshot set. The clone's name, port, credentials and lease stay the same.

There are three ways: undo row changes, exchange the clone for a pool clone, or replace its data. The fastest possible
way is used. The code of the slower ways is loaded only if it is needed, because loading takes long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from pydantic import SecretStr

from zsnapdb.base.errors import PreflightError, UnknownNameError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, told, uninterrupted
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import if_free, is_held
from zsnapdb.jobs.clone import (
    clone_info,
    credentials,
    haproxy_socket,
    kept_ports,
    locks,
    masking_requirement,
    pool,
    reset_baseline,
    row_reset,
)
from zsnapdb.jobs.clone.catalogue import locked_clone, of_dataset, ready, refuse_other, require_lease
from zsnapdb.jobs.clone.clone_info import POOL_PROPERTY, CloneInfo, requested_text
from zsnapdb.jobs.clone.reset_baseline import RecordedReset
from zsnapdb.jobs.clone.row_reset import UndoneRows
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.property_fields import PropertyTransition
from zsnapdb.planning.clone import row_reset as planning
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.clone.pool import PoolMark, SlotWish, objection
from zsnapdb.planning.clone.row_reset import SwapCase
from zsnapdb.zfs import datasets, snapshots

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.data_replacement import ResetPlan


class ResetWay(StrEnum):
    """The way in which a reset restores a clone's data."""

    UNDO = "undo"
    SWAP = "swap"
    REPLACE = "replace"


@dataclass(frozen=True)
class ResetIntention:
    """The plan of a reset: undo row changes, exchange the clone for a pool clone, or replace its data.

    `reason` says why the faster ways are impossible. It is empty if there is no faster way, or if the request excluded
    the faster ways.
    """

    info: CloneInfo
    undoes: int | None = None
    slot: CloneInfo | None = None
    replaces: ResetPlan | None = None
    reason: str = ""

    @property
    def way(self) -> ResetWay:
        if self.undoes is not None:
            return ResetWay.UNDO
        return ResetWay.SWAP if self.slot is not None else ResetWay.REPLACE


@dataclass(frozen=True)
class ResetClone:
    """A clone after a reset.

    It says how many rows were undone, how many seconds a swap took, or that the data was replaced. For `reason`, see
    `ResetIntention`.
    """

    info: CloneInfo
    undone: UndoneRows | None = None
    swap_seconds: float | None = None
    reason: str = ""

    @property
    def way(self) -> ResetWay:
        if self.undone is not None:
            return ResetWay.UNDO
        return ResetWay.SWAP if self.swap_seconds is not None else ResetWay.REPLACE


W = TypeVar("W", ResetIntention, ResetClone)


def reset_plan(
    settings: Settings,
    host: Host,
    name: str,
    requested: str | None,
    *,
    accepts_older: bool = False,
    replaces: bool = False,
) -> ResetIntention:
    """Return the plan of `reset`; change nothing.

    `reset` may use a different way if users write to the clone after the plan was made.
    """
    info = ready(settings, host, name)
    require_lease(host, info)

    def replace_data() -> ResetIntention:
        from zsnapdb.jobs.clone import data_replacement

        planned = data_replacement.plan(settings, host, info, requested, accepts_older=accepts_older)
        return ResetIntention(info, replaces=planned)

    return _cheapest(
        settings,
        lambda: ResetIntention(info, undoes=row_reset.plan(settings, host, info)),
        lambda: ResetIntention(info, slot=next(_candidates(settings, host, info))),
        replace_data,
        replaces=replaces or requested is not None,
    )


def _cheapest(
    settings: Settings,
    undo: Callable[[], W],
    take_place: Callable[[], W],
    replace_data: Callable[[], W],
    *,
    replaces: bool,
    is_unchanged: Callable[[], bool] = lambda: True,
) -> W:
    """Return the result of the fastest possible way, and the reasons why faster ways are impossible."""
    reasons: list[str] = []
    cheaper = [] if replaces else [(undo, "")]
    if cheaper and is_offered(settings):
        cheaper.append((take_place, "no swap: "))
    for way, what in cheaper:
        try:
            return replace(way(), reason="; ".join(reasons))
        except (ZsnapdbError, OSError) as error:
            if what and not is_unchanged():
                # The error occurred after the exchange, so the user's clone is already on the new dataset.
                raise
            if isinstance(error, ZsnapdbError):
                reasons.append(f"{what}{told(error)}")
            else:
                reasons.append(f"{what}reading its files: {error.strerror}")
    return replace(replace_data(), reason="; ".join(reasons))


def reset(
    settings: Settings,
    host: Host,
    name: str,
    requested: str | None,
    events: Events,
    *,
    accepts_older: bool = False,
    replaces: bool = False,
    meant: CloneInfo | None = None,
) -> ResetClone:
    """Reset the clone to the requested snapshot set or, if `requested` is None, to its original data.

    The original data is the data of the snapshot set from which the clone was created, even after other resets. The
    fixed port, credentials and lease stay the same. Afterwards the clone's server is running on the new data. No user
    can reach the old data any more. The clone's commits stay. The fastest way whose result is certain is used. If
    `replaces` is set, the data is always replaced. For `accepts_older`, see `locate`.

    Raises:
        PreflightError: the clone's lease has ended (`require_lease`).
        UnknownNameError: another clone has the name now (`expected_clone.require`).
    """
    with locked_clone(settings, host, name) as info:
        if meant is not None:
            refuse_other(meant, info)
        require_lease(host, info)
        done = _reset(settings, host, info, requested, events, accepts_older=accepts_older, replaces=replaces)
        reset_baseline.note_reset(host, done.info, _reset_record(host.run_id(), done))
        if done.info.lease.heartbeat is not None:
            # Record a heartbeat, because the holder may have sent none while it waited for this reset. No sweep checks
            # the clone before its lock is free.
            with contextlib.suppress(PreflightError):
                clone_info.beat(host, done.info.name)
        return done


def _reset_record(run: str, done: ResetClone) -> RecordedReset:
    if done.undone is not None:
        undone = done.undone
        return RecordedReset(
            run_id=run, transactions=undone.transactions, rows=undone.rows, seconds=undone.seconds, reason=done.reason
        )
    return RecordedReset(run_id=run, seconds=done.swap_seconds, reason=done.reason)


def done_by_run(settings: Settings, host: Host, name: str) -> ResetClone | None:
    """Return the result of the reset by an earlier run with the same id.

    Return None if that run did not reset the clone, or if the data was replaced later.
    """
    info = ready(settings, host, name)
    state = reset_baseline.read(host, info)
    noted = state.reset if state is not None else None
    if noted is None or noted.run_id != host.run_id():
        return None
    if noted.rows is None or noted.transactions is None or noted.seconds is None:
        return ResetClone(info, swap_seconds=noted.seconds, reason=noted.reason)
    return ResetClone(info, UndoneRows(noted.transactions, noted.rows, noted.seconds), reason=noted.reason)


def _reset(
    settings: Settings,
    host: Host,
    info: CloneInfo,
    requested: str | None,
    events: Events,
    *,
    accepts_older: bool,
    replaces: bool,
) -> ResetClone:
    began = time.monotonic()

    def undo() -> ResetClone:
        undone = row_reset.undo_rows(settings, host, info)
        return ResetClone(kept_ports.open_to(settings, info, events), undone)

    def take_place() -> ResetClone:
        reset_baseline.forget(host, info.name)
        return ResetClone(swap(settings, host, info, events), swap_seconds=time.monotonic() - began)

    def replace_data() -> ResetClone:
        from zsnapdb.jobs.clone import data_replacement

        reset_baseline.forget(host, info.name)
        return ResetClone(
            data_replacement.replace_data(settings, host, info, requested, events, accepts_older=accepts_older)
        )

    return _cheapest(
        settings,
        undo,
        take_place,
        replace_data,
        replaces=replaces or requested is not None,
        is_unchanged=lambda: of_dataset(settings, host, info.name).guid == info.guid,
    )


_HINT = "its data is replaced instead"


def is_offered(settings: Settings) -> bool:
    """Return whether clones on this host have fixed ports. A swap is possible only with fixed ports."""
    return settings.clones.address is not None


def swap(settings: Settings, host: Host, info: CloneInfo, events: Events) -> CloneInfo:
    """Replace the user's clone with a pool clone that has the original data. The caller must hold the clone's lock.

    All sessions of the user are ended. Afterwards the user reaches the new data with the same port and password. Return
    the clone on its new dataset.

    Raises:
        PreflightError: a swap is impossible; the clone still has its old data, but its server may be stopped.
    """
    instance = Instance.of(settings, info.instance, events).on_host(host)
    password = credentials.read(info.client_file)
    if password is None:
        raise PreflightError("its password is lost", hint=_HINT, about=())
    reasons: list[str] = []
    for slot in _candidates(settings, host, info):
        with if_free(locks.name_of_clone(slot.name)) as is_free:
            if not is_free or not _still_fits(settings, host, info, slot):
                reasons.append(
                    "another command has just taken or replaced it" if is_free else "another command uses it"
                )
                continue
            # When this user can log in to the slot, no other user may get it from the pool. So first mark the slot as
            # unusable.
            if not datasets.set_together({slot.top: {POOL_PROPERTY: PoolMark.NOT_GOOD}}):
                raise PreflightError(
                    "this host cannot change two datasets in one transaction group", hint=_HINT, about=()
                )
            try:
                _make_ready(settings, instance, info, slot, password)
            except ZsnapdbError as error:
                pool.set_aside(instance, slot, error)
                reasons.append(told(error))
                continue
            return _exchange(settings, host, info, slot, events)
    raise _no_slot(info, reasons)


def _no_slot(info: CloneInfo, reasons: Iterable[str]) -> PreflightError:
    """Return the error that no clone of the pool can replace the clone. `reasons` are those of the waiting clones."""
    why = [*dict.fromkeys(reasons)] or ["none waits"]
    if is_held(locks.name_of_pool(info.instance)):
        why.append("the pool is being filled")
    return PreflightError("; ".join(["no clone of the pool can take its place", *why]), hint=_HINT, about=())


def _candidates(settings: Settings, host: Host, info: CloneInfo) -> Iterator[CloneInfo]:
    """Yield the pool clones that may replace the clone.

    Raises:
        PreflightError: no pool clone is suitable; the message contains the reasons.
    """
    slots = pool.slots_of(settings, Instance.of(settings, info.instance).on_host(host))
    objection = planning.clone_objection(_case(settings, info, slots))
    if objection is not None:
        raise PreflightError(objection, hint=_HINT, about=())
    found, reasons = False, []
    for slot in slots:
        reason = _objection(settings, host, info, slot)
        if reason is None:
            found = True
            yield slot
        elif slot.waits:
            reasons.append(reason)
    if not found:
        raise _no_slot(info, reasons)


def _case(settings: Settings, info: CloneInfo, slots: Sequence[CloneInfo]) -> SwapCase:
    instance, configured = settings.instance.get(info.instance), settings.clones.address
    return SwapCase(
        has_pool=instance is not None and instance.pool is not None,
        address=info.kept_port,
        is_listened_at=configured is not None and info.kept_port in haproxy_socket.routes_or_none(configured),
        is_of_set=bool(info.set_name) or info.follows is not None,
        has_commits=bool(info.branches) or bool(snapshots.below(info.top, ())),
        waiting_bytes=sum(slot.own_bytes for slot in slots if slot.pool is PoolMark.REPLACED),
        own_bytes=info.own_bytes,
        quota=info.quota,
    )


def _objection(settings: Settings, host: Host, info: CloneInfo, slot: CloneInfo) -> str | None:
    rules = masking_requirement.rules_of_clone(settings, info)
    # Skip a slot with too much data for the quota: setting the quota would fail, and the pool would lose the slot.
    wish, now = (SlotWish(info.original_key, rules, info.profile, info.bind_address, info.written_quota), host.latest())
    instance = Instance.of(settings, info.instance).on_host(host)
    return objection(pool.as_slot(instance, slot, now), wish, now)


def _still_fits(settings: Settings, host: Host, info: CloneInfo, slot: CloneInfo) -> bool:
    try:
        return _objection(settings, host, info, of_dataset(settings, host, slot.name)) is None
    except UnknownNameError:
        return False


def _make_ready(settings: Settings, instance: Instance, info: CloneInfo, slot: CloneInfo, password: SecretStr) -> None:
    pool.give_login(settings, instance, slot, info.rights, password)
    if info.written_quota != slot.quota:
        datasets.set_properties(slot.current, {"quota": str(info.written_quota or "none")})
    if info.lease.heartbeat is not None:
        clone_info.beat(instance.host, slot.name)


def _exchange(settings: Settings, host: Host, info: CloneInfo, slot: CloneInfo, events: Events) -> CloneInfo:
    with locks.names_and_ports(), uninterrupted(events.warn):
        # From now on no user can read the old data, and login files in the old folder are no longer valid.
        info.process.kill()
        changed = datasets.set_together({slot.top: _of_user(host, info), info.top: _of_nobody(slot)})
        if not changed:
            raise PreflightError("the properties of both clones could not be changed", hint=_HINT, about=())
        taken = kept_ports.route_port(settings, of_dataset(settings, host, slot.name), events)
    clone_info.forget_heartbeat(host, info.name)
    return taken


def _of_user(host: Host, info: CloneInfo) -> dict[str, str]:
    now = replace(
        info, pool=PoolMark.HANDED_OUT, requested=requested_text(info.original_request), used=stamp(host.latest())
    )
    return property_fields.changed_by("swap", now, PropertyTransition.TAKEN, PropertyTransition.EXCHANGED)


def _of_nobody(slot: CloneInfo) -> dict[str, str]:
    """Return the new properties of the clone that a swap replaced: no user, and the label of the pool clone."""
    now = replace(slot, pool=PoolMark.REPLACED, kept_port=None, lease=replace(slot.lease, heartbeat=None))
    return property_fields.changed_by("swap", now, PropertyTransition.EXCHANGED)

"""Limits the space of clones. Each clone has a quota, and all clones together must leave `clones.free_floor` free.

A quota limits the space of a dataset and everything below it. This includes snapshots, but not blocks that are shared
with the source (zfsprops(7), quota). So the quota of a clone limits all writes of its users. The space of a set is
checked and reserved before the set is received. It counts towards the limit of the subject for whom the set is
received. While the set is being received, its anchor has a reservation (zfsprops(7), reservation). So other processes
see only the remaining free space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zsnapdb.base.domain_types import PROPERTY, pool_of
from zsnapdb.base.errors import CommandError, PreflightError, UsageError
from zsnapdb.base.quantities import size
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import cached_sets, clone_info, expected_clone, locks
from zsnapdb.jobs.clone.catalogue import homes, of_dataset
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.sources import CloneSource, RemoteBackup
from zsnapdb.jobs.dataset_copies.properties import HALF_MADE, CopyPhase
from zsnapdb.planning.backup.send_form import SendForm, form_of
from zsnapdb.planning.clone import space_limits as planning
from zsnapdb.planning.clone.space_limits import LEAST, clone_quota, form_quota, home_quota
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Preflight
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import number_in

if TYPE_CHECKING:
    from zsnapdb.repository.manifest import Manifest

_GUARD = f"{PROPERTY}:floor-quota"
"""On the parent dataset of all clones: the quota that zsnapdb set on this dataset.

If the present quota differs from this value, an administrator set it.
"""
LEAST_QUOTA = LEAST
"""The minimum quota of a clone in bytes. No server runs with less space."""


@dataclass(frozen=True)
class RoomObjection:
    """A reason why clones might occupy space that production needs, with a hint on how to prevent this."""

    text: str
    hint: str


def objections(settings: Settings, known: Iterable[CloneInfo], instance: str) -> list[RoomObjection]:
    """Return the problems with the space of the instance's clones: a missing quota, or too little free pool space.

    `known` contains the clones on this host.
    """
    found, own = [], [info for info in known if info.instance == instance]
    for info in own:
        # Ignore a clone that is still being created, because it gets its quota together with its first volume.
        if settings.clones.quota and not info.quota and info.phase not in HALF_MADE:
            hint = f"run `zsnapdb clone extend {info.label} --quota {settings.clones.quota}`"
            found.append(RoomObjection(f"clone {info.label} has no quota: it may write until its pool is full", hint))
    pools = {pool_of(info.top) for info in own}
    return found + [room.objection for room in _rooms(settings, pools) if room.objection is not None]


@dataclass(frozen=True)
class PoolRoom:
    """A pool, and an objection if its free space is less than `clones.free_floor`, else None."""

    pool: str
    objection: RoomObjection | None


def pools_of_clones(settings: Settings) -> list[PoolRoom]:
    """Return the pools of this host that may contain clones.

    Raises:
        CommandError: ZFS failed.
        PreflightError: ZFS printed no number.
    """
    return _rooms(settings, {pool_of(home) for home in homes(settings)})


def _rooms(settings: Settings, pools: Iterable[str]) -> list[PoolRoom]:
    found, floor = [], settings.clones.free_floor
    hint = (
        "destroy clones (`zsnapdb clone list`) or free space; `zfs set reservation=SIZE DATASET` on the outermost"
        " dataset of the server gives it space that nobody else can take"
    )
    for pool in sorted(pools):
        free = datasets.available(pool)
        text = f"the pool {pool} has {size(free)} free, less than clones.free_floor, {size(floor)}"
        found.append(PoolRoom(pool, RoomObjection(text, hint) if free < floor else None))
    return found


def shortage(settings: Settings, pool: str) -> str:
    """Return a message if the pool has less free space than `clones.free_floor`; "" if enough is free."""
    (found,) = _rooms(settings, [pool])
    return found.objection.text if found.objection is not None else ""


def available(info: CloneInfo) -> int:
    """Return the free space for the clone in bytes. See `available_below`."""
    return available_below(info.top.rpartition("/")[0])


def available_below(home: str) -> int:
    """Return the free bytes of the pool.

    If an administrator set a quota on the parent dataset of clones, return the free bytes within that quota. A quota
    that zsnapdb itself set is ignored: it may be outdated, and already excludes `clones.free_floor`.
    """
    if not datasets.exists(home):
        return datasets.available(pool_of(home))
    seen = datasets.properties(home, ["quota", _GUARD])
    is_limited = seen["quota"].value != "0" and seen["quota"].value != seen[_GUARD].value
    return datasets.available(home if is_limited else pool_of(home))


def new_clone_quota(settings: Settings, free: int, wanted: int | None = None) -> int:
    """Return the quota of a new clone in bytes; 0 if no quota is configured.

    `free` is the free space of the pool in bytes. `wanted` is the requested quota, if any.

    Raises:
        UsageError: the quota is too small for a server.
    """
    if wanted is not None and wanted < LEAST:
        raise UsageError(
            f"the quota of a clone must be at least {size(LEAST)}",
            hint="name a larger quota",
        )
    return clone_quota(settings.clones.quota if wanted is None else wanted, free, settings.clones.free_floor)


def of_other_data(settings: Settings, info: CloneInfo, *, keeps_data: bool) -> int:
    """Return the quota in bytes for new data of the clone; 0 if no quota is configured.

    The total limit of the clone stays the same, and includes the data of its commits. `keeps_data` is set if the
    present data is kept, because it has commits.

    Raises:
        PreflightError: the remaining quota is less than a server needs.
    """
    if not info.quota:
        return new_clone_quota(settings, datasets.available(pool_of(info.top)))
    left = info.quota - info.own_bytes if keeps_data else info.written_quota
    if left < LEAST:
        raise PreflightError(
            f"the commits of clone {info.label} use {size(info.own_bytes)} of its quota of {size(info.quota)}, and"
            f" other data needs {size(LEAST)}",
            hint=f"`zsnapdb clone extend {info.label} --quota SIZE` raises the quota",
            about=(info.owner,),
        )
    return left


def of_prepared_form(settings: Settings, free: int) -> int:
    """Return the quota in bytes of a prepared set that is created for a clone.

    `free` is the free space of the pool in bytes.
    """
    return form_quota(settings.clones.quota, free, settings.clones.free_floor)


@dataclass(frozen=True)
class PoolSpace:
    """The space and quota of all clones in a pool, and the free space of the pool, in bytes.

    `home` is the parent dataset of these clones. `quota` is 0 if there is none. `is_administrators` is set if an
    administrator set the quota.
    """

    home: str
    used: int
    quota: int
    is_administrators: bool
    free: int


def read_pool_space(home: str) -> PoolSpace:
    """Return the space of the clones below the dataset `home`; all values are 0 if the dataset does not exist yet.

    A single `zfs` command reads all values.
    """
    pool = pool_of(home)
    if not datasets.exists(home):
        return PoolSpace(home, 0, 0, is_administrators=False, free=datasets.available(pool))
    both = datasets.properties_of([home, pool], ["used", "quota", "available", _GUARD])
    seen, free = both[home], both[pool]["available"].value
    used, quota = (number_in(seen[key].value, ["zfs", "get", key, home]) for key in ("used", "quota"))
    is_administrators = quota != 0 and seen[_GUARD].value != str(quota)
    return PoolSpace(home, used, quota, is_administrators, number_in(free, ["zfs", "get", "available", pool]))


def guard(settings: Settings, reserved: int = 0, known: PoolSpace | None = None) -> None:
    """Set the common quota of all clones, so that they leave `clones.free_floor` free in the pool.

    `reserved` bytes of the free space are for a set that is being created next to the clones. The function is called
    whenever a clone is created and whenever `reap` runs. An administrator's quota is not changed. `known` is the
    present state of one parent dataset of clones, if the caller has just read it.
    """
    for home in homes(settings):
        seen = known if known is not None and known.home == home else read_pool_space(home)
        if seen.is_administrators:
            continue
        wanted = home_quota(seen.used, seen.free - reserved, settings.clones.free_floor, seen.quota)
        # ZFS refuses a quota that writes in progress already exceed (zfsprops(7)). The next call tries again.
        with contextlib.suppress(CommandError, PreflightError):
            datasets.set_properties(home, {"quota": str(wanted), _GUARD: str(wanted)})


def extension(
    settings: Settings, host: Host, info: CloneInfo, quota: int
) -> tuple[tuple[str, ...], Callable[[], CloneInfo]]:
    """Return the steps that set the clone's quota, as text, and a function that executes them. `quota` is in bytes.

    Raises:
        UsageError: the clone's own data is already larger than the quota.
        PreflightError: the pool has too little free space.
    """
    if quota < info.own_bytes:
        raise UsageError(
            f"clone {info.label} already uses {size(info.own_bytes)}, more than {size(quota)}",
            hint="name a larger quota",
        )
    free, floor = datasets.available(pool_of(info.top)), settings.clones.free_floor
    if quota - info.own_bytes > free - floor:
        raise PreflightError(
            f"the pool has {size(free)} free and must keep {size(floor)}, so clone {info.label} cannot have a quota"
            f" of {size(quota)}",
            hint="free space in the pool, or lower clones.free_floor",
        )

    def grow() -> CloneInfo:
        datasets.set_properties(info.current, {"quota": str(quota - info.kept_bytes)})
        guard(settings)
        return of_dataset(settings, host, info.name)

    step = f"let the clone have {size(quota)} of its own instead of {size(info.quota) if info.quota else 'any size'}"
    return () if quota == info.quota else (step,), grow


KEPT = {"reservation": "none"}
"""The properties to set on a complete set. The set now occupies its space, so the reservation is removed.

The quota stays.
"""
_SIZES = ("logicalreferenced", "referenced")


def needed_for(source: RemoteBackup | RestorePlan) -> int:
    """Return the maximum size in bytes of the set that is created from the given backup or by the given plan."""
    if isinstance(source, RestorePlan):
        plain = sum(step.plain_bytes for step in source.steps if isinstance(step, Preflight))
        return planning.received_quota(plain)
    return planning.received_quota(sum(manifest.plain_size for manifest in source.chain), _ratio(source.chain))


def _ratio(chain: Iterable[Manifest]) -> float:
    """Return the present compression ratio of the volumes if the streams are not compressed; else 1."""
    volumes = [volume for manifest in chain for volume in manifest.volumes]
    if not volumes or any(form_of(volume.send_flags) is not SendForm.PLAIN for volume in volumes):
        return 1.0
    ratios = []
    for dataset in {volume.dataset for volume in volumes}:
        if not datasets.exists(dataset):
            return 1.0
        seen = datasets.properties(dataset, _SIZES)
        logical, allocated = (number_in(seen[key].value, ["zfs", "get", key, dataset]) for key in _SIZES)
        ratios.append(logical / allocated if allocated else 1.0)
    return min(ratios)


def refuse_received(settings: Settings, home: str, name: str, needed: int) -> None:
    """Raise PreflightError if a set of `needed` bytes may not be received now; change nothing.

    The pool must still have `clones.free_floor` free after the set is received. The limits are
    `clones.received_per_owner` for a subject, `clones.received_total` for all subjects, and `clones.receives` for the
    number of simultaneous transfers.
    """
    above = cached_sets.anchor_of(home, cached_sets.RECEIVED, name).rpartition("/")[0]
    free = datasets.available(pool_of(above))
    if datasets.exists(above):
        free = min(free, datasets.available(above))
    reason = planning.objection_to_set(needed, free, settings.clones.free_floor)
    if reason is not None:
        raise PreflightError(
            f"{name} cannot be received: {reason}",
            hint="destroy clones that you do not need (`zsnapdb clone list`), or use a set that is on this host",
            about=(),
        )
    owner = expected_clone.current_causer()
    if not owner:
        return
    limits, known = settings.clones, cached_sets.known_sets(settings, cached_sets.RECEIVED).copies
    others = [one for one in known if one.caused_by and one.name != name]
    mine = {one.name: one.most_bytes for one in others if one.caused_by.casefold() == owner.casefold()}
    reason = planning.objection_to_sets_of(owner, mine, needed, limits.received_per_owner)
    if reason is not None:
        raise PreflightError(
            f"{name} cannot be received: {reason}",
            hint="destroy your clones of these sets: a set is removed with its last clone",
            about=(owner,),
        )
    reason = planning.objection_to_sets_of_all(
        sum(one.most_bytes for one in others) + needed,
        limits.received_total,
        sum(one.phase is CopyPhase.MAKING for one in others),
        limits.receives,
    )
    if reason is not None:
        raise PreflightError(f"{name} cannot be received: {reason}", hint="try again later", about=())


def refuse_source(settings: Settings, home: str, source: CloneSource | RemoteBackup | RestorePlan | None) -> None:
    """If the source must be received or created by replay, raise the errors of `refuse_received`."""
    if isinstance(source, RemoteBackup):
        name = cached_sets.received_name(source.manifest.backup_id, source.manifest.guids())
        refuse_received(settings, home, name, needed_for(source))
    elif isinstance(source, RestorePlan) and (
        cached_sets.find_reached(home, source.instance, source.point_identity) is None
    ):
        refuse_received(settings, home, source.restore_id, needed_for(source))


def reserve_set_space(settings: Settings, home: str, name: str, facts: Mapping[str, str], needed: int) -> None:
    """Create the anchor of the set with the properties `facts`, a reservation and a quota of `needed` bytes.

    Raises the errors of `refuse_received`; in that case nothing was created.
    """
    owner = expected_clone.current_causer()
    caused = {clone_info.CAUSER_PROPERTY: owner} if owner else {}
    limits = {"quota": str(needed), "reservation": str(needed)}
    # The datasets of clones are created under the same lock. So every process sees all reservations, and no space is
    # reserved twice.
    with locks.names_and_ports():
        refuse_received(settings, home, name, needed)
        anchor = cached_sets.anchor_of(home, cached_sets.RECEIVED, name)
        datasets.create(anchor, {**facts, **caused, **limits})

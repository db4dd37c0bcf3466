"""How much clones may write: each has a quota, and all together leave production the space of `clones.free_floor`.

A quota counts what a dataset and all below it occupy, snapshots too, and not what a clone shares with its source
(zfsprops(7), quota). So that of a clone bounds what its users can write, whatever they do in its server.

Room for a set is judged and reserved before it is received, and counted to who caused it. ZFS keeps the promise: the
anchor of the set has a reservation as long as the set is being received, so what is free in the pool has it taken off
already when the next process looks (zfsprops(7), reservation).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zsnapdb.base.errors import CommandError, PreflightError, UsageError
from zsnapdb.base.model import PROPERTY, pool_of
from zsnapdb.base.quantities import size
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import locks, meant, properties, reusable_sets
from zsnapdb.jobs.clone.catalogue import homes, of_dataset
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.sources import CloneSource, RemoteBackup
from zsnapdb.jobs.copies.properties import HALF_MADE, CopyPhase
from zsnapdb.planning.backup.send_form import SendForm, form_of
from zsnapdb.planning.clone import room as planning
from zsnapdb.planning.clone.room import LEAST, clone_quota, form_quota, home_quota
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Preflight
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import number_in

if TYPE_CHECKING:
    from zsnapdb.repository.manifest import Manifest

_GUARD = f"{PROPERTY}:floor-quota"
"""On the home of all clones: the quota that zsnapdb has set there. Another quota there is the administrator's."""

LEAST_QUOTA = LEAST
"""With less of its own, in bytes, no clone can have a server."""


@dataclass(frozen=True)
class RoomObjection:
    """Something by which clones may take production's space, and what mends it."""

    text: str
    hint: str


def objections(settings: Settings, known: Iterable[CloneInfo], instance: str) -> list[RoomObjection]:
    """Return what is wrong with the space of the instance's clones: no quota, or too little free in their pool.

    `known` are the clones of this host.
    """
    found, own = [], [info for info in known if info.instance == instance]
    for info in own:
        # One that is being made gets its quota with its first volume.
        if settings.clones.quota and not info.quota and info.phase not in HALF_MADE:
            hint = f"run `zsnapdb clone extend {info.label} --quota {settings.clones.quota}`"
            found.append(RoomObjection(f"clone {info.label} has no quota: it may write until its pool is full", hint))
    pools = {pool_of(info.top) for info in own}
    return found + [room.objection for room in _rooms(settings, pools) if room.objection is not None]


@dataclass(frozen=True)
class PoolRoom:
    """A pool, and what is wrong with its free space: less than `clones.free_floor` (None: nothing)."""

    pool: str
    objection: RoomObjection | None


def pools_of_clones(settings: Settings) -> list[PoolRoom]:
    """Return the pools of this host in which clones may live. CommandError or PreflightError if ZFS does not tell."""
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
    """Return that the pool has less free than `clones.free_floor`; "" if it has as much."""
    (found,) = _rooms(settings, [pool])
    return found.objection.text if found.objection is not None else ""


def available(info: CloneInfo) -> int:
    """Return the bytes that `available_below` says of the home of the clone."""
    return available_below(info.top.rpartition("/")[0])


def available_below(home: str) -> int:
    """Return the free bytes of the pool, or what an administrator's quota on this home of all clones leaves.

    The quota that zsnapdb sets there does not count: it is that of an earlier moment, and has the floor in it.
    """
    if not datasets.exists(home):
        return datasets.available(pool_of(home))
    seen = datasets.properties(home, ["quota", _GUARD])
    is_limited = seen["quota"].value != "0" and seen["quota"].value != seen[_GUARD].value
    return datasets.available(home if is_limited else pool_of(home))


def of_new_clone(settings: Settings, free: int, wanted: int | None = None) -> int:
    """Return the quota of a new clone in bytes (0: none is configured). `free`: the free bytes of its pool.

    `wanted` is what its request names (None: nothing). UsageError if no server starts with as little.
    """
    if wanted is not None and wanted < LEAST:
        raise UsageError(f"a clone needs {size(LEAST)} of its own, not {size(wanted)}", hint="name a larger quota")
    return clone_quota(settings.clones.quota if wanted is None else wanted, free, settings.clones.free_floor)


def of_other_data(settings: Settings, info: CloneInfo, *, keeps_data: bool) -> int:
    """Return the quota in bytes of other data that the clone gets; 0: none is configured.

    It may have as much of its own then as before, with what its commits keep. `keeps_data`: the data that it has now
    stays, for its commits. PreflightError if that leaves less than a server needs.
    """
    if not info.quota:
        return of_new_clone(settings, datasets.available(pool_of(info.top)))
    left = info.quota - info.own_bytes if keeps_data else info.written_quota
    if left < LEAST:
        raise PreflightError(
            f"the commits of clone {info.label} keep {size(info.own_bytes)} of the {size(info.quota)} that it may have"
            f" of its own, and other data needs {size(LEAST)}",
            hint=f"`zsnapdb clone extend {info.label} --quota SIZE` gives it more",
            about=(info.owner,),
        )
    return left


def of_prepared_form(settings: Settings, free: int) -> int:
    """Return the quota in bytes of a prepared form that is made for a clone. `free`: the free bytes of its pool."""
    return form_quota(settings.clones.quota, free, settings.clones.free_floor)


@dataclass(frozen=True)
class HomeRoom:
    """What the home of all clones of a pool has, in bytes, and what is free in the pool.

    `quota` 0: it has none. `is_administrators`: zsnapdb did not set that quota.
    """

    home: str
    used: int
    quota: int
    is_administrators: bool
    free: int


def look(home: str) -> HomeRoom:
    """Return what this home of all clones has, or will have when it is made. One command asks."""
    pool = pool_of(home)
    if not datasets.exists(home):
        return HomeRoom(home, 0, 0, is_administrators=False, free=datasets.available(pool))
    both = datasets.properties_of([home, pool], ["used", "quota", "available", _GUARD])
    seen, free = both[home], both[pool]["available"].value
    used, quota = (number_in(seen[key].value, ["zfs", "get", key, home]) for key in ("used", "quota"))
    is_administrators = quota != 0 and seen[_GUARD].value != str(quota)
    return HomeRoom(home, used, quota, is_administrators, number_in(free, ["zfs", "get", "available", pool]))


def guard(settings: Settings, reserved: int = 0, known: HomeRoom | None = None) -> None:
    """Limit all clones together, so that they leave the pool `clones.free_floor`, by what is free now.

    `reserved` bytes of that are for what is made beside them just now. Called when clones are made and by each reap. A
    quota that an administrator has set there stays. `known`: what one home has, if the caller has just read it.
    """
    for home in homes(settings):
        seen = known if known is not None and known.home == home else look(home)
        if seen.is_administrators:
            continue
        wanted = home_quota(seen.used, seen.free - reserved, settings.clones.free_floor)
        # What is written at this moment may be more than that already (zfsprops(7)). The next call tries again.
        with contextlib.suppress(CommandError, PreflightError):
            datasets.set_properties(home, {"quota": str(wanted), _GUARD: str(wanted)})


def extension(
    settings: Settings, host: Host, info: CloneInfo, quota: int
) -> tuple[tuple[str, ...], Callable[[], CloneInfo]]:
    """Return the steps that give the clone this quota, in bytes, and what takes them.

    UsageError if the clone has more of its own already, PreflightError if the pool has not as much free.
    """
    if quota < info.own_bytes:
        raise UsageError(
            f"clone {info.label} has {size(info.own_bytes)} of its own, which is more than {size(quota)}",
            hint="name a larger quota",
        )
    free, floor = datasets.available(pool_of(info.top)), settings.clones.free_floor
    if quota - info.own_bytes > free - floor:
        raise PreflightError(
            f"the pool has {size(free)} free and must keep {size(floor)}, so clone {info.label} cannot have"
            f" {size(quota)} of its own",
            hint="free space in the pool, or lower clones.free_floor",
        )

    def grow() -> CloneInfo:
        datasets.set_properties(info.current, {"quota": str(quota - info.kept_bytes)})
        guard(settings)
        return of_dataset(settings, host, info.name)

    step = f"let the clone have {size(quota)} of its own instead of {size(info.quota) if info.quota else 'any size'}"
    return () if quota == info.quota else (step,), grow


KEPT = {"reservation": "none"}
"""What a complete set gets: it has its bytes, and is promised no more. Its quota stays."""
_SIZES = ("logicalreferenced", "referenced")


def needed_for(source: RemoteBackup | RestorePlan) -> int:
    """Return how many bytes the set may occupy that is made of these backups, or by this plan."""
    if isinstance(source, RestorePlan):
        plain = sum(step.plain_bytes for step in source.steps if isinstance(step, Preflight))
        return planning.received_quota(plain)
    return planning.received_quota(sum(manifest.plain_size for manifest in source.chain), _ratio(source.chain))


def _ratio(chain: Iterable[Manifest]) -> float:
    """Return how much the pool compresses the volumes now, if the streams are not compressed already, else 1."""
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


def refuse_received(settings: Settings, home: str, set_id: str, needed: int) -> None:
    """Raise PreflightError if a set of so many bytes may not be received now; change nothing.

    Nobody may take from the pool what `clones.free_floor` keeps, a subject no more than `clones.received_per_owner`,
    and all subjects together no more than `clones.received_total`, by at most `clones.receives` at once.
    """
    above = reusable_sets.anchor_of(home, reusable_sets.RECEIVED, set_id).rpartition("/")[0]
    free = datasets.available(pool_of(above))
    if datasets.exists(above):
        free = min(free, datasets.available(above))
    reason = planning.objection_to_set(needed, free, settings.clones.free_floor)
    if reason is not None:
        raise PreflightError(
            f"{set_id} is not received: {reason}",
            hint="destroy clones that you do not need (`zsnapdb clone list`), or use a set that is on this host",
            about=(),
        )
    owner = meant.current_causer()
    if not owner:
        return
    limits, known = settings.clones, reusable_sets.known(settings, reusable_sets.RECEIVED).copies
    others = [one for one in known if one.caused_by and one.set_id != set_id]
    mine = {one.set_id: one.most_bytes for one in others if one.caused_by.casefold() == owner.casefold()}
    reason = planning.objection_to_sets_of(owner, mine, needed, limits.received_per_owner)
    if reason is not None:
        raise PreflightError(
            f"{set_id} is not received: {reason}",
            hint="destroy your clones of these sets: a set goes with its last clone",
            about=(owner,),
        )
    reason = planning.objection_to_sets_of_all(
        sum(one.most_bytes for one in others) + needed,
        limits.received_total,
        sum(one.phase is CopyPhase.MAKING for one in others),
        limits.receives,
    )
    if reason is not None:
        raise PreflightError(f"{set_id} is not received: {reason}", hint="try again later", about=())


def refuse_source(settings: Settings, home: str, source: CloneSource | RemoteBackup | RestorePlan | None) -> None:
    """Raise PreflightError if the source must be received or replayed first, and may not be; see `refuse`."""
    if isinstance(source, RemoteBackup):
        refuse_received(settings, home, source.manifest.backup_id, needed_for(source))
    elif isinstance(source, RestorePlan) and (
        reusable_sets.find_reached(settings, source.instance, source.point_identity) is None
    ):
        refuse_received(settings, home, source.restore_id, needed_for(source))


def promise(settings: Settings, home: str, set_id: str, facts: Mapping[str, str], needed: int) -> None:
    """Make the anchor of the set, with these properties: its room is reserved, and it can occupy no more.

    The errors are those of `refuse`; then nothing was made.
    """
    owner = meant.current_causer()
    caused = {properties.CAUSER_PROPERTY: owner} if owner else {}
    limits = {"quota": str(needed), "reservation": str(needed)}
    # Under this lock clones are made too: who looks sees every promise, and no two promise the same bytes.
    with locks.names_and_ports():
        refuse_received(settings, home, set_id, needed)
        anchor = reusable_sets.anchor_of(home, reusable_sets.RECEIVED, set_id)
        datasets.create(anchor, {**facts, **caused, **limits})

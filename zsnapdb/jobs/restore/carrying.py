"""Gives the datasets in production's place what the site had set on production itself: properties and rights.

The replaced datasets keep theirs, so whoever puts them back has all of it. Everything is read from them at that moment,
so each call can be repeated after an interruption. Only the room that both cannot have, a reservation, is taken from
the replaced dataset: a property of ours says how much it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from zsnapdb.base.errors import CommandTimeout, ZsnapdbError
from zsnapdb.base.model import PROPERTY
from zsnapdb.base.patterns import printable
from zsnapdb.planning.dataset_properties import (
    GUARANTEES,
    SPACE,
    PropertyClass,
    names_of,
    removed_names,
)
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.handover_steps import Promote, PromotePart
from zsnapdb.planning.restore.steps import CloneSnapshot
from zsnapdb.zfs import datasets, own_properties, rights
from zsnapdb.zfs.rights import Right

RELEASED = {name: f"{PROPERTY}:replaced-{name}" for name in GUARANTEES}
"""On a replaced dataset: the room that was reserved for it, in bytes, before the dataset in its place got that."""
_NOTHING = ("0", "none")
_SWITCHES = ("readonly", *datasets.SAFE_MOUNT)

Warn = Callable[[str], None]


@dataclass(frozen=True)
class OwnSettings:
    """What the site has set on a dataset: the properties that are local or received there, and the delegated rights."""

    properties: Mapping[str, str]
    rights: frozenset[Right]

    @classmethod
    def read(cls, dataset: str) -> OwnSettings:
        """Read them from production, or from the dataset that it has become."""
        values = dict(own_properties.own_values([dataset])[dataset])
        released = datasets.properties(dataset, list(RELEASED.values()))
        for name, key in RELEASED.items():
            if released[key].is_local and released[key].value.isdigit() and values.get(name, "0") in _NOTHING:
                values[name] = released[key].value
        return cls(values, rights.rights_on(dataset))


def notes(step: Promote, clones: Sequence[CloneSnapshot]) -> tuple[str, ...]:
    """Return what a plan says of the settings of production: what its replacement gets, and what it cannot get."""
    olds = [part for part in step.parts if part.old is not None]
    if not olds:
        return ()
    said = []
    for part in olds:
        seen = OwnSettings.read(part.place)
        names = [*sorted(seen.properties), *(["rights (zfs allow)"] if seen.rights else [])]
        if names:
            said.append(f"the restored {part.place} gets what the site has set there: {', '.join(names)}")
        said += _too_large(part, seen, [clone for clone in clones if clone.role == part.role])
    where = "up to the point go to the restored datasets, later ones stay on" if clones else "stay on"
    keeps = "the replaced datasets keep their properties and rights; a reservation moves to the restored ones"
    return (*said, f"snapshots of production {where} the replaced datasets", keeps)


def _too_large(part: PromotePart, seen: OwnSettings, clones: Sequence[CloneSnapshot]) -> list[str]:
    """Say that the state at the point is larger than a limit which the site has set since."""
    limit = seen.properties.get("refquota", "0")
    if not clones or not limit.isdigit() or int(limit) == 0:
        return []
    size = int(datasets.properties(clones[0].origin, ["referenced"])["referenced"].value)
    if size <= int(limit):
        return []
    return [f"refquota={limit} of {part.place} cannot be given to the restored one, which refers to {size} bytes"]


def behaviour_of(part: PromotePart, *, is_foreign: bool) -> dict[str, str]:
    """Return the values that the dataset in its place still needs before a server starts, to behave as the old one.

    `is_foreign`: others may have written the files of the place, so no set-user-id program and no device file works
    there.
    """
    if part.old is None or not datasets.exists(part.old):
        return {}
    known = own_properties.known_names(part.old)
    switches = [name for name in _SWITCHES if not (is_foreign and name in datasets.SAFE_MOUNT)]
    names = [name for name in (*names_of(PropertyClass.DATA, "filesystem"), *switches) if name in known]
    seen = datasets.properties_of([part.old, part.place], names)
    wanted = {name: each.value for name, each in seen[part.old].items() if each.value != datasets.UNSET}
    return {name: value for name, value in wanted.items() if seen[part.place][name].value != value}


def give_defaults(parts: Sequence[PromotePart]) -> None:
    """Let the places inherit their mount points, outer ones first, and have the default of canmount, as the old ones.

    None is mounted: ZFS unmounts for both. A place whose mount point would be another one then keeps its own.
    """
    for part in parts:
        if part.old is None or not datasets.exists(part.old):
            continue
        if "mountpoint" not in own_properties.own_names([part.old])[part.old]:
            datasets.inherit([part.place], ["mountpoint"])
            if datasets.properties(part.place, ["mountpoint"])["mountpoint"].value != part.mountpoint_property:
                datasets.set_properties(part.place, {"mountpoint": part.mountpoint_property})
        if part.old_canmount_is_set is False:
            datasets.reset(part.place, "canmount")


def carry(part: PromotePart, warn: Warn, *, is_foreign: bool) -> None:
    """Give the dataset in its place exactly what the site had set on the old one. A server may run from it.

    What cannot be given is warned of, and the server goes on. `is_foreign` is as for `behaviour_of`. If the old dataset
    is gone, only other snapshot programs may work on the place again.
    """
    if part.old is None or not datasets.exists(part.old):
        datasets.inherit([part.place], list(NO_SNAPSHOTS))
        return
    wanted = OwnSettings.read(part.old)
    have = own_properties.own_values([part.place])[part.place]
    changed = {name: value for name, value in wanted.properties.items() if have.get(name) != value}
    gone = removed_names(have, {*wanted.properties, *(datasets.SAFE_MOUNT if is_foreign else ())})
    _set_all(part.place, {name: value for name, value in changed.items() if name not in SPACE}, warn)
    for name in gone:
        if name not in SPACE:
            drop = partial(datasets.inherit, [part.place], [name])
            _try(f"{name} of {part.place} could not be removed", drop, warn)
    for name in SPACE:
        if name in changed or name in gone:
            _give_room(part, name, changed.get(name, "none"), warn)
    _give_rights(part.place, wanted.rights, warn)


def _set_all(place: str, values: Mapping[str, str], warn: Warn) -> None:
    try:
        datasets.set_properties(place, values)
    except CommandTimeout:
        raise
    except ZsnapdbError:
        # One of them cannot be set. The others can.
        for name, value in values.items():
            _set(place, name, value, warn)


def _set(place: str, name: str, value: str, warn: Warn) -> bool:
    text = f"{place} could not get {name}={printable(value[:200])} of the dataset that it replaced"
    return _try(text, partial(datasets.set_properties, place, {name: value}), warn)


def _try(what: str, change: Callable[[], None], warn: Warn) -> bool:
    try:
        change()
    except CommandTimeout:
        raise
    except ZsnapdbError as error:
        warn(f"{what}: {error.message}")
        return False
    return True


def _give_room(part: PromotePart, name: str, value: str, warn: Warn) -> None:
    """Set a limit or a guarantee. A guarantee moves: the old dataset has it until its place does, if both fit."""
    assert part.old is not None, "the caller has read it"
    if name not in GUARANTEES or value in _NOTHING:
        _set(part.place, name, value, warn)
        return
    try:
        datasets.set_properties(part.place, {name: value})
    except CommandTimeout:
        raise
    except ZsnapdbError:
        _release(part.old, name)
        _set(part.place, name, value, warn)
    _release(part.old, name)


def _release(old: str, name: str) -> None:
    """Take the guarantee from the old dataset, which remembers how much it was."""
    seen = datasets.properties(old, [name])[name]
    if seen.value not in _NOTHING:
        datasets.set_properties(old, {RELEASED[name]: seen.value})
        datasets.set_properties(old, {name: "none"})


def _give_rights(place: str, wanted: Collection[Right], warn: Warn) -> None:
    have = rights.rights_on(place)
    missing, foreign = set(wanted) - have, have - set(wanted)
    if missing:
        _try(f"rights (zfs allow) could not be given on {place}", partial(rights.give, place, missing), warn)
    if foreign:
        _try(f"rights (zfs allow) could not be taken on {place}", partial(rights.take, place, foreign), warn)

"""Reads the snapshots of an instance's sets on this host, and no more of them than the question is about."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.jobs.base import known_local
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    LOCAL,
    MARKS,
    STATE_PROPERTY,
    set_named,
    snapshot_name,
)
from zsnapdb.planning import order
from zsnapdb.zfs import snapshots
from zsnapdb.zfs.snapshot_files import SnapshotNames, named
from zsnapdb.zfs.snapshots import OwnedSnapshot

_MOST_BY_NAME = 1000
"""So many snapshots at most are asked for by their names: beyond it one list of all is as cheap."""


@dataclass(frozen=True)
class SetsHere:
    """The snapshots on some datasets that have a name of a set, as they were listed once.

    `listed` None: they could not be listed without a program. `generation` is that of the notes before.
    """

    instance: Instance
    places: tuple[str, ...]
    listed: Mapping[str, SnapshotNames] | None
    generation: str

    @classmethod
    def look(cls, instance: Instance, places: Collection[str]) -> SetsHere:
        """List them now."""
        generation = known_local.generation(instance)
        return cls(instance, tuple(places), named(places), generation)

    def note(self, seen: Iterable[OwnedSnapshot]) -> None:
        """Note the local ones among what was read with `known_local.HOLDS`, so that others need not read them."""
        if self.listed is not None:
            known_local.note(self.instance, self.listed, seen, self.generation)

    def read(self, more: Sequence[str] = (), states: Collection[str] | None = None) -> list[OwnedSnapshot]:
        """Return the snapshots that are of sets of the instance in one of the states (None: any), oldest first.

        They are read with the properties MARKS and `more`. NotThere if a dataset does not exist.
        """
        if states is not None and LOCAL not in states:
            return [one for one in self.all_but_noted(more) if _is_in(one, states)]
        return [one for one in self._read(more, {}) if _is_in(one, states)]

    def all_but_noted(self, more: Sequence[str] = ()) -> list[OwnedSnapshot]:
        """Return what `read` returns, of any state, but for local ones that an earlier run noted (`known_local`)."""
        listed = self.listed or {}
        return self._read(more, {place: known_local.known(self.instance, place, listed[place]) for place in listed})

    @property
    def ids(self) -> frozenset[str]:
        """The ids that the names of the listed snapshots give."""
        named_here = [set_named(name) for names in (self.listed or {}).values() for name in names.numbers]
        return frozenset(one for one in named_here if one is not None)

    def newest_first(self, states: Collection[str]) -> Iterator[list[OwnedSnapshot]]:
        """Yield what `read` returns in parts, the sets that ZFS made last first.

        Sets of which a volume has no snapshot are left out.
        """
        if self.listed is None:
            yield self.read((), states)
            return
        names, size = self._oldest_first(), 4
        while names:
            part, names = names[-size:], names[:-size]
            seen = snapshots.owned_among([f"{place}@{name}" for place in self.places for name in part], MARKS)
            yield [one for one in _of_sets(self.instance.name, seen) if _is_in(one, states)]
            size = min(8 * size, _MOST_BY_NAME)

    def _oldest_first(self) -> list[str]:
        """Return the names of sets that all places have, in the order in which ZFS made them. Ids are clocks."""
        if not self.listed:
            return []
        everywhere = frozenset.intersection(*(frozenset(names.numbers) for names in self.listed.values()))
        groups = snapshots.created_in(self.places[0], [name for name in everywhere if set_named(name) is not None])
        return order.by_creation(groups, lambda name: groups[name])

    def _read(self, more: Sequence[str], but: Mapping[str, Collection[str]]) -> list[OwnedSnapshot]:
        names = [
            f"{place}@{name}"
            for place, listed in (self.listed or {}).items()
            for name in listed.numbers
            if name not in but.get(place, ()) and set_named(name) is not None
        ]
        if self.listed is None or len(names) > _MOST_BY_NAME:
            return _of_sets(self.instance.name, snapshots.owned(self.places, (*MARKS, *more)))
        return _of_sets(self.instance.name, snapshots.owned_among(names, (*MARKS, *more)))


def own_snapshots(
    instance: Instance,
    places: Collection[str],
    more: Sequence[str] = (),
    *,
    states: Collection[str],
    only: str | None = None,
) -> list[OwnedSnapshot]:
    """Return what `SetsHere.read` returns of a look now.

    `only`: no other snapshots than those of the set of this id are looked at, however many there are (None: all).
    """
    if only is None:
        return SetsHere.look(instance, places).read(more, states)
    names = [f"{place}@{snapshot_name(only)}" for place in places]
    seen = snapshots.owned_among(names, (*MARKS, *more))
    return [one for one in _of_sets(instance.name, seen) if _is_in(one, states)]


def _is_in(one: OwnedSnapshot, states: Collection[str] | None) -> bool:
    return states is None or one.properties[STATE_PROPERTY] in states


def _of_sets(instance: str, marked: Iterable[OwnedSnapshot]) -> list[OwnedSnapshot]:
    # The properties alone prove nothing: snapshots inherit the properties of their dataset, and a restored dataset has
    # some of these. So the name must fit too.
    return [
        one
        for one in marked
        if one.properties[INSTANCE_PROPERTY] == instance
        and set_named(one.snapshot.name) == one.properties[BACKUP_PROPERTY]
    ]

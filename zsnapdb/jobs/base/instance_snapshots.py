"""Reading of an instance's snapshots on this host, limited to those that a command needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.jobs.base import snapshot_cache
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
from zsnapdb.zfs.snapshot_files import SnapshotNames, snapshot_names
from zsnapdb.zfs.snapshots import OwnedSnapshot

_MOST_BY_NAME = 1000
"""The maximum number of snapshots queried by name. For more, one list of all snapshots is as cheap."""


@dataclass(frozen=True)
class SetsHere:
    """The snapshots on some datasets that have the name of a snapshot set, from one listing.

    `listed` None: they cannot be listed without starting a program. `generation` is that of the cache before the
    listing.
    """

    instance: Instance
    places: tuple[str, ...]
    listed: Mapping[str, SnapshotNames] | None
    generation: str

    @classmethod
    def look(cls, instance: Instance, places: Collection[str]) -> SetsHere:
        generation = snapshot_cache.generation(instance)
        return cls(instance, tuple(places), snapshot_names(places), generation)

    def note(self, seen: Iterable[OwnedSnapshot]) -> None:
        """Record the local snapshots among `seen`, so that other runs need not read them.

        `seen` must have been read with `known_local.HOLDS`.
        """
        if self.listed is not None:
            snapshot_cache.note(self.instance, self.listed, seen, self.generation)

    def read(self, more: Sequence[str] = (), states: Collection[str] | None = None) -> list[OwnedSnapshot]:
        """Return the snapshots of the instance's sets in one of the states (None: any), oldest first.

        They have the properties MARKS and `more`. Raises NotFound if a dataset does not exist.
        """
        if states is not None and LOCAL not in states:
            return [one for one in self.all_but_noted(more) if _is_in(one, states)]
        return [one for one in self._read(more, {}) if _is_in(one, states)]

    def all_but_noted(self, more: Sequence[str] = ()) -> list[OwnedSnapshot]:
        """Return the result of `read` for any state, without local snapshots in the cache (`known_local`)."""
        listed = self.listed or {}
        return self._read(
            more, {place: snapshot_cache.recorded_snapshots(self.instance, place, listed[place]) for place in listed}
        )

    @property
    def ids(self) -> frozenset[str]:
        """The set ids in the names of the listed snapshots."""
        named_here = [set_named(name) for names in (self.listed or {}).values() for name in names.numbers]
        return frozenset(one for one in named_here if one is not None)

    def newest_first(self, states: Collection[str]) -> Iterator[list[OwnedSnapshot]]:
        """Yield the result of `read` in parts, newest sets first (by ZFS).

        Sets without a snapshot of every volume are left out.
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
        """Return the names of sets that exist on all datasets, in order of creation in ZFS. Ids come from clocks."""
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
            return _of_sets(self.instance.name, snapshots.list_owned(self.places, (*MARKS, *more)))
        return _of_sets(self.instance.name, snapshots.owned_among(names, (*MARKS, *more)))


def own_snapshots(
    instance: Instance,
    places: Collection[str],
    more: Sequence[str] = (),
    *,
    states: Collection[str],
    only: str | None = None,
) -> list[OwnedSnapshot]:
    """Return the result of `SetsHere.read` for a new listing.

    `only`: only the snapshots of the set with this id are read (None: all), however many there are.
    """
    if only is None:
        return SetsHere.look(instance, places).read(more, states)
    names = [f"{place}@{snapshot_name(only)}" for place in places]
    seen = snapshots.owned_among(names, (*MARKS, *more))
    return [one for one in _of_sets(instance.name, seen) if _is_in(one, states)]


def _is_in(one: OwnedSnapshot, states: Collection[str] | None) -> bool:
    return states is None or one.properties[STATE_PROPERTY] in states


def _of_sets(instance: str, marked: Iterable[OwnedSnapshot]) -> list[OwnedSnapshot]:
    # The properties alone prove nothing: snapshots inherit those of their dataset, and a restored dataset has some of
    # them. So the name must match too.
    return [
        one
        for one in marked
        if one.properties[INSTANCE_PROPERTY] == instance
        and set_named(one.snapshot.name) == one.properties[BACKUP_PROPERTY]
    ]

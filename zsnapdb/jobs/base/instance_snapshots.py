"""Functions that read an instance's snapshots on this host.

A cache lets each command read only the snapshots that it needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.domain_types import is_backup_id
from zsnapdb.base.errors import BusyError, PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    LIVE,
    LOCAL,
    MARKS,
    REPLACED,
    STATE_PROPERTY,
    STORED,
    TAKEN,
    set_named,
    snapshot_name,
)
from zsnapdb.planning import creation_order
from zsnapdb.zfs import snapshots
from zsnapdb.zfs.snapshot_files import SnapshotNames, snapshot_names
from zsnapdb.zfs.snapshots import OwnedSnapshot

_GENERATION_FILE = ".generation"
_CHANGING = "changing"
"""The content of the generation file while a run changes a set. This content stays in the file if the run is killed."""
_PATIENCE = 10.0
HOLDS = "userrefs"
"""The number of holds of a snapshot (zfsprops(7)).

A snapshot can be recorded in the cache only if this property was read.
"""


def _folder(instance: Instance) -> Path:
    return instance.host.run / "read" / instance.name


def _file(instance: Instance, place: str) -> Path:
    # The name of a dataset may be as long as a file name may be. Escaped slashes would make it longer.
    return _folder(instance) / hashlib.sha256(place.encode()).hexdigest()


def recorded_snapshots(instance: Instance, place: str, names: SnapshotNames) -> frozenset[str]:
    """Return the short names of snapshots that the cache lists as local and that were not replaced later.

    A cache file is ignored if it is a link or belongs to another account.
    """
    try:
        opened = os.open(_file(instance, place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, encoding="utf-8") as file:
            if os.fstat(opened).st_uid != os.geteuid():
                return frozenset()
            mount, *lines = file.read().splitlines()
    except (OSError, ValueError):
        return frozenset()
    if mount != names.mount:
        return frozenset()
    before = frozenset(lines)
    return frozenset(name for name, number in names.numbers.items() if _line(name, number) in before)


def read_generation(instance: Instance) -> str:
    """Return the current id of the cache. `changing_sets` gives the cache a new id.

    Call this before the snapshots are read. Pass the id to `note_snapshots`.
    """
    try:
        return (_folder(instance) / _GENERATION_FILE).read_text()
    except (OSError, ValueError):
        return ""


def note_snapshots(
    instance: Instance, names: Mapping[str, SnapshotNames], seen: Iterable[OwnedSnapshot], generation_before: str
) -> None:
    """Add the local snapshots among `seen` to the cache. Entries of other snapshots stay if the snapshots still exist.

    Nothing is recorded if a run has changed a set since `generation_before` was read, or is changing a set now. The
    caller must list `names` before it reads the snapshots `seen`, and must read `seen` with the property `HOLDS`. Write
    errors are ignored.
    """
    with contextlib.suppress(BusyError, OSError, PreflightError), _alone(instance, 0.0):
        current = read_generation(instance)
        if current == _CHANGING:
            # A killed run may have changed a set after these snapshots were read. After a new generation starts, later
            # results can be recorded.
            _begin(instance, secrets.token_hex(16))
        elif current == generation_before:
            _note(instance, names, seen)


def _note(instance: Instance, names: Mapping[str, SnapshotNames], seen: Iterable[OwnedSnapshot]) -> None:
    fresh: dict[str, set[str]] = {place: set() for place in names}
    for one in seen:
        place, is_local = one.snapshot.dataset, one.properties[STATE_PROPERTY] == LOCAL
        if is_local and one.properties[HOLDS] == "0" and place in fresh:
            fresh[place].add(one.snapshot.name)
    for place, listed in names.items():
        before = recorded_snapshots(instance, place, listed)
        noted = before | (fresh[place] & listed.numbers.keys())
        if noted != before:
            lines = [listed.mount, *(_line(name, listed.numbers[name]) for name in sorted(noted))]
            files.replace_disposable(_file(instance, place), "\n".join(lines).encode())


@contextlib.contextmanager
def changing_sets(instance: Instance, places: Collection[str]) -> Iterator[None]:
    """Run a block that changes local sets.

    Until the block ends, snapshots of these datasets are not recorded in the cache. Snapshots that were read before the
    end of the block are never recorded. Raises PreflightError if a record cannot be removed.
    """
    with _alone(instance, _PATIENCE):
        try:
            _begin(instance, _CHANGING)
            for place in places:
                _file(instance, place).unlink(missing_ok=True)
        except OSError as error:
            raise PreflightError(
                f"removing the notes in {_folder(instance)}: {error.strerror}", hint="remove that folder, and run again"
            ) from error
        yield
        with contextlib.suppress(OSError):
            _begin(instance, secrets.token_hex(16))


def _begin(instance: Instance, generation: str) -> None:
    files.replace_disposable(_folder(instance) / _GENERATION_FILE, generation.encode())


def _alone(instance: Instance, patience: float) -> contextlib.AbstractContextManager[None]:
    return exclusive("notes", doing="noting local sets", patience=patience, folder=_folder(instance))


def _line(name: str, number: int) -> str:
    return f"{number:x} {name}"


_MOST_BY_NAME = 1000
"""The maximum number of snapshots to query by name.

If there are more, all snapshots are listed, which takes no longer.
"""


@dataclass(frozen=True)
class SetsHere:
    """One listing of the snapshots on some datasets, limited to snapshots that are named like snapshot sets.

    The field `listed` is None if the snapshots cannot be listed without starting a program. The field `generation` is
    the id of the cache, read immediately before the listing (`read_generation`).
    """

    instance: Instance
    places: tuple[str, ...]
    listed: Mapping[str, SnapshotNames] | None
    generation: str

    @classmethod
    def look(cls, instance: Instance, places: Collection[str]) -> SetsHere:
        generation = read_generation(instance)
        return cls(instance, tuple(places), snapshot_names(places), generation)

    def note(self, seen: Iterable[OwnedSnapshot]) -> None:
        """Add the local snapshots among `seen` to the cache, so that other runs need not read these snapshots.

        The snapshots `seen` must have been read with the property `HOLDS`.
        """
        if self.listed is not None:
            note_snapshots(self.instance, self.listed, seen, self.generation)

    def read(self, more: Sequence[str] = (), states: Collection[str] | None = None) -> list[OwnedSnapshot]:
        """Return the snapshots of the instance's sets in one of the states, oldest first.

        If `states` is None, snapshots in all states are returned. The result includes the properties in `MARKS` and
        `more`. Raises NotFound if a dataset does not exist.
        """
        if states is not None and LOCAL not in states:
            return [one for one in self.all_but_noted(more) if _is_in(one, states)]
        return [one for one in self._read(more, {}) if _is_in(one, states)]

    def all_but_noted(self, more: Sequence[str] = ()) -> list[OwnedSnapshot]:
        """Return the snapshots that `read` returns for all states, except those that `recorded_snapshots` returns."""
        listed = self.listed or {}
        return self._read(more, {place: recorded_snapshots(self.instance, place, listed[place]) for place in listed})

    @property
    def ids(self) -> frozenset[str]:
        """The set ids in the names of the listed snapshots."""
        named_here = [set_named(name) for names in (self.listed or {}).values() for name in names.numbers]
        return frozenset(one for one in named_here if one is not None)

    def newest_first(self, states: Collection[str]) -> Iterator[list[OwnedSnapshot]]:
        """Yield the snapshots that `read` returns, split into several lists, newest sets first.

        The order is that of their creation in ZFS. Sets without a snapshot of every volume are left out.
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

    def torn_after(self, group: int, states: Collection[str], volumes: int) -> list[OwnedSnapshot]:
        """Return the snapshots of incomplete sets that are in one of the states and newer than the transaction group.

        A complete set has `volumes` snapshots. zsnapdb creates all snapshots of a set at once. So if a snapshot of a
        set is missing, another program renamed or destroyed the snapshot, or renamed its dataset.
        """
        if self.listed is None:
            known = {one.snapshot.full_name: one for one in self.read((), states)}
            groups = {name: one.snapshot.createtxg for name, one in known.items()}
            late = [known[name] for name in creation_order.made_after(groups, group)]
        else:
            counted = Counter(name for names in self.listed.values() for name in names.numbers)
            torn = {name for name, count in counted.items() if count < volumes and set_named(name) is not None}
            made = _of_sets(self.instance.name, self._made_after(group, torn, MARKS))
            late = [one for one in made if _is_in(one, states)]
        whole = Counter(one.snapshot.name for one in late)
        return [one for one in late if whole[one.snapshot.name] < volumes]

    def changed_after(self, group: int) -> list[OwnedSnapshot]:
        """Return the snapshots of sets that are newer than the transaction group and lost their name or properties.

        zsnapdb sets the name and the properties together. So if only one of the two remains, another program changed
        the other. A snapshot without the properties may also have been received.
        """
        # The first property is always set, so that snapshots without zsnapdb's properties are read too.
        columns = (HOLDS, *MARKS)
        if self.listed is None:
            known = {one.snapshot.full_name: one for one in snapshots.list_owned(self.places, columns)}
            groups = {name: one.snapshot.createtxg for name, one in known.items()}
            late = [known[name] for name in creation_order.made_after(groups, group)]
        else:
            late = self._made_after(group, None, columns)
        return [one for one in late if _is_changed(self.instance.name, one)]

    def _made_after(self, group: int, among: Collection[str] | None, columns: Sequence[str]) -> list[OwnedSnapshot]:
        names = []
        for place, listed in (self.listed or {}).items():
            asked = [name for name in listed.numbers if among is None or name in among]
            groups = snapshots.created_in(place, asked)
            names += [f"{place}@{name}" for name in creation_order.made_after(groups, group)]
        return snapshots.owned_among(names, columns) if names else []

    def _oldest_first(self) -> list[str]:
        """Return the ids of the sets that are on all datasets, in the order of creation in ZFS.

        The times in their names may be wrong.
        """
        if not self.listed:
            return []
        everywhere = frozenset.intersection(*(frozenset(names.numbers) for names in self.listed.values()))
        groups = snapshots.created_in(self.places[0], [name for name in everywhere if set_named(name) is not None])
        return creation_order.by_creation(groups, lambda name: groups[name])

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
    """List the snapshots of the instance, and return those that `SetsHere.read` selects.

    If `only` is the id of a set, only the snapshots of that set are read, which is fast even if there are many
    snapshots.
    """
    if only is None:
        return SetsHere.look(instance, places).read(more, states)
    names = [f"{place}@{snapshot_name(only)}" for place in places]
    seen = snapshots.owned_among(names, (*MARKS, *more))
    return [one for one in _of_sets(instance.name, seen) if _is_in(one, states)]


def _is_in(one: OwnedSnapshot, states: Collection[str] | None) -> bool:
    return states is None or one.properties[STATE_PROPERTY] in states


def _of_sets(instance: str, marked: Iterable[OwnedSnapshot]) -> list[OwnedSnapshot]:
    # Snapshots inherit properties from their dataset, and a restored dataset may have these properties. So the name
    # must match too.
    return [
        one
        for one in marked
        if one.properties[INSTANCE_PROPERTY] == instance
        and set_named(one.snapshot.name) == one.properties[BACKUP_PROPERTY]
    ]


_STATES = frozenset((TAKEN, STORED, LIVE, LOCAL, REPLACED))


def _is_changed(instance: str, one: OwnedSnapshot) -> bool:
    """Return whether the snapshot has a set's name but not its properties, or a set's properties but not its name."""
    backup, owner, state = (one.properties[name] for name in MARKS)
    named = set_named(one.snapshot.name)
    if named == backup:
        return state not in _STATES or owner == "-"
    return named is not None or ((owner, is_backup_id(backup)) == (instance, True) and state in (STORED, LOCAL))

"""Snapshots and bookmarks. One request creates a snapshot set, which is then read back and checked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import ConsistencyError, NotFound
from zsnapdb.planning import creation_order
from zsnapdb.zfs import datasets, libzfs
from zsnapdb.zfs.command import ZFS, is_number, number_in, rows, run, set_options, table, unexpected
from zsnapdb.zfs.datasets import Property

_SNAPSHOT_SECONDS = 600.0
"""Time limit in seconds for a snapshot.

It is longer than any lock deadline, because the caller always waits for a snapshot that has started.
"""


class PendingSnapshots:
    """A request for a snapshot set. ZFS creates all snapshots in one transaction group, or none (zfs-snapshot(8))."""

    def __init__(self, make: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(make,))
        self._decided = threading.Event()
        self.is_started = False

    def _run(self, make: Callable[[], None]) -> None:
        try:
            self._decided.wait()
            if self.is_started:
                make()
        except BaseException as error:
            self._error = error

    @classmethod
    def of(cls, names: Sequence[str], properties: Mapping[str, str]) -> PendingSnapshots:
        """Prepare everything except the request itself, so that `start` returns immediately."""
        library = libzfs.load()
        if library is None:
            return cls(lambda: by_command(names, properties))
        return cls(lambda: library.snapshot(names, properties))

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Start the thread of the request.

        During the block the thread waits for `start`. The thread has the caller's priority.

        Starting a thread takes about as long as the request. So the thread is started before the server is locked.
        """
        try:
            self._thread.start()
            yield
        finally:
            self._decided.set()

    def start(self) -> None:
        """Start the request and return immediately."""
        self.is_started = True
        self._decided.set()
        if self._thread.ident is None:
            self._thread.start()

    def done_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of the request. Return whether the request has ended.

        The request is never cancelled, because the kernel would complete it anyway.
        """
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the end of the request, if it was started.

        If the request failed, raise the error for the failure. A failed request has created no snapshot.
        """
        while self.is_started and self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            raise self._error


def by_command(names: Sequence[str], properties: Mapping[str, str]) -> None:
    """Create the snapshots with the `zfs` command, which is used if the library cannot be loaded."""
    run([ZFS, "snapshot", *set_options(properties), *names], timeout=_SNAPSHOT_SECONDS)


def describe(names: Sequence[str]) -> list[Snapshot]:
    """Return the snapshots of one pool as ZFS reports them, in the given order.

    Raises NotFound if one of the named objects does not exist.

    If the library can answer, no program is started, because starting a program slows down a busy server.
    """
    library = libzfs.load()
    # The channel program would return these facts for a filesystem too, but a filesystem is not a snapshot.
    is_answered = library is not None and bool(names) and all("@" in name for name in names)
    facts = library.facts(names) if library is not None and is_answered else None
    if facts is not None:
        return [_snapshot(name, facts[name].guid, facts[name].createtxg) for name in names]
    by_name = {}
    argv = [ZFS, "list", "-H", "-p", "-t", "snapshot", "-o", "name,guid,createtxg", *names]
    for name, guid, createtxg in table(argv, 3):
        by_name[name] = _snapshot(name, number_in(guid, argv), number_in(createtxg, argv))
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotFound(f"`zfs list` did not list {missing[0]}", hint="see `zfs list -t snapshot`")
    return [by_name[name] for name in names]


def _snapshot(name: str, guid: int, createtxg: int) -> Snapshot:
    dataset, _, short = name.partition("@")
    return Snapshot(dataset=dataset, name=short, guid=guid, createtxg=createtxg)


def check_one_group(snapshots: Sequence[Snapshot]) -> None:
    """Raise ConsistencyError unless all snapshots were created in one transaction group.

    An equal `createtxg` proves this. `creation` may differ by a second within one request (OpenZFS up to 2.4).
    """
    groups = sorted({snapshot.createtxg for snapshot in snapshots})
    if len(groups) != 1:
        listing = ", ".join(f"{s.full_name} in {s.createtxg}" for s in snapshots)
        raise ConsistencyError(
            f"the snapshots were not made in one transaction group: {listing}",
            hint="no snapshot was kept; report this as a bug",
        )


@dataclass(frozen=True)
class SnapshotUse:
    """The number of holds on a snapshot, and the snapshot's clones.

    `used` is the number of bytes that only this snapshot references.
    """

    holds: int
    clones: tuple[str, ...]
    used: int


@dataclass(frozen=True)
class OwnedSnapshot:
    """A snapshot and its property values, including user properties that it inherits from its dataset."""

    snapshot: Snapshot
    properties: Mapping[str, str]

    @property
    def use(self) -> SnapshotUse:
        """The uses of the snapshot, from the properties in USES, which the caller must have read.

        An unreadable value is treated as a hold.
        """
        holds, clones, used = (self.properties[name] for name in USES)
        return _use(holds if is_number(holds) else "1", clones, used if is_number(used) else "0")


_TOGETHER = 400
"""Number of names (at most 255 bytes each) that always fit into a program's arguments (execve(2))."""


def list_owned(places: Collection[str], names: Sequence[str]) -> list[OwnedSnapshot]:
    """Return the given datasets' snapshots on which the first of the named properties is set, oldest first.

    Snapshots of the datasets' children are not included. One command reads all properties; each additional property
    takes time if there are thousands of snapshots. Raises NotFound if a dataset does not exist.
    """
    return _read_owned(["-d", "1"], places, frozenset(places), names) if places else []


def owned_among(asked: Sequence[str], names: Sequence[str]) -> list[OwnedSnapshot]:
    """Return the named snapshots that exist and have the first of the named properties, oldest first.

    No other snapshots are read.
    """
    found: list[OwnedSnapshot] = []
    for start in range(0, len(asked), _TOGETHER):
        found += _read_there(asked[start : start + _TOGETHER], names)
    return creation_order.by_creation(found, lambda one: one.snapshot.createtxg)


def _read_there(asked: Sequence[str], names: Sequence[str]) -> list[OwnedSnapshot]:
    # Retention may destroy further snapshots during the search.
    while asked:
        try:
            return _read_owned([], asked, frozenset(name.partition("@")[0] for name in asked), names)
        except NotFound:
            there = [name for name in asked if datasets.exists(name)]
            if len(there) == len(asked):
                raise
            asked = there
    return []


def _read_owned(
    depth: Sequence[str], asked: Collection[str], places: Collection[str], names: Sequence[str]
) -> list[OwnedSnapshot]:
    columns = ["name", "guid", "createtxg", *names]
    owned_snapshots = []
    for row in rows(
        [ZFS, "list", "-H", "-p", *depth, "-t", "snapshot", "-o", ",".join(columns), "-s", "createtxg", *asked]
    ):
        if len(row) != len(columns) or row[3] == "-":
            # zsnapdb writes no value with a tab or a line feed.
            continue
        name, guid, createtxg, *values = row
        if not (name.partition("@")[0] in places and is_number(guid) and is_number(createtxg)):
            # A foreign value that contains a line feed can imitate a line of the output.
            continue
        snapshot = _snapshot(name, int(guid), int(createtxg))
        owned_snapshots.append(OwnedSnapshot(snapshot, dict(zip(names, values, strict=True))))
    return owned_snapshots


USES = ("userrefs", "clones", "used")
"""Properties in zfsprops(7): number of holds; clones, separated by commas; bytes that only this snapshot references."""


def _use(holds: str, clones: str, used: str) -> SnapshotUse:
    return SnapshotUse(int(holds), tuple(clones.split(",")) if clones not in ("", "-") else (), int(used))


def below(dataset: str, names: Sequence[str]) -> dict[Snapshot, dict[str, Property]]:
    """Return the named properties of every snapshot on the dataset and on the datasets below it, oldest first."""
    by_name = datasets.listed_properties(["-r", "-t", "snapshot"], ("guid", "createtxg", *names), [dataset])
    known = {}
    for name, values in by_name.items():
        guid, createtxg = (values[key].value if key in values else "" for key in ("guid", "createtxg"))
        if is_number(guid) and is_number(createtxg):
            known[_snapshot(name, int(guid), int(createtxg))] = values
    return dict(creation_order.by_creation(known.items(), lambda item: item[0].createtxg))


def created_in(dataset: str, names: Sequence[str]) -> dict[str, int]:
    """Return the transaction group that created each of the dataset's snapshots, keyed by short snapshot name.

    Snapshots that no longer exist are omitted. If libzfs_core can answer, no program is started.
    """
    library = libzfs.load()
    full = [f"{dataset}@{name}" for name in names]
    groups: dict[str, int] = {}
    for start in range(0, len(full), _TOGETHER):
        part = full[start : start + _TOGETHER]
        facts = None if library is None else library.facts(part)
        if facts is None:
            return _listed_groups(dataset, frozenset(names))
        groups.update({name.partition("@")[2]: facts[name].createtxg for name in part})
    return groups


def _listed_groups(dataset: str, names: Collection[str]) -> dict[str, int]:
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", "snapshot", "-o", "name,createtxg", dataset]
    listed = ((name.partition("@")[2], group) for name, group in table(argv, 2))
    return {name: number_in(group, argv) for name, group in listed if name in names}


def has_clones(name: str) -> bool:
    """Whether any dataset was cloned from the snapshot."""
    return run([ZFS, "get", "-H", "-p", "-o", "value", "clones", name]).strip() not in ("", "-")


def set_on(names: Sequence[str], values: Mapping[str, str]) -> None:
    """Set user properties on snapshots of one pool.

    `zfs set` needs one transaction group per snapshot. libzfs_core needs only one transaction group in total, but only
    root may use it.
    """
    library = libzfs.load()
    if library is None or not library.set_each(dict.fromkeys(names, values)):
        datasets.set_on_all(names, values)


def set_and_bookmark(names: Sequence[str], values: Mapping[str, str]) -> None:
    """Set user properties on snapshots of one pool, and bookmark each snapshot, as `bookmark` does."""
    library = libzfs.load()
    marks = {_bookmark_of(name): name for name in names}
    if library is None or not library.set_each(dict.fromkeys(names, values), marks):
        datasets.set_on_all(names, values)
        bookmark(names)


def _bookmark_of(name: str) -> str:
    return name.replace("@", "#")


def names_of(datasets: Sequence[str]) -> list[str]:
    """Return the full names of all snapshots on the given datasets, but not on the datasets below them."""
    listed = table([ZFS, "list", "-H", "-d", "1", "-t", "snapshot", "-o", "name", *datasets], 1)
    return [name for (name,) in listed]


def names_below(dataset: str) -> list[str]:
    """Return the full names of all snapshots on the dataset and on the datasets below it."""
    return [name for (name,) in table([ZFS, "list", "-H", "-r", "-t", "snapshot", "-o", "name", dataset], 1)]


def by_guid(dataset: str) -> dict[int, str]:
    """Return the full names of all the dataset's own snapshots, keyed by GUID."""
    return dict(_send_points("snapshot", [dataset])[dataset].snapshots)


@dataclass(frozen=True)
class SendPoints:
    """Possible bases for an increment of a dataset: full names, keyed by snapshot GUID."""

    snapshots: Mapping[int, str]
    bookmarks: Mapping[int, str]

    @property
    def names(self) -> dict[int, str]:
        """The full name of each base. If a base has a snapshot and a bookmark, the name is that of the snapshot."""
        return {**self.bookmarks, **self.snapshots}


def send_points(places: Collection[str]) -> dict[str, SendPoints]:
    """Return the snapshots and bookmarks of each dataset itself. One command reads them.

    Raises NotFound if a dataset is missing.
    """
    return _send_points("snapshot,bookmark", places)


def _send_points(kinds: str, places: Collection[str]) -> dict[str, SendPoints]:
    found: dict[str, tuple[dict[int, str], dict[int, str]]] = {place: ({}, {}) for place in places}
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", kinds, "-o", "name,guid", *places]
    for name, guid in table(argv, 2) if places else ():
        is_bookmark = "#" in name
        place = name.partition("#" if is_bookmark else "@")[0]
        if place not in found:
            raise unexpected(argv, name)
        found[place][is_bookmark][number_in(guid, argv)] = name
    return {place: SendPoints(*points) for place, points in found.items()}


def known_states(places: Collection[str]) -> tuple[frozenset[int], int | None]:
    """Return the GUIDs of the datasets' snapshots, bookmarks and origins, and the lowest transaction group.

    The transaction group is the lowest one of the datasets' own snapshots and bookmarks; None if there are none. Raises
    NotFound if a dataset does not exist.
    """
    points = created_points(places)
    origins = datasets.origin_guids(list(places))
    groups = creation_order.by_creation((group for _, group in points), lambda group: group)
    return frozenset((*(guid for guid, _ in points), *origins)), groups[0] if groups else None


def created_points(places: Collection[str]) -> list[tuple[int, int]]:
    """Return GUID and transaction group of each snapshot and bookmark of the datasets.

    Raises NotFound if a dataset is missing.
    """
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", "snapshot,bookmark", "-o", "guid,createtxg", *places]
    return [(number_in(guid, argv), number_in(group, argv)) for guid, group in table(argv, 2)]


def send_points_there(places: Collection[str]) -> dict[str, SendPoints]:
    """Return the result of `send_points` for the datasets that exist."""
    try:
        return send_points(places)
    except NotFound:
        return send_points([place for place in places if datasets.exists(place)])


def bookmarks(places: Collection[str]) -> dict[str, dict[int, str]]:
    """Return the full names of each dataset's bookmarks, keyed by snapshot GUID.

    One command reads them. Raises NotFound if a dataset does not exist.
    """
    return {place: dict(points.bookmarks) for place, points in _send_points("bookmark", places).items()}


def bookmark(names: Sequence[str]) -> None:
    """Create a bookmark with the same name for each snapshot that has no bookmark. The snapshots are in one pool.

    Raises NotFound if a snapshot is missing.
    """
    known = send_points({name.partition("@")[0] for name in names})
    guids = {name: guid for points in known.values() for guid, name in points.snapshots.items()}
    gone = [name for name in names if name not in guids]
    if gone:
        raise NotFound(f"`zfs list` did not list {gone[0]}", hint="see `zfs list -t snapshot`")
    missing = {_bookmark_of(name): name for name in names if guids[name] not in known[name.partition("@")[0]].bookmarks}
    library = libzfs.load()
    if missing and library is not None:
        library.bookmark(missing)
        return
    for name, source in missing.items():
        run([ZFS, "bookmark", source, name])


def uses(places: Collection[str]) -> dict[str, SnapshotUse]:
    """Return the uses of the given datasets' own snapshots, keyed by full name. One command reads them."""
    by_name = {}
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", "snapshot", "-o", ",".join(("name", *USES)), *places]
    for name, holds, clones, used in table(argv, 4) if places else ():
        by_name[name] = _use(str(number_in(holds, argv)), clones, str(number_in(used, argv)))
    return by_name

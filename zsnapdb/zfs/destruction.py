"""Destruction of objects that zsnapdb owns, and the search for foreign snapshots.

Only this module runs `zfs destroy`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import PROPERTY, SNAPSHOT_PREFIX, Snapshot
from zsnapdb.base.errors import NotFound, NotOursError
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
from zsnapdb.zfs import datasets, holds, mounting, snapshots
from zsnapdb.zfs.command import ZFS, number_in, run_when_free, table
from zsnapdb.zfs.datasets import UNSET, Property
from zsnapdb.zfs.streams import RESUME_STATE

_TOGETHER = 400
"""How many snapshot names (at most 255 bytes each) always fit into one argument (execve(2): 128 KiB)."""


@dataclass(frozen=True)
class Mark:
    """A user property that marks a dataset or snapshot as owned by zsnapdb.

    If `value` is None, any value of the property counts.
    """

    name: str
    value: str | None = None

    def is_on(self, properties: dict[str, Property]) -> bool:
        current = properties[self.name]
        return current.is_local and self.value in (None, current.value)


def is_ours(name: str, *marks: Mark) -> bool:
    """Whether the dataset or snapshot exists and carries one of the marks."""
    try:
        prove([name], *marks)
    except (NotOursError, NotFound):
        return False
    return True


def owned_datasets(names: Sequence[str], *marks: Mark) -> list[str]:
    """Return the datasets that carry one of the marks. Raises NotFound if a dataset does not exist."""
    seen = datasets.properties_of(names, [mark.name for mark in marks])
    return [name for name in names if any(mark.is_on(seen[name]) for mark in marks)]


def prove(names: Sequence[str], *marks: Mark) -> None:
    """Raise NotOursError with the first of the datasets or snapshots that carries none of the marks.

    Raises NotFound if one of the named objects does not exist.
    """
    if not names:
        return
    _proved_properties(names, marks, ())


def _proved_properties(
    names: Sequence[str], marks: Sequence[Mark], keys: Sequence[str]
) -> dict[str, dict[str, Property]]:
    seen = datasets.properties_of(names, [*(mark.name for mark in marks), *keys])
    for name in names:
        _prove(name, seen[name], marks)
    return seen


def _prove(name: str, properties: dict[str, Property], marks: Sequence[Mark]) -> None:
    if any(mark.is_on(properties) for mark in marks):
        return
    mark = marks[0]
    raise _refusal(name, mark.name, f"{mark.value or 'any value'} (local)", properties[mark.name])


def _refusal(name: str, property_name: str, expected: str, seen: Property) -> NotOursError:
    value = "not set" if seen.value == UNSET else seen.value
    source = "" if seen.source == UNSET else f" ({seen.source})"
    return NotOursError(
        f"{name} is not ours to destroy: {property_name} is {value}{source}, it must be {expected}",
        name=name,
        property_name=property_name,
        value=seen.value,
        source=seen.source,
        hint=f"see `zfs get all {name}`; move or destroy it yourself if nobody needs it",
    )


def members(anchor: str, *marks: Mark) -> list[str]:
    """Return the dataset `anchor` and every dataset below it, parents first.

    The result is empty if `anchor` does not exist. Raises NotOursError if one of these datasets carries none of the
    marks.
    """
    return list(members_with(anchor, (), *marks))


def members_with(anchor: str, keys: Sequence[str], *marks: Mark) -> dict[str, dict[str, Property]]:
    """Return the datasets of `members` with their properties `keys`. Order and errors are the same as in `members`."""
    if not datasets.exists(anchor):
        return {}
    below = datasets.children(anchor, [*(mark.name for mark in marks), *keys])
    for name, properties in below.items():
        _prove(name, properties, marks)
    return dict(sorted(below.items(), key=lambda item: len(item[0])))


def destroy_datasets(names: Iterable[str], *marks: Mark, with_snapshots: bool = False) -> None:
    """Unmount and destroy exactly the given datasets, children first.

    With `with_snapshots`, all their snapshots are destroyed first. The state of an interrupted receive is removed
    first. A dataset in use keeps all its snapshots. The call fails if a snapshot has clones or holds, or if snapshots
    exist and `with_snapshots` is not set. Raises NotOursError, before any change, if a dataset carries no mark.
    """
    order = sorted(names, key=len, reverse=True)
    for name in order:
        _check_separator(name, "")
    if not order:
        return
    seen = _proved_properties(order, marks, [RESUME_STATE])
    on = snapshots.names_of(order) if with_snapshots else []
    for name in order:
        if seen[name][RESUME_STATE].value not in ("", UNSET):
            _drop_partial(name)
            if not datasets.exists(name):
                continue
        own = [snapshot.partition("@")[2] for snapshot in on if snapshot.partition("@")[0] == name]
        if own:
            datasets.unmount(name)
        for start in range(0, len(own), _TOGETHER):
            _destroy_snapshots(name, own[start : start + _TOGETHER])
        mounting.unmount_elsewhere(name)
        # `zfs destroy` without -f unmounts a mounted filesystem, but not a filesystem in use (zfs-destroy(8)).
        _destroy(name)


def drop_partial(dataset: str, *marks: Mark) -> None:
    """Remove the state of an interrupted `zfs receive -s`.

    If the stream was a full stream, this state is the dataset itself.

    Raises NotOursError unless the dataset carries one of the marks. The call fails if the receive is still running or
    left no state.
    """
    _check_separator(dataset, "")
    prove([dataset], *marks)
    _drop_partial(dataset)


def destroy_snapshots_of(dataset: str, *marks: Mark) -> None:
    """Destroy all snapshots of exactly this dataset, even foreign ones.

    Raises NotOursError unless the dataset carries a mark.
    """
    prove([dataset], *marks)
    for name in snapshots.by_guid(dataset).values():
        _destroy(name)


def destroy_snapshots_on(names: Sequence[str], *marks: Mark) -> None:
    """Destroy exactly the given snapshots, even foreign ones.

    Call this function only if the user requested the destruction.

    Raises NotOursError, before any change, unless the dataset of each snapshot carries one of the marks. The call fails
    if a snapshot has holds or clones.
    """
    for name in names:
        _check_separator(name, "@")
    prove(sorted({name.partition("@")[0] for name in names}), *marks)
    for name in names:
        _destroy(name)


def destroy_snapshot(name: str, *marks: Mark) -> None:
    """Destroy exactly this snapshot. Raises NotOursError unless the snapshot carries one of the marks.

    The call fails if the snapshot has holds or clones.
    """
    _check_separator(name, "@")
    prove([name], *marks)
    _destroy(name)


def destroy_received_snapshot(name: str, guid: int, *marks: Mark) -> None:
    """Destroy one snapshot that was received into a dataset of zsnapdb. Such a snapshot has no mark.

    Raises NotOursError unless the snapshot's dataset carries one of the marks and the snapshot has the GUID of the sent
    snapshot.
    """
    _check_separator(name, "@")
    prove([name.partition("@")[0]], *marks)
    _prove_guid(name, guid, datasets.guid(name))
    _destroy(name)


def destroy_named_snapshot(name: str, prefix: str, *marks: Mark) -> None:
    """Destroy one snapshot on a dataset of zsnapdb. The prefix of its name shows that zsnapdb owns the snapshot.

    Raises NotOursError unless the snapshot's short name starts with `prefix` and its dataset carries one of the marks.
    """
    _check_separator(name, "@")
    dataset, _, short = name.partition("@")
    _prove_name(name, short, prefix)
    prove([dataset], *marks)
    _destroy(name)


def destroy_set(names: Sequence[str], backup_id: str) -> None:
    """Destroy the snapshots of an abandoned snapshot set, their bookmarks and the holds of zsnapdb on them.

    The call can be repeated, because missing snapshots are skipped. Raises NotOursError, before any change, if a
    snapshot does not carry the backup id.
    """
    existing = []
    for name in names:
        _check_separator(name, "@")
        with contextlib.suppress(NotFound):
            prove([name], _backup_mark(backup_id))
            existing.append(name)
    for name in existing:
        for snapshot in snapshots.describe([name]):
            bookmark = f"{snapshot.dataset}#{snapshot.name}"
            if _bookmark_guids(snapshot.dataset).get(bookmark) == snapshot.guid:
                destroy_bookmark(bookmark, snapshot.guid)
        holds.release([name])
        _destroy(name)


def destroy_stored(name: str, guid: int, backup_id: str) -> None:
    """Destroy one snapshot whose backup is stored. Do nothing if the snapshot does not exist.

    The call does not release holds and does not wait for a busy snapshot. The call fails if the snapshot has holds or
    clones (zfs-destroy(8)). Raises NotOursError unless the snapshot has this GUID and carries the backup id.
    """
    _check_separator(name, "@")
    mark = _backup_mark(backup_id)
    try:
        properties = datasets.properties(name, ["guid", mark.name])
    except NotFound:
        return
    _prove_guid(name, guid, int(properties["guid"].value))
    _prove(name, properties, [mark])
    _destroy(name, patience=0.0)


def destroy_bookmark(name: str, guid: int) -> None:
    """Destroy one bookmark. Do nothing if the bookmark does not exist.

    Raises NotOursError unless the bookmark's name has the prefix of zsnapdb and the bookmark was created from the
    snapshot with this GUID.
    """
    _check_separator(name, "#")
    dataset, _, short = name.partition("#")
    current_guid = _bookmark_guids(dataset).get(name)
    if current_guid is None:
        return
    _prove_name(name, short, SNAPSHOT_PREFIX)
    _prove_guid(name, guid, current_guid)
    _destroy(name)


def roll_back(dataset: str, snapshot: str, prefix: str, *marks: Mark) -> None:
    """Roll the dataset back to its snapshot (short name).

    Later snapshots are destroyed. The dataset and each later snapshot must have one of the marks, and the name of each
    later snapshot must start with `prefix`. Otherwise, NotOursError is raised before any change.
    """
    prove([dataset], *marks)
    columns = ["-o", "name", "-s", "createtxg"]
    names = [name for (name,) in table([ZFS, "list", "-H", "-d", "1", "-t", "snapshot", *columns, dataset], 1)]
    later = names[names.index(f"{dataset}@{snapshot}") + 1 :]
    for name in later:
        _prove_name(name, name.partition("@")[2], prefix)
    prove(later, *marks)
    for name in reversed(later):
        destroy_snapshot(name, *marks)
    run_when_free([ZFS, "rollback", f"{dataset}@{snapshot}"])


def _bookmark_guids(dataset: str) -> dict[str, int]:
    """Return the snapshot GUID of each bookmark, keyed by full name. Two bookmarks may have the same GUID."""
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", "bookmark", "-o", "name,guid", dataset]
    return {name: number_in(guid, argv) for name, guid in table(argv, 2)}


def _backup_mark(backup_id: str) -> Mark:
    return Mark(f"{PROPERTY}:backup", backup_id)


def _prove_guid(name: str, expected: int, seen: int) -> None:
    if seen != expected:
        raise _refusal(name, "guid", str(expected), Property(str(seen), UNSET))


def _prove_name(name: str, short: str, prefix: str) -> None:
    if not short.startswith(prefix):
        raise _refusal(name, "name", f"{prefix}*", Property(short, UNSET))


def _check_separator(name: str, separator: str) -> None:
    """Raise ValueError unless the name has this separator: @ for a snapshot, # for a bookmark, "" for a dataset."""
    if "".join(character for character in name if character in "@#") != separator:
        kind = {"@": "a snapshot", "#": "a bookmark", "": "a dataset"}[separator]
        raise ValueError(f"not {kind}: {name}")


def _drop_partial(dataset: str) -> None:
    # zfs-receive(8): -A aborts an interrupted `zfs receive -s` and deletes only its saved state.
    run_when_free([ZFS, "receive", "-A", dataset])


def _destroy_snapshots(dataset: str, short: Sequence[str]) -> None:
    """Destroy exactly the given snapshots of the dataset. If a snapshot has holds or clones, none is destroyed.

    Names with `,` or `%` are refused, because zfs-destroy(8) reads `dataset@one,two` as two snapshots and `one%two` as
    a range.
    """
    for name in short:
        _check_separator(f"{dataset}@{name}", "@")
        if "%" in name or "," in name:
            raise ValueError(f"not the name of one snapshot: {dataset}@{name}")
    _destroy(f"{dataset}@{','.join(short)}")


def _destroy(name: str, *, patience: float = 20.0) -> None:
    run_when_free([ZFS, "destroy", name], patience=patience)


COLUMNS = ("userrefs", "clones")
"""Properties of each snapshot that are read in addition to its marks."""


def foreign_below(top: str, marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]) -> list[ForeignSnapshot]:
    """Return the foreign snapshots of `top` and of the datasets below it, oldest first.

    zsnapdb owns a snapshot if one of the marks is set on the snapshot itself, or if `is_ours` returns True. The result
    is empty if `top` does not exist.
    """
    if not datasets.exists(top):
        return []
    return foreign_among(snapshots.below(top, (*(mark.name for mark in marks), *COLUMNS)), marks, is_ours)


def foreign_among(
    seen: Mapping[Snapshot, dict[str, Property]], marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]
) -> list[ForeignSnapshot]:
    """Return the foreign snapshots in `seen`, which contains the marks and `COLUMNS` of each snapshot."""
    foreign = []
    for snapshot, values in seen.items():
        if any(mark.is_on(values) for mark in marks) or is_ours(snapshot):
            continue
        clones = values["clones"].value
        foreign.append(
            ForeignSnapshot(
                snapshot.full_name,
                holds.hold_tags(snapshot.full_name) if values["userrefs"].value not in ("0", "-") else (),
                tuple(clones.split(",")) if clones not in ("", "-") else (),
            )
        )
    return foreign

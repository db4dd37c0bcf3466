"""Destroys the datasets, snapshots and bookmarks of this tool, and nothing else. No other module runs `zfs destroy`.

A dataset or snapshot is ours if it carries one of our marks: a user property with the source `local` (zfsprops(7): an
inherited or received value says nothing about the dataset). A snapshot without a mark is ours if it lies on a dataset
of ours and has the name or the GUID that we gave it. A bookmark has no user properties. It is ours if it has our name
and refers to the snapshot whose GUID we recorded.

Each call destroys by exact names, never recursively (-r, -R), never by force (-f).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import NotOursError, NotThere
from zsnapdb.base.model import PROPERTY, SNAPSHOT_PREFIX
from zsnapdb.zfs import datasets, holds, mounting, snapshots
from zsnapdb.zfs.command import ZFS, number_in, run_when_free, table
from zsnapdb.zfs.datasets import UNSET, Property
from zsnapdb.zfs.streams import RESUME_STATE

_TOGETHER = 400
"""So many names of snapshots, of at most 255 bytes each, are no longer than an argument may be (execve(2), 128 KiB)."""


@dataclass(frozen=True)
class Mark:
    """A user property that makes a dataset or snapshot ours. `value` None: any value of the property is enough."""

    name: str
    value: str | None = None

    def is_on(self, properties: dict[str, Property]) -> bool:
        """Whether the properties contain this mark, set locally."""
        current = properties[self.name]
        return current.is_local and self.value in (None, current.value)


def is_ours(name: str, *marks: Mark) -> bool:
    """Whether the dataset or snapshot exists and carries one of the marks."""
    try:
        prove([name], *marks)
    except (NotOursError, NotThere):
        return False
    return True


def ours(names: Sequence[str], *marks: Mark) -> list[str]:
    """Return those of the datasets that carry one of the marks. NotThere if one does not exist."""
    seen = datasets.properties_of(names, [mark.name for mark in marks])
    return [name for name in names if any(mark.is_on(seen[name]) for mark in marks)]


def prove(names: Sequence[str], *marks: Mark) -> None:
    """Raise NotOursError for the first of the datasets or snapshots that carries none of the marks.

    NotThere if one does not exist.
    """
    if not names:
        return
    _proved(names, marks, ())


def _proved(names: Sequence[str], marks: Sequence[Mark], keys: Sequence[str]) -> dict[str, dict[str, Property]]:
    """Return the properties `keys` of the datasets or snapshots. The errors are those of `prove`."""
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
    """Return the anchor and every dataset below it, outer datasets first. Empty if the anchor does not exist.

    NotOursError if one of them carries none of the marks.
    """
    return list(members_with(anchor, (), *marks))


def members_with(anchor: str, keys: Sequence[str], *marks: Mark) -> dict[str, dict[str, Property]]:
    """Return the members with their properties `keys`, in the order and with the errors of `members`."""
    if not datasets.exists(anchor):
        return {}
    below = datasets.children(anchor, [*(mark.name for mark in marks), *keys])
    for name, properties in below.items():
        _prove(name, properties, marks)
    return dict(sorted(below.items(), key=lambda item: len(item[0])))


def destroy_datasets(names: Iterable[str], *marks: Mark, with_snapshots: bool = False) -> None:
    """Unmount and destroy exactly these datasets, inner datasets first. `with_snapshots`: first all their snapshots.

    NotOursError, and nothing is destroyed, if one of them carries none of the marks. The call fails if there are clones
    or holds, or snapshots without `with_snapshots`. A dataset that is in use loses none of its snapshots. What an
    interrupted receive left in a dataset goes first.
    """
    order = sorted(names, key=len, reverse=True)
    for name in order:
        _check_separator(name, "")
    if not order:
        return
    seen = _proved(order, marks, [RESUME_STATE])
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
        # It unmounts a filesystem that is mounted, but none that is in use (zfs-destroy(8), without -f).
        _destroy(name)


def drop_partial(dataset: str, *marks: Mark) -> None:
    """Remove what an interrupted `zfs receive -s` left: the dataset itself if the stream was a full one.

    NotOursError unless the dataset carries one of the marks. The call fails if the receive still runs, or if there is
    nothing to remove.
    """
    _check_separator(dataset, "")
    prove([dataset], *marks)
    _drop_partial(dataset)


def destroy_snapshots_of(dataset: str, *marks: Mark) -> None:
    """Destroy every snapshot of exactly this dataset, whoever made it. NotOursError unless the dataset is ours."""
    prove([dataset], *marks)
    for name in snapshots.by_guid(dataset).values():
        _destroy(name)


def destroy_snapshots_on(names: Sequence[str], *marks: Mark) -> None:
    """Destroy exactly these snapshots, whoever made them, on datasets of ours. The caller was told to do so.

    NotOursError, and nothing is destroyed, unless the dataset of each snapshot carries one of the marks. The call fails
    if a snapshot has holds or clones.
    """
    for name in names:
        _check_separator(name, "@")
    prove(sorted({name.partition("@")[0] for name in names}), *marks)
    for name in names:
        _destroy(name)


def destroy_snapshot(name: str, *marks: Mark) -> None:
    """Destroy exactly this snapshot. NotOursError unless it carries one of the marks.

    The call fails if the snapshot has holds or clones.
    """
    _check_separator(name, "@")
    prove([name], *marks)
    _destroy(name)


def destroy_received_snapshot(name: str, guid: int, *marks: Mark) -> None:
    """Destroy one snapshot that a stream brought into a dataset of ours. Such a snapshot has no mark.

    NotOursError unless its dataset carries one of the marks and it has the GUID of the snapshot that was sent.
    """
    _check_separator(name, "@")
    prove([name.partition("@")[0]], *marks)
    _prove_guid(name, guid, datasets.guid(name))
    _destroy(name)


def destroy_named_snapshot(name: str, prefix: str, *marks: Mark) -> None:
    """Destroy one snapshot of a dataset of ours that has a name of ours.

    NotOursError unless its short name begins with `prefix` and its dataset carries one of the marks.
    """
    _check_separator(name, "@")
    dataset, _, short = name.partition("@")
    _prove_name(name, short, prefix)
    prove([dataset], *marks)
    _destroy(name)


def destroy_set(names: Sequence[str], backup_id: str) -> None:
    """Destroy the snapshots of an abandoned set, their bookmarks and our holds on them.

    NotOursError, and nothing is destroyed, if one of them does not carry the backup's id. A missing snapshot
    is skipped, so the call can be repeated.
    """
    existing = []
    for name in names:
        _check_separator(name, "@")
        with contextlib.suppress(NotThere):
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

    No hold is released and a busy snapshot is not waited for: the call fails if the snapshot has holds or clones
    (zfs-destroy(8)). NotOursError unless the snapshot has this GUID and carries the backup's id.
    """
    _check_separator(name, "@")
    mark = _backup_mark(backup_id)
    try:
        properties = datasets.properties(name, ["guid", mark.name])
    except NotThere:
        return
    _prove_guid(name, guid, int(properties["guid"].value))
    _prove(name, properties, [mark])
    _destroy(name, patience=0.0)


def destroy_bookmark(name: str, guid: int) -> None:
    """Destroy one bookmark. Do nothing if the bookmark does not exist.

    NotOursError unless it has a name of ours and refers to the snapshot with this GUID.
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

    Later snapshots are destroyed if their names begin with `prefix` and they carry one of the marks. The call fails if
    there is any other later snapshot. NotOursError, and nothing changes, unless the dataset carries one of the marks.
    """
    prove([dataset], *marks)
    columns = ["-o", "name", "-s", "createtxg"]
    names = [name for (name,) in table([ZFS, "list", "-H", "-d", "1", "-t", "snapshot", *columns, dataset], 1)]
    for name in reversed(names[names.index(f"{dataset}@{snapshot}") + 1 :]):
        if name.partition("@")[2].startswith(prefix):
            destroy_snapshot(name, *marks)
    run_when_free([ZFS, "rollback", f"{dataset}@{snapshot}"])


def _bookmark_guids(dataset: str) -> dict[str, int]:
    """Return the GUID of the snapshot of each of the dataset's bookmarks, by full name. Two may have the same GUID."""
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
    """Raise ValueError unless the name has this kind: a snapshot (@), a bookmark (#), a dataset ("")."""
    if "".join(character for character in name if character in "@#") != separator:
        kind = {"@": "a snapshot", "#": "a bookmark", "": "a dataset"}[separator]
        raise ValueError(f"not {kind}: {name}")


def _drop_partial(dataset: str) -> None:
    # zfs-receive(8): -A aborts an interrupted `zfs receive -s` and deletes what it saved, nothing else.
    run_when_free([ZFS, "receive", "-A", dataset])


def _destroy_snapshots(dataset: str, short: Sequence[str]) -> None:
    """Destroy exactly these snapshots of the dataset: all of them, or none if one has holds or clones.

    zfs-destroy(8): `dataset@one,two`, and `one%two` would be a range; no name has one of the two signs.
    """
    for name in short:
        _check_separator(f"{dataset}@{name}", "@")
        if "%" in name or "," in name:
            raise ValueError(f"not the name of one snapshot: {dataset}@{name}")
    _destroy(f"{dataset}@{','.join(short)}")


def _destroy(name: str, *, patience: float = 20.0) -> None:
    run_when_free([ZFS, "destroy", name], patience=patience)

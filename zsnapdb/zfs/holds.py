"""Holds, which protect a snapshot from `zfs destroy` (zfs-hold(8)). The tag of a hold identifies its owner."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

from zsnapdb.base.domain_types import PROPERTY
from zsnapdb.base.errors import ExistsError, NotFound, ZsnapdbError
from zsnapdb.zfs import datasets, libzfs
from zsnapdb.zfs.command import ZFS, rows, run, table
from zsnapdb.zfs.snapshots import PendingSnapshots, set_and_bookmark, set_on

HOLD_TAG = f"{PROPERTY}:backup"


def hold(names: Sequence[str], tag: str = HOLD_TAG) -> None:
    """Hold the snapshots of one pool under the tag.

    Until the holds are released, `zfs destroy` of these snapshots fails (zfs-hold(8)).

    If a snapshot cannot be held, this call holds no snapshot. If a snapshot is missing, raises NotFound with its name.
    """
    library = libzfs.load()
    if library is not None:
        library.hold(dict.fromkeys(names, tag))
        return
    before = snapshots_with_hold(names, tag)
    try:
        run([ZFS, "hold", tag, *names])
    except ZsnapdbError:
        # The command holds the snapshots one by one, and continues after a failure.
        with contextlib.suppress(ZsnapdbError):
            release([name for name in names if name not in before], tag)
        raise


def keep(names: Sequence[str], values: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Hold the snapshots of one pool under HOLD_TAG, set user properties on them, and bookmark them.

    `others` maps the full names of additional snapshots of the pool to tags. The additional snapshots are also held,
    unless they already have the hold. All requests start together, so they usually share a transaction group. When this
    function returns, all requests have ended. Return whether the additional snapshots are held. If one of them no
    longer exists, this call holds none of them.
    """
    missed: list[NotFound] = []

    def hold_all() -> None:
        try:
            _hold_all({**dict.fromkeys(names, HOLD_TAG), **others})
        except NotFound as error:
            missed.append(error)
            _hold_all(dict.fromkeys(names, HOLD_TAG))

    holding = PendingSnapshots(hold_all)
    holding.start()
    try:
        set_and_bookmark(names, values)
    finally:
        holding.finish()
    return not missed


def _hold_all(tags: Mapping[str, str]) -> None:
    library = libzfs.load()
    if library is not None:
        # If a killed run left one of these holds, the request fails and holds no snapshot.
        with contextlib.suppress(ExistsError):
            library.hold(tags)
            return
    for tag in sorted(set(tags.values())):
        ensure_held([name for name, own in tags.items() if own == tag], tag)


def give_back(names: Sequence[str], values: Mapping[str, str], others: Mapping[str, str]) -> None:
    """Release zsnapdb's hold on the snapshots of one pool and set user properties on them.

    `others` maps additional snapshots of the pool to the tags of holds that are also released. All requests start
    together, so they usually share a transaction group. When this function returns, all requests have ended.
    """
    releasing = PendingSnapshots(lambda: _release_all({**dict.fromkeys(names, HOLD_TAG), **others}))
    releasing.start()
    try:
        set_on(names, values)
    finally:
        releasing.finish()


def _release_all(tags: Mapping[str, str]) -> None:
    library = libzfs.load()
    if library is not None:
        library.release(tags)
        return
    for tag in sorted(set(tags.values())):
        release([name for name, own in tags.items() if own == tag], tag)


def hold_tags(name: str) -> tuple[str, ...]:
    """Return the tags of the holds on the snapshot."""
    return tuple(row[1] for row in rows([ZFS, "holds", "-H", name]) if len(row) > 1)


def snapshots_with_hold(names: Sequence[str], tag: str = HOLD_TAG) -> list[str]:
    """Return the snapshots that have a hold with the tag."""
    if not names:
        return []
    with_tag = {row[0] for row in rows([ZFS, "holds", "-H", *names]) if len(row) > 1 and row[1] == tag}
    return [name for name in names if name in with_tag]


def ensure_held(names: Sequence[str], tag: str) -> None:
    """Hold the snapshots of one pool under the tag, except those that already have such a hold."""
    known = snapshots_with_hold(names, tag)
    missing = [name for name in names if name not in known]
    if missing:
        hold(missing, tag)


def held_snapshots(places: Collection[str], tag: str) -> list[str]:
    """Return the snapshots of the given datasets that have a hold with the tag. Skip missing datasets.

    Snapshots of the datasets' children are not included.
    """
    # `userrefs` is the number of holds (zfsprops(7)). It would be slow to list the holds of thousands of snapshots one
    # by one.
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", "snapshot", "-o", "name,userrefs"]
    try:
        listed = table([*argv, *places], 2) if places else []
    except NotFound:
        there = [place for place in places if datasets.exists(place)]
        listed = table([*argv, *there], 2) if there else []
    return snapshots_with_hold([name for name, count in listed if count not in ("0", "-")], tag)


def release(names: Sequence[str], tag: str = HOLD_TAG) -> None:
    """Release the hold with the tag on each snapshot that has such a hold. The snapshots are in one pool."""
    library = libzfs.load()
    if names and library is not None:
        library.release(dict.fromkeys(names, tag))
        return
    known = snapshots_with_hold(names, tag)
    if known:
        run([ZFS, "release", tag, *known])

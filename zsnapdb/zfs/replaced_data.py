"""The search for bookmarks whose state is no longer an earlier state of their dataset.

`zfs receive -F` replaces the data of a dataset, possibly by an older state, and destroys later snapshots. The command
keeps later bookmarks. An increment from such a bookmark lacks the blocks that the replacement restored, and ZFS does
not detect this. A snapshot needs no check, because ZFS destroys the snapshots that are not an earlier state.

Only the history of the pool records a replacement (zpool-history(8), "clone swap").
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.planning import creation_order
from zsnapdb.zfs.command import ZFS, number_in, run, table

_MOST_BYTES, _SECONDS = 64 << 20, 60.0
_EVENT = re.compile(r"\S+ \[txg:([0-9]{1,20})\] (?:clone swap (.+)/%\S+ \([0-9]+\)|rename (.+) \([0-9]+\) -> (\S.*)|)")


@dataclass(frozen=True)
class Replacements:
    """The replacements of data in a pool, from its history: transaction groups, keyed by the dataset's present name.

    `first` is the first transaction group that the history contains (None means the history has no events).
    """

    first: int | None
    groups: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> Replacements:
        """Return the replacements in the output of `zpool history -i`."""
        first: int | None = None
        groups: dict[str, list[int]] = defaultdict(list)
        for line in text.split("\n"):
            event = _EVENT.match(line)
            if event is None:
                continue
            first = int(event[1]) if first is None else first
            if event[2]:
                groups[event[2]].append(int(event[1]))
            elif event[3]:
                for name in [name for name in groups if f"{name}/".startswith(f"{event[3]}/")]:
                    groups[event[4] + name[len(event[3]) :]] = groups.pop(name)
        return cls(first, {name: tuple(made) for name, made in groups.items()})


def abandoned_bookmarks(places: Collection[str], *, if_unknown: bool) -> dict[str, int]:
    """Return the GUIDs of the bookmarks that are not an earlier state of their dataset, keyed by full name.

    The datasets are in one pool. Bookmarks of existing snapshots are omitted. `if_unknown` says whether to return a
    bookmark that is older than the readable history of the pool.
    """
    made: dict[str, dict[str, int]] = {place: {} for place in places}
    bookmarks: dict[str, tuple[str, int, int]] = {}
    argv = [ZFS, "list", "-H", "-p", "-d", "1", "-t", "snapshot,bookmark", "-o", "name,guid,createtxg", *places]
    listed = [(name, number_in(guid, argv), number_in(group, argv)) for name, guid, group in table(argv, 3)]
    guids = {guid for name, guid, _ in listed if "@" in name}
    for name, guid, group in listed:
        place = re.split("[@#]", name)[0]
        if "@" in name:
            made[place][name] = group
        elif guid not in guids:
            bookmarks[name] = (place, guid, group)
    if not bookmarks:
        return {}
    known = Replacements(None, {})
    with contextlib.suppress(ZsnapdbError):
        argv = ["zpool", "history", "-i", pool_of(next(iter(places)))]
        known = Replacements.parse(run(argv, timeout=_SECONDS, most_bytes=_MOST_BYTES))
    found = {}
    for name, (place, guid, group) in bookmarks.items():
        is_kept = creation_order.is_kept_state(group, made[place].values(), known.groups.get(place, ()), known.first)
        if is_kept is False or (is_kept is None and if_unknown):
            found[name] = guid
    return found

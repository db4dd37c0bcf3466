"""Lets a clone take over the commit that it was made from, however large: its quota grows by that, and by no more.

While it takes over, the quota is larger; a note beside it, set in the same change, says what it was. So whoever has the
clone's lock next sets it right, if the process that was at work is killed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from zsnapdb.jobs.clone.properties import COMMIT_PROPERTY, GROWN_PROPERTY, TAKES_NOTHING_OVER, TAKES_OVER_PROPERTY
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.command import is_number, number_in

_NOTE = re.compile(r"([0-9]{1,19}) ([0-9]{1,19})")


@contextlib.contextmanager
def taking_over(revisions: Iterable[str], most: int) -> Iterator[None]:
    """Let these revisions of clones take over up to `most` bytes within the block, whatever their quotas are.

    `zfs promote` is refused if the quota has no room for the snapshots that are taken over. Afterwards each clone may
    write as much as before. A revision without a quota stays without one. The caller holds the locks of the clones.
    """
    begun = []
    for revision in revisions:
        settle(revision)
        quota = number_in(datasets.properties(revision, ["quota"])["quota"].value, ["zfs", "get", "quota", revision])
        if quota:
            note = f"{quota} {_bytes_of_commits(revision)}"
            datasets.set_properties(revision, {"quota": str(quota + most), TAKES_OVER_PROPERTY: note})
            begun.append(revision)
    try:
        yield
    finally:
        for revision in begun:
            settle(revision)


def settle(revision: str) -> None:
    """Give a revision that took something over its quota of before, and as much more as it took over.

    Nothing is changed without a note. What its users wrote since does not count: only what its commits have more.
    """
    seen = datasets.properties(revision, [TAKES_OVER_PROPERTY, GROWN_PROPERTY])
    note = _NOTE.fullmatch(seen[TAKES_OVER_PROPERTY].value) if seen[TAKES_OVER_PROPERTY].is_local else None
    if note is None:
        return
    grown = max(0, _bytes_of_commits(revision) - int(note[2]))
    before = seen[GROWN_PROPERTY].value
    already = int(before) if is_number(before) else 0
    values = {"quota": str(int(note[1]) + grown), GROWN_PROPERTY: str(already + grown)}
    datasets.set_properties(revision, {**values, TAKES_OVER_PROPERTY: TAKES_NOTHING_OVER})


def _bytes_of_commits(revision: str) -> int:
    """Return how many bytes the commits of the revision have that what came before each has not.

    That is what a dataset gets with a snapshot that it takes over, and nothing that is written later changes it
    (`written` of a snapshot, zfsprops(7)).
    """
    seen = snapshots.below(revision, (COMMIT_PROPERTY, "written"))
    return sum(
        number_in(values["written"].value, ["zfs", "get", "written", snapshot.full_name])
        for snapshot, values in seen.items()
        if values[COMMIT_PROPERTY].is_local
    )

"""The takeover of a parent commit by a clone of any size: its quota grows by exactly that commit.

During the takeover the quota is larger. A note, set in the same change, records the earlier quota. If the process is
killed, the next holder of the clone's lock corrects the quota.
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

    ZFS refuses `zfs promote` if the quota has no space for the snapshots that are taken over. Afterwards each clone may
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
    """Set the quota of a revision after a takeover: the earlier quota, and the size of the commits that it took over.

    Nothing is changed without a note. Later writes of its users do not count; only the growth of its commits does.
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
    """Return the bytes that each commit of the revision has more than the snapshot before it, as a sum.

    A dataset gets these bytes with a snapshot that it takes over, and later writes do not change them (`written` of a
    snapshot, zfsprops(7)).
    """
    seen = snapshots.below(revision, (COMMIT_PROPERTY, "written"))
    return sum(
        number_in(values["written"].value, ["zfs", "get", "written", snapshot.full_name])
        for snapshot, values in seen.items()
        if values[COMMIT_PROPERTY].is_local
    )

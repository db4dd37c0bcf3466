"""Since when data of production is kept for subjects: `clones.max_age` ends that, however it is handed on.

A clone holds the snapshots that it was made of, so production's blocks. What would hold them for ever in small steps
counts from the first one: a longer lease, a clone of a commit, a clone of a set that another clone still holds, a
reset, a switch to another branch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import catalogue, causer
from zsnapdb.jobs.clone.clone_info import CloneClaim, CloneInfo
from zsnapdb.jobs.clone.ownership import ROOT
from zsnapdb.jobs.clone.properties import BEGUN_PROPERTY
from zsnapdb.jobs.clone.sources import CloneSource, begun_of, commits
from zsnapdb.jobs.copies.properties import settle_lease
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.lease import FOREVER, CloneLease, read_stamp, require_within_age, stamp
from zsnapdb.planning.clone.source_kind import SourceKind


def begun(source: object, known: Iterable[CloneClaim], host: Host) -> str:
    """Return since when the data of this source is kept for subjects, if a clone gets it now.

    `known` are the other clones: what root has of it does not count.
    """
    of_commit = begun_of(source)
    if of_commit or not isinstance(source, CloneSource):
        return of_commit or stamp(host.latest())
    held = (one.begun for one in known if one.key == source.key and one.owner != ROOT)
    return min((stamp(host.latest()), *held), key=read_stamp)


def begun_after(settings: Settings, host: Host, info: CloneInfo, source: CloneSource) -> str:
    """Return the same for a clone that gets the data of this source in the place of its own.

    PreflightError if that is older than what it has, and its lease longer than a subject may keep it.
    """
    before = info.begun or info.created
    others = [one for one in catalogue.claims(settings).copies if one.name != info.name]
    found = begun(source, others, host)
    if source.kind is SourceKind.COMMIT or source.key == info.key or commits(info.current):
        # Something of what it had before stays.
        found = min(found, before, key=read_stamp)
    if read_stamp(found) < read_stamp(before):
        require(settings, info.lease, None, found)
    return found


def settle(info: CloneInfo, time: RemovalTime) -> CloneInfo:
    """Return the clone with a lease, and an age of its data, that begin now if the clock was ahead when they began."""
    lease = settle_lease(info.top, info.created, info.lease, time, {BEGUN_PROPERTY: info.begun})
    is_late = info.begun and read_stamp(info.begun) != FOREVER and time.is_from_future(read_stamp(info.begun))
    return replace(info, lease=lease, begun=stamp(time.latest) if is_late else info.begun)


def require(settings: Settings, lease: CloneLease, before: CloneLease | None, since: str) -> CloneLease:
    """Return the lease. PreflightError if a subject asks for it and it leads beyond the age that its data may have."""
    if not causer.current():
        return lease
    return require_within_age(lease, before, read_stamp(since), settings.clones.max_age)

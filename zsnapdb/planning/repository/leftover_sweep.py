"""Decides whether to remove leftovers of interrupted runs: objects under backup ids without a manifest. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from zsnapdb.base.quantities import format_setting
from zsnapdb.planning.repository.retention import time_of


@dataclass(frozen=True)
class Leftover:
    """The chunks and the mark of a backup that has no manifest.

    The last write was at `newest` by the store's clock, if known. The field `foreign` is the number of objects with
    keys that zsnapdb never creates. The field `is_of_others` is set if an unknown host wrote the mark. That host may
    continue the backup.
    """

    backup_id: str
    objects: int
    size: int
    newest: datetime | None
    is_marked: bool
    foreign: int = 0
    is_of_others: bool = False


@dataclass(frozen=True)
class BinlogLeftover:
    """The object keys of a partly archived or partly removed binlog. For `newest`, see `Leftover`."""

    incarnation: str
    name: str
    keys: frozenset[str]
    size: int
    newest: datetime | None


L = TypeVar("L", Leftover, BinlogLeftover)


@dataclass(frozen=True)
class SweepDecision(Generic[L]):
    """The decision whether a leftover is removed, with its reason."""

    leftover: L
    remove: bool
    reason: str


NOT_KNOWN = "this host knows no backup of the instance, so nothing proves that this is no part of one"


def decide(
    leftovers: Sequence[Leftover], now: datetime, after: float, stored: Collection[str] = (), *, knows_any: bool = True
) -> tuple[SweepDecision[Leftover], ...]:
    """Return, for each leftover, whether it is removed and why.

    The argument `stored` contains the ids of the backups that this host stored. Chunks of these backups are not
    leftovers, even if the manifest is missing. A host that knows no backup removes nothing, and unfinished backups of
    unknown hosts stay. Any other leftover is removed if both its id and the store's clock show that nothing was written
    to it for `after` seconds. The delay is needed because an upload in progress looks like a leftover, and because a
    later run can use the stored chunks to continue an interrupted backup.
    """
    ordered = sorted(leftovers, key=lambda item: item.backup_id)
    return tuple(_one(leftover, now, after, stored, knows_any) for leftover in ordered)


def _one(
    leftover: Leftover, now: datetime, after: float, stored: Collection[str], knows_any: bool
) -> SweepDecision[Leftover]:
    if leftover.backup_id in stored:
        return SweepDecision(leftover, False, "this host stored this backup, and its manifest is missing")
    if not knows_any:
        return SweepDecision(leftover, False, NOT_KNOWN)
    if leftover.is_of_others:
        return SweepDecision(leftover, False, "foreign: an unfinished backup of a host that this one does not know")
    what = "an unfinished backup" if leftover.is_marked else "chunks of no backup"
    if leftover.newest is None:
        return SweepDecision(leftover, False, f"{what}; the store does not say when it was written")
    return SweepDecision(leftover, *_by_age(what, max(time_of(leftover.backup_id), leftover.newest), now, after))


def _by_age(what: str, latest: datetime, now: datetime, after: float) -> tuple[bool, str]:
    # Both clocks may be wrong. So if one of the times is in the future or too recent, the leftover stays.
    if now - latest < timedelta(seconds=after):
        return False, f"{what}; swept when {format_setting(after)} old, last written {latest:%Y-%m-%d %H:%M:%S} UTC"
    return True, f"{what}, last written {latest:%Y-%m-%d %H:%M:%S} UTC"


def decide_binlogs(
    leftovers: Sequence[BinlogLeftover],
    now: datetime,
    after: float,
    archived: Collection[tuple[str, str]] = (),
    *,
    knows_any: bool = True,
) -> tuple[SweepDecision[BinlogLeftover], ...]:
    """Return, for each leftover of a binlog, whether it is removed and why.

    The argument `archived` contains the binlogs that this host archived completely. A binlog that is being archived
    looks like a leftover, so only old leftovers are removed.
    """
    what = "parts of no archived binlog"

    def one(item: BinlogLeftover) -> SweepDecision[BinlogLeftover]:
        if (item.incarnation, item.name) in archived:
            return SweepDecision(item, False, "this host archived this binlog, and its description is missing")
        if not knows_any:
            return SweepDecision(item, False, NOT_KNOWN)
        if item.newest is None:
            return SweepDecision(item, False, f"{what}; the store does not say when they were written")
        return SweepDecision(item, *_by_age(what, item.newest, now, after))

    return tuple(one(item) for item in sorted(leftovers, key=lambda item: (item.incarnation, item.name)))

"""Which leftovers of interrupted runs a prune sweeps: objects below ids that have no manifest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from zsnapdb.base.quantities import format_setting
from zsnapdb.planning.repository.retention import time_of


@dataclass(frozen=True)
class Leftover:
    """Chunks and the mark of a backup without a manifest.

    `newest` is when the last of it was written, by the store's clock; None if that is not known. `foreign` objects have
    keys that zsnapdb never makes.
    """

    backup_id: str
    objects: int
    size: int
    newest: datetime | None
    is_marked: bool
    foreign: int = 0


@dataclass(frozen=True)
class SweepDecision:
    """Whether a leftover goes, and why."""

    leftover: Leftover
    remove: bool
    reason: str


def decide(leftovers: Sequence[Leftover], now: datetime, after: float) -> tuple[SweepDecision, ...]:
    """Return a decision for each leftover.

    A leftover goes when `after` seconds have passed without a write, both by its id and by the store's clock. An upload
    under way looks the same, and a run that was interrupted goes on with the chunks that are there.
    """
    return tuple(_one(leftover, now, after) for leftover in sorted(leftovers, key=lambda item: item.backup_id))


def _one(leftover: Leftover, now: datetime, after: float) -> SweepDecision:
    what = "an unfinished backup" if leftover.is_marked else "chunks of no backup"
    if leftover.newest is None:
        return SweepDecision(leftover, False, f"{what}; the store does not say when it was written")
    return SweepDecision(leftover, *_by_age(what, max(time_of(leftover.backup_id), leftover.newest), now, after))


def _by_age(what: str, latest: datetime, now: datetime, after: float) -> tuple[bool, str]:
    # Both clocks may be wrong; neither a time to come nor one too near is old enough.
    if now - latest < timedelta(seconds=after):
        return False, f"{what}; swept when {format_setting(after)} old, last written {latest:%Y-%m-%d %H:%M:%S} UTC"
    return True, f"{what}, last written {latest:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class BinlogLeftover:
    """Objects, by key, of a binlog that was half archived or half removed. `newest` is as in a Leftover."""

    incarnation: str
    name: str
    keys: frozenset[str]
    size: int
    newest: datetime | None


@dataclass(frozen=True)
class SweptBinlog:
    """Whether a binlog's leftover goes, and why."""

    leftover: BinlogLeftover
    remove: bool
    reason: str


def decide_binlogs(leftovers: Sequence[BinlogLeftover], now: datetime, after: float) -> tuple[SweptBinlog, ...]:
    """Return a decision for each leftover of a binlog.

    A binlog that is being archived looks the same, so only an old leftover goes.
    """
    what = "parts of no archived binlog"
    return tuple(
        (
            SweptBinlog(item, False, f"{what}; the store does not say when they were written")
            if item.newest is None
            else SweptBinlog(item, *_by_age(what, item.newest, now, after))
        )
        for item in sorted(leftovers, key=lambda item: (item.incarnation, item.name))
    )

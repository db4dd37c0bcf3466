"""Resets a clone: gives it the data of a snapshot set again; its name, port, credentials and lease stay.

The cheapest way that is right is taken: some rows are undone, else its user gets another clone that waits in the pool,
else its data is replaced. What is more than some rows takes longer to load, so it is loaded only where it is needed.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from zsnapdb.base.errors import PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import address, handed, heartbeat, row_reset
from zsnapdb.jobs.clone.catalogue import held, of_dataset, ready, refuse_other
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.handed import NotedReset
from zsnapdb.jobs.clone.row_reset import UndoneRows

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.data_reset import ResetPlan


class ResetWay(StrEnum):
    """How a reset gives a clone its data again."""

    UNDO = "undo"
    SWAP = "swap"
    REPLACE = "replace"


@dataclass(frozen=True)
class ResetIntention:
    """What a reset would do to the clone: undo so many changes of rows, take the place of a waiting clone, or replace.

    `reason` says why it is none of the cheaper ways ("": it is the cheapest, or none was asked for).
    """

    info: CloneInfo
    undoes: int | None = None
    slot: CloneInfo | None = None
    replaces: ResetPlan | None = None
    reason: str = ""

    @property
    def way(self) -> ResetWay:
        """How the clone would get its data again."""
        if self.undoes is not None:
            return ResetWay.UNDO
        return ResetWay.SWAP if self.slot is not None else ResetWay.REPLACE


@dataclass(frozen=True)
class ResetClone:
    """A clone that was reset: by undoing rows, by a swap that took so many seconds, or by replacing its data.

    `reason` says why it was none of the cheaper ways ("": it is the cheapest, or none was asked for).
    """

    info: CloneInfo
    undone: UndoneRows | None = None
    swap_seconds: float | None = None
    reason: str = ""

    @property
    def way(self) -> ResetWay:
        """How the clone got its data again."""
        if self.undone is not None:
            return ResetWay.UNDO
        return ResetWay.SWAP if self.swap_seconds is not None else ResetWay.REPLACE


def reset_plan(
    settings: Settings,
    host: Host,
    name: str,
    requested: str | None,
    *,
    accepts_older: bool = False,
    replaces: bool = False,
) -> ResetIntention:
    """Return what `reset` would do; change nothing. What is written meanwhile may change it."""
    from zsnapdb.jobs.clone import data_reset, swap

    info, reasons = ready(settings, host, name), list[str]()
    if requested is None and not replaces:
        try:
            return ResetIntention(info, undoes=row_reset.plan(settings, host, info))
        except (ZsnapdbError, OSError) as error:
            reasons.append(_reason(error))
        if swap.is_offered(settings):
            try:
                return ResetIntention(info, slot=swap.plan(settings, host, info), reason=reasons[0])
            except (ZsnapdbError, OSError) as error:
                reasons.append(f"no swap: {_reason(error)}")
    planned = data_reset.plan(settings, host, info, requested, accepts_older=accepts_older)
    return ResetIntention(info, replaces=planned, reason="; ".join(reasons))


def _reason(error: ZsnapdbError | OSError) -> str:
    return error.message if isinstance(error, ZsnapdbError) else f"reading its files: {error.strerror}"


def reset(
    settings: Settings,
    host: Host,
    name: str,
    requested: str | None,
    events: Events,
    *,
    accepts_older: bool = False,
    replaces: bool = False,
    meant: CloneInfo | None = None,
) -> ResetClone:
    """Give the clone its original data again (`requested` None), or the data of the requested snapshot set.

    The original data is that of the snapshot set that the clone was created from, whatever it was reset to since.
    Kept port, credentials and lease stay. Afterwards a server of the clone runs on that data. The data of before is
    gone, or nobody's; the clone's commits stay. The way is the cheapest one that is certain to give the same, unless
    the data is to be replaced in any case (`replaces`). `accepts_older` is as for `locate`. UnknownNameError if another
    clone has the name by now than the one that is `meant`.
    """
    with held(settings, host, name) as info:
        if meant is not None:
            refuse_other(meant, info)
        done = _reset(settings, host, info, requested, events, accepts_older=accepts_older, replaces=replaces)
        handed.note_reset(host, done.info, _noted(host.run_id(), done))
        if done.info.lease.heartbeat is not None:
            # Whoever waited for this did not beat meanwhile. No sweep judges the clone before the lock is free.
            with contextlib.suppress(PreflightError):
                heartbeat.beat(host, done.info.name)
        return done


def _noted(run: str, done: ResetClone) -> NotedReset:
    if done.undone is not None:
        undone = done.undone
        return NotedReset(
            run_id=run, transactions=undone.transactions, rows=undone.rows, seconds=undone.seconds, reason=done.reason
        )
    return NotedReset(run_id=run, seconds=done.swap_seconds, reason=done.reason)


def done_by_run(settings: Settings, host: Host, name: str) -> ResetClone | None:
    """Return what the run of this id has done if it has reset the clone, and nothing gave it other data since."""
    info = ready(settings, host, name)
    state = handed.read(host, info)
    noted = state.reset if state is not None else None
    if noted is None or noted.run_id != host.run_id():
        return None
    if noted.rows is None or noted.transactions is None or noted.seconds is None:
        return ResetClone(info, swap_seconds=noted.seconds, reason=noted.reason)
    return ResetClone(info, UndoneRows(noted.transactions, noted.rows, noted.seconds), reason=noted.reason)


def _reset(
    settings: Settings,
    host: Host,
    info: CloneInfo,
    requested: str | None,
    events: Events,
    *,
    accepts_older: bool,
    replaces: bool,
) -> ResetClone:
    """Reset the clone in the cheapest way; the caller holds its lock."""
    reasons, began = list[str](), time.monotonic()
    if requested is None and not replaces:
        try:
            undone = row_reset.undo_rows(settings, host, info)
        except (ZsnapdbError, OSError) as error:
            reasons.append(_reason(error))
        else:
            return ResetClone(address.open_to(settings, info, events), undone)
    handed.forget(host, info.name)
    from zsnapdb.jobs.clone import swap

    if reasons and swap.is_offered(settings):
        try:
            swapped = swap.swap(settings, host, info, events)
            return ResetClone(swapped, swap_seconds=time.monotonic() - began, reason=reasons[0])
        except (ZsnapdbError, OSError) as error:
            if of_dataset(settings, host, info.name).guid != info.guid:
                # The error came after the exchange: what this dataset has is nobody's by now.
                raise
            reasons.append(f"no swap: {_reason(error)}")
    from zsnapdb.jobs.clone import data_reset

    replaced = data_reset.replace_data(settings, host, info, requested, events, accepts_older=accepts_older)
    return ResetClone(replaced, reason="; ".join(reasons))

"""How the recorded load of production went on beside a migration: how far it came, and how late it was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RecordedTransaction:
    """A transaction of the load: it ends in this relay log at this offset, and is due so long after the load begins.

    Relay logs are numbered from 1, offsets are in bytes. `due` in seconds; production committed it at that pace.
    """

    log: int
    end: int
    due: float


@dataclass(frozen=True)
class AppliedSample:
    """How far the applier was, so many seconds after the load began. All before `offset` of relay log `log` is done."""

    seconds: float
    log: int
    offset: int


@dataclass(frozen=True)
class LoadFindings:
    """What became of the recorded load.

    It began at the snapshot set `begins_at`. `transactions` were applied, which production committed within `seconds`.
    `late` is the longest time that a transaction was late during the migration, `late_before` in the seconds before it.
    `is_through`: all of the load was applied before the migration ended. `error`: why it stopped ("": it did not).
    """

    begins_at: str
    transactions: int
    seconds: float
    late: float
    late_before: float
    is_through: bool
    error: str = ""


def load_findings(
    begins_at: str,
    recorded: Iterable[RecordedTransaction],
    samples: Sequence[AppliedSample],
    migration_began: float,
    error: str,
) -> LoadFindings:
    """Return what became of the load. The transactions and the samples are in their order, the samples of one run.

    The transaction that is applied next is late by the time since it was due. A load that stopped with an error is late
    by nothing after its last sample.
    """
    waiting = iter(recorded)
    following = next(waiting, None)
    done, seconds = 0, 0.0
    late = late_before = 0.0
    for sample in samples:
        while following is not None and (following.log, following.end) <= (sample.log, sample.offset):
            done, seconds = done + 1, max(seconds, following.due)
            following = next(waiting, None)
        if following is None:
            break
        behind = max(0.0, sample.seconds - following.due)
        if sample.seconds < migration_began:
            late_before = max(late_before, behind)
        else:
            late = max(late, behind)
    return LoadFindings(begins_at, done, seconds, late, late_before, following is None, error)

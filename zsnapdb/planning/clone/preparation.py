"""Whether a new clone is masked alone, or made of a form of its set that is masked once for all clones. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from zsnapdb.base.quantities import format_duration
from zsnapdb.planning.clone.lease import JudgedLease, LeaseVerdict, read_stamp
from zsnapdb.planning.clone.source_kind import SourceKind

_IN_USE = timedelta(hours=1)
"""A command that has just made or used a set may be about to clone it."""


class MaskingWay(StrEnum):
    """How the data of a new clone is masked.

    none: it is not, or was before. prepared: its set was masked when it was prepared. prepares: its set is masked now,
    once for all its clones. alone: the clone itself is masked.
    """

    NONE = "none"
    PREPARED = "prepared"
    PREPARES = "prepares"
    ALONE = "alone"


@dataclass(frozen=True)
class MaskingChoice:
    """How a new clone is masked, and why in this way."""

    way: MaskingWay
    reason: str


@dataclass(frozen=True)
class MaskingCase:
    """What a new clone is made of, and for.

    `rules` is the digest of the rules by which it is still to be masked ("": it is not), `source_rules` of those by
    which its source was masked ("": it was not). `is_stored`: it is made of a stored backup, here or in the repository,
    and of no local or live set. `names_latest`: the request names no older set. `starts`: its server is started now.
    `is_ephemeral`: a command makes it for itself. `keep_unused`: how long sets that no clone depends on stay (seconds).
    """

    kind: SourceKind
    rules: str
    source_rules: str
    is_stored: bool
    names_latest: bool
    starts: bool
    is_ephemeral: bool
    keep_unused: float


_NOT_PREPARED = {
    SourceKind.LIVE: "its data is that of now, which no other clone asks for",
    SourceKind.POINT: "it has the data of a point, and only sets are prepared",
    SourceKind.COMMIT: "a prepared form of a commit would keep the clone that has the commit",
    SourceKind.SNAPSHOT: "a prepared form would keep the snapshots of another program",
    SourceKind.REPLACED: "a prepared form would keep the server that was replaced",
}
"""Why no form of such a source is made unasked: it would hold something that others want to remove."""


def masking_choice(case: MaskingCase) -> MaskingChoice:
    """Return how the clone is masked.

    A form is made only of what the next clone will most probably be made of too, so that whoever may make clones, and
    may not prepare sets, leaves at most one form for each new backup.
    """
    if not case.rules:
        return MaskingChoice(MaskingWay.NONE, "nothing of it is to be masked")
    if case.source_rules == case.rules:
        return MaskingChoice(MaskingWay.PREPARED, "its set was masked when it was prepared, by the rules of now")
    reason = _objection(case)
    if reason is not None:
        return MaskingChoice(MaskingWay.ALONE, reason)
    return MaskingChoice(MaskingWay.PREPARES, "its set is the newest, and was not masked by the rules of now")


def _objection(case: MaskingCase) -> str | None:
    """Return why no form is made for this clone; None if one is."""
    if case.kind in _NOT_PREPARED:
        return _NOT_PREPARED[case.kind]
    if not case.starts:
        return "its server is started later, and what is masked is decided then"
    if case.is_ephemeral:
        return "a command makes it for itself, and leaves nothing"
    if not case.names_latest:
        return "only the newest set is prepared unasked; `zsnapdb clone prepare` prepares others, if they are named"
    if not case.is_stored:
        return "its set is no stored backup, and a prepared form would keep it"
    if not case.keep_unused:
        return "clones.keep_unused is 0: no form would stay"
    return None


@dataclass(frozen=True)
class UnusedSet:
    """A received or prepared set: how many clones depend on it, and when it was last used (as stored).

    `is_form`: it is the prepared form of a set, and can be made again of that.
    """

    clones: int
    used: str
    is_form: bool


def judge_set(item: UnusedSet, keep_unused: float, short: str, now: datetime) -> JudgedLease:
    """Return what a sweep does with a received or prepared set, and why.

    `short` says why its pool has too little space ("": it has enough): then a prepared form that no clone depends on
    goes after an hour. An unreadable time of use keeps the set.
    """
    if item.clones:
        return JudgedLease(LeaseVerdict.KEEP, f"{item.clones} clones depend on it")
    unused = now - read_stamp(item.used)
    if unused >= timedelta(seconds=keep_unused):
        return JudgedLease(LeaseVerdict.REAP, f"not used since {item.used}")
    if short and item.is_form and unused >= _IN_USE:
        return JudgedLease(LeaseVerdict.REAP, f"not used since {item.used}, and {short}")
    return JudgedLease(LeaseVerdict.KEEP, f"last used at {item.used}, kept {format_duration(keep_unused)} after that")

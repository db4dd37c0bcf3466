"""Judges what a server in a drilled machine says of its position, by what it had published around the snapshot. Pure.

The server has recovered when it answers, and programs in its machine may have written since. What it had recovered to
is what the binlog of its start begins with: a server begins one at each start, and lists in it what the older ones
contain (Gtid_list of MariaDB, Previous_gtids of MySQL).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains
from zsnapdb.base.model import Flavour, Position

_LONGEST = 400


@dataclass(frozen=True)
class InsideAnswer:
    """A server's answers: its family, version and identity, and its binlogs with their bytes, oldest first.

    `recovered` is what the binlog of its start begins with, `executed` what all contain now. None: it has no GTIDs.
    """

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    binlogs: tuple[tuple[str, int], ...]
    recovered: Gtids | None
    executed: Gtids | None


class InsideResult(StrEnum):
    """What is known: PROVED, WRONG (the copy is not what was backed up), or UNPROVABLE."""

    PROVED = "proved"
    WRONG = "wrong"
    UNPROVABLE = "unprovable"


@dataclass(frozen=True)
class InsideVerdict:
    """A judgement with its reason in words."""

    result: InsideResult
    reason: str


@dataclass(frozen=True)
class InsideIdentity:
    """Who the server was when it was backed up. `server_uuid` None: it has none."""

    flavour: Flavour
    server_uuid: str | None
    server_id: int


def binlog_of_start(names: Sequence[str], published: str | None) -> str:
    """Return the binlog that the server began when it started in the drill. `names` are all, oldest first.

    It is the first one after `published`, the last to which it had written around the snapshot: later ones may have
    been begun since (FLUSH LOGS of a log rotation). If that is not known (None) or not there, it is the newest.
    """
    later = [name for name in names if published is not None and _position_number(name) > _position_number(published)]
    return later[0] if later else names[-1]


def judge_identity(expected: InsideIdentity, answer: InsideAnswer) -> InsideVerdict:
    """Return whether the server is the one that was backed up."""
    if expected.flavour is not answer.flavour:
        return _wrong(f"it is a server of {answer.flavour.value}, and {expected.flavour.value} was backed up")
    if expected.server_uuid is not None and expected.server_uuid.lower() != answer.server_uuid:
        return _wrong(f"its server_uuid is {answer.server_uuid}, and {expected.server_uuid} was backed up")
    if expected.server_id != answer.server_id:
        return _wrong(f"its server_id is {answer.server_id}, and {expected.server_id} was backed up")
    own = answer.server_uuid or f"server_id {answer.server_id}"
    return InsideVerdict(InsideResult.PROVED, f"{answer.flavour.value} {answer.version}, {own}, as in the backup")


def judge_position(before: Position, after: Position | None, answer: InsideAnswer) -> InsideVerdict:
    """Return whether the server recovered to a state between what it had published before and after the snapshot.

    `after` None: the lock was lost, so nothing bounds the state from above. GTIDs decide; without them binlog files and
    offsets do.
    """
    if before.gtids is not None and answer.recovered is not None:
        return _by_gtids(before.gtids, after.gtids if after is not None else None, answer, answer.recovered)
    if before.coordinates is None:
        return InsideVerdict(InsideResult.UNPROVABLE, "the server that was backed up wrote no binlog")
    if before.gtids is not None:
        return _wrong("it has no GTIDs in the binlog of its start, and had some when it was backed up")
    return _by_files(before, after, answer)


def _by_gtids(before: Gtids, after: Gtids | None, answer: InsideAnswer, recovered: Gtids) -> InsideVerdict:
    certain = _held(answer, recovered)
    if not contains(certain, before):
        return _wrong(
            f"it recovered to {_short(recovered)} and lacks {_lacking(before, certain)}, which it had published before"
            " the snapshot"
        )
    if after is not None and not contains(after, recovered):
        return _wrong(
            f"it recovered to {_short(recovered)} and has {_lacking(recovered, after)}, which it had not published"
            " after the snapshot"
        )
    above = f", and nothing beyond {_short(after)}" if after is not None else "; nothing bounds it from above"
    return InsideVerdict(InsideResult.PROVED, f"recovered to {_short(recovered)}: all of {_short(before)}{above}")


def _held(answer: InsideAnswer, recovered: Gtids) -> Gtids:
    """Return what the server has for certain: what its binlogs had, and transactions of other servers.

    A replica of MySQL may apply without logging. A transaction of another server is the same whenever it is applied.
    One of its own may have been written since the start, under a number that was lost.
    """
    if not isinstance(recovered, GtidSet) or not isinstance(answer.executed, GtidSet):
        return recovered
    others = {
        source: intervals
        for source, intervals in answer.executed.intervals.items()
        if source.partition(":")[0] != answer.server_uuid
    }
    return recovered.union(GtidSet(others))


def _lacking(wanted: Gtids, held: Gtids) -> str:
    """Return what is wanted and not held, in words."""
    if isinstance(wanted, GtidSet) and isinstance(held, GtidSet):
        return _short(wanted.minus(held))
    if isinstance(wanted, GtidPosition) and isinstance(held, GtidPosition):
        heads = {
            domain: head
            for domain, head in wanted.heads.items()
            if domain not in held.heads or held.heads[domain][1] < head[1]
        }
        return f"transactions up to {_short(GtidPosition(heads))}"
    return _short(wanted)


def _by_files(before: Position, after: Position | None, answer: InsideAnswer) -> InsideVerdict:
    sizes, at = dict(answer.binlogs), before.coordinates
    assert at is not None
    if at.file not in sizes:
        return _without_file(at.file, [name for name, _ in answer.binlogs])
    if sizes[at.file] < at.offset:
        return _wrong(
            f"its binlog {at.file} has {sizes[at.file]} bytes, and it had published {at.offset} before the snapshot"
        )
    until = after.coordinates if after is not None else None
    if until is not None and sizes.get(until.file, 0) > until.offset:
        return _wrong(
            f"its binlog {until.file} has {sizes[until.file]} bytes, and it had published {until.offset} after the"
            " snapshot"
        )
    return InsideVerdict(
        InsideResult.PROVED,
        f"its binlogs reach {at.file}:{at.offset}, published before the snapshot, and do not pass what was published"
        " after it; it has no GTIDs, so transactions were not compared",
    )


def _without_file(file: str, names: Sequence[str]) -> InsideVerdict:
    number = _position_number(file)
    if names and all(_position_number(name) > number for name in names):
        return InsideVerdict(InsideResult.UNPROVABLE, f"the server has removed its binlog {file} since it started")
    return _wrong(f"it has no binlog {file}, to which it wrote before the snapshot")


def _position_number(name: str) -> int:
    digits = name.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _short(gtids: Gtids) -> str:
    text = str(gtids) or "(no transactions)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _wrong(reason: str) -> InsideVerdict:
    return InsideVerdict(InsideResult.WRONG, reason)

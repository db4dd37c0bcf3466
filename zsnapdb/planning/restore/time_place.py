"""Between which transactions a moment lies, by proof and not by the times that sessions wrote. Pure.

Transactions are committed in the order of the binlog. So a moment lies after the last one that was surely committed by
then, and before the first one that was surely committed later. A transaction proves this by the time in its events, as
long as the archiver saw nothing else and the times of its neighbours agree; otherwise by what the archiver saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from zsnapdb.base.errors import AmbiguousPointError
from zsnapdb.planning.binlog.commit_times import TOLERANCE
from zsnapdb.planning.binlog.route import RouteFile, commit_time
from zsnapdb.planning.restore.boundaries import Scanned
from zsnapdb.planning.restore.histories import shown
from zsnapdb.planning.restore.points import RestoreRoute
from zsnapdb.planning.restore.targets import AtTime

_TOLERANCE = timedelta(microseconds=TOLERANCE)
_STEP = timedelta(seconds=1)
"""Times that are nearer to each other count as one, so that few are kept."""

Scan = Callable[[RouteFile], Iterable[Scanned]]
Stop = tuple[int, int]
"""The place of a file among those of a choice, and the offset in it at which the replay stops."""


@dataclass(frozen=True)
class _Bounds:
    """A transaction that was committed between two times, its number in the order of commits, and the stop before."""

    number: int
    earliest: datetime
    latest: datetime
    before: Stop
    transaction: Scanned
    file: str

    def name(self) -> str:
        """Return the transaction in a few words."""
        return f"{self.transaction.gtid or '(no GTID)'} (at {self.file}:{self.transaction.end})"


@dataclass
class _Search:
    """The last transaction that is surely in a state, and the first that is surely not, of those seen so far.

    `inside` and `outside` are candidates: a later transaction that was committed before them proves them wrong.
    """

    moment: datetime
    highest: datetime
    inside: list[_Bounds] = field(default_factory=list)
    outside: list[_Bounds] = field(default_factory=list)

    def see(self, one: _Bounds) -> None:
        """Take in the next transaction."""
        while self.inside and self.inside[-1].earliest > one.latest + _TOLERANCE:
            self.inside.pop()
        while self.outside and self.outside[0].earliest > one.latest + _TOLERANCE:
            self.outside.pop(0)
        is_in_order = one.latest >= self.highest - _TOLERANCE
        self.highest = max(self.highest, one.earliest)
        if not is_in_order:
            return
        if one.latest <= self.moment:
            while self.inside and one.earliest < self.inside[-1].earliest + _STEP:
                self.inside.pop()
            self.inside.append(one)
        elif self._is_later(one) and (not self.outside or one.earliest < self.outside[-1].earliest):
            self.outside.append(one)

    def _is_later(self, one: _Bounds) -> bool:
        """Whether a transaction was committed after the moment; one that was seen may be earlier by the tolerance."""
        return one.earliest > self.moment - (_TOLERANCE if one.earliest < one.latest else timedelta())


def find_stop(choice: RestoreRoute, start: int, scan: Scan, now: datetime) -> Stop:
    """Return where a replay to a time stops: the place of the file in the choice, and the offset in it.

    `start` is the offset in the first file of the choice at which its replay begins. AmbiguousPointError names the
    transactions between which the time lies, if it is not known which of those between them were committed by then.
    """
    target = choice.target
    assert isinstance(target, AtTime)
    taken = commit_time(choice.point.taken)
    search = _Search(target.moment, taken)
    place, number = choice.first_doubtful, 0
    stop = (place, start if place == 0 else choice.files[place].start)
    for place in range(choice.first_doubtful, len(choice.files)):
        file = choice.files[place]
        begin = start if place == 0 else file.start
        for transaction in scan(file):
            if transaction.end <= begin:
                continue
            number += 1
            earliest, latest = _between(transaction, taken, now)
            search.see(_Bounds(number, earliest, latest, stop, transaction, file.name))
            stop = (place, transaction.end)
    last = search.inside[-1] if search.inside else None
    following = search.outside[0] if search.outside else None
    passed = last.number if last is not None else 0
    if following is not None and passed >= following.number - 1:
        return following.before
    if following is None and passed == number:
        return stop
    raise _unclear(
        choice, target.moment, last, following, (number if following is None else following.number - 1) - passed
    )


def _between(transaction: Scanned, taken: datetime, now: datetime) -> tuple[datetime, datetime]:
    """Return the times between which a transaction after the backup was committed, as far as they are known."""
    if transaction.between is not None:
        earliest, latest = transaction.between
        return (min(taken, latest) if earliest is None else earliest), latest
    stamp = transaction.committed
    is_before_backup = stamp < taken - _TOLERANCE and not transaction.is_exact
    if is_before_backup or stamp > now + _TOLERANCE:
        return min(taken, now), now
    return stamp, stamp


def _unclear(
    choice: RestoreRoute, moment: datetime, last: _Bounds | None, following: _Bounds | None, count: int
) -> AmbiguousPointError:
    backup = choice.point.backup_id
    low = f"after {last.name()}" if last is not None else f"after backup {backup}"
    end = choice.route.files[len(choice.files) :]
    high = following.name() if following is not None else f"{end[0].name}" if end else "the end of the archive"
    first = last.transaction.gtid if last is not None else backup
    until = following.transaction.gtid if following is not None else None
    ways = [f"`--to {first}`"] if first is not None else []
    ways += [f"`--to before-{until}`"] if until is not None else []
    hint = f"choose one of these states: {' or '.join(ways)} (`--at` of clones and questions)" if ways else ""
    return AmbiguousPointError(
        f"{shown(moment)} cannot be placed: it lies {low} and before {high}; the {count} transaction(s) between them do"
        " not have the times of their commits",
        hint=hint or "name an earlier or a later time, or `latest`",
    )

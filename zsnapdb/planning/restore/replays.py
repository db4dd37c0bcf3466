"""Determines where a replay starts and stops, based on the transactions in binlogs, and builds its steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.errors import AmbiguousPointError, NotFound
from zsnapdb.base.gtid import GtidPosition, Gtids, contains, joined
from zsnapdb.planning.binlog.archive_times import TOLERANCE
from zsnapdb.planning.binlog.route import BackupPoint, EndKind, Route, RouteFile, commit_time
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestorePoint
from zsnapdb.planning.restore.point_forms import AtGtids, AtTime, BeforeGtid, Latest, Target
from zsnapdb.planning.restore.route_choice import RestoreRoute, readable_time
from zsnapdb.planning.restore.steps import LogPart, Replay


@dataclass(frozen=True)
class Scanned:
    """A transaction that was read from a binlog: its offsets, its GTID and its commit time (UTC).

    The time `committed` comes from its events. If the archiver observed a different commit time, `between` contains the
    bounds of the observed time. The first bound is None if it is unknown.
    """

    gtid: str | None
    start: int
    end: int
    committed: datetime
    is_exact: bool = True
    between: tuple[datetime | None, datetime] | None = None


def start_in(route: Route, scanned: Iterable[Scanned]) -> int:
    """Return the offset, in the route's first file, of the first transaction that the backup does not contain.

    The argument `scanned` yields all transactions of that file. They are read only if the route does not contain the
    exact offset.
    """
    if route.is_start_exact:
        return route.start
    end = route.start
    for transaction in scanned:
        if not _has(route.point, transaction):
            return transaction.start
        end = transaction.end
    return end


def _has(point: BackupPoint, transaction: Scanned) -> bool:
    return (
        point.gtids is not None
        and transaction.gtid is not None
        and contains(point.gtids, parse_gtids(point.flavour, transaction.gtid))
    )


@dataclass(frozen=True)
class Boundary:
    """The offset at which the replay of the last binlog stops, and the GTIDs of all transactions up to it.

    The replay stops after the transaction `last` and before the transaction `following`. If `last` is None, the replay
    stops where it starts.
    """

    stop: int
    last: Scanned | None
    following: Scanned | None
    gtids: Gtids | None


def boundary_in(choice: RestoreRoute, start: int, scanned: Iterable[Scanned], end: int | None = None) -> Boundary:
    """Return the boundary at which the replay stops in the last binlog.

    The replay of this binlog begins at `start`, an offset in bytes. The argument `scanned` contains all its
    transactions.

    If the target is a time, the replay stops at the offset `end` (see `find_stop`). Raises NotFound if the target is a
    GTID that this history assigned to another transaction.
    """
    point, target = choice.point, choice.target
    reached = reduce(joined, (file.gtids for file in choice.files[:-1]), point.gtids)
    last: Scanned | None = None
    following: Scanned | None = None
    gtids, pending = reached, reached
    sought = _Sought.of(target, point.flavour, end)
    stop = start
    for transaction in scanned:
        if transaction.end <= start:
            continue
        own = parse_gtids(point.flavour, transaction.gtid) if transaction.gtid is not None else None
        pending = joined(pending, own)
        if sought.includes(transaction, own, gtids):
            last, stop, gtids, following = transaction, transaction.end, pending, None
            continue
        following = following or transaction
        if last is not None or not sought.is_one_of_mariadb:
            break
    if isinstance(target, AtGtids | BeforeGtid):
        at = last if isinstance(target, AtGtids) else following
        check_stop(target.text, point.flavour, at.gtid if at else None, choice.files[-1].name)
    return Boundary(stop, last, following, gtids)


@dataclass(frozen=True)
class _Sought:
    """The condition that decides which transactions a target includes.

    The GTIDs of the target are parsed only once, because there may be millions of transactions.
    """

    target: Target
    gtids: Gtids | None
    end: int | None

    @classmethod
    def of(cls, target: Target, flavour: Flavour, end: int | None) -> _Sought:
        named = parse_gtids(flavour, target.text) if isinstance(target, AtGtids | BeforeGtid) else None
        return cls(target, named, end)

    @property
    def is_one_of_mariadb(self) -> bool:
        """Whether the replay stops at a single MariaDB GTID, rather than at a set or a position of several domains."""
        is_one = isinstance(self.gtids, GtidPosition) and len(self.gtids.heads) == 1
        return is_one and isinstance(self.target, AtGtids)

    def includes(self, transaction: Scanned, own: Gtids | None, reached: Gtids | None) -> bool:
        """Return whether the transaction, whose GTID is `own`, belongs to the target state.

        The argument `reached` contains the GTIDs of all transactions before this transaction.
        """
        if isinstance(self.target, AtTime):
            return self.end is not None and transaction.end <= self.end
        if isinstance(self.target, BeforeGtid):
            return own is None or own != self.gtids
        if self.is_one_of_mariadb:
            # Two servers may assign the same number in one domain, in any order (gtid_strict_mode=OFF).
            return own is not None and own == self.gtids
        if self.gtids is not None:
            return reached is None or not contains(reached, self.gtids)
        return True


def to_transaction(transaction: Scanned | None, file: str) -> ArchivedTransaction | None:
    """Return a scanned transaction in the format of the plan."""
    if transaction is None:
        return None
    return ArchivedTransaction(transaction.gtid, transaction.committed, file, transaction.end)


def restore_point(choice: RestoreRoute, boundary: Boundary | None, following_file: str | None = None) -> RestorePoint:
    """Return the point that a route reaches. If there is no boundary, the point is the backup itself.

    The first omitted transaction is in the binlog `following_file`.
    """
    is_short = isinstance(choice.target, Latest) and choice.route.end.kind not in (EndKind.NEWEST, EndKind.NO_ARCHIVE)
    notes = [*choice.notes, *([f"the archive reaches no further: {choice.route.end.reason}"] if is_short else [])]
    if boundary is None:
        gtids = choice.point.gtids
        return RestorePoint(None if gtids is None else str(gtids), notes=tuple(notes))
    file = choice.files[-1].name
    following = to_transaction(boundary.following, following_file or file)
    return RestorePoint(
        None if boundary.gtids is None else str(boundary.gtids),
        to_transaction(boundary.last, file),
        following,
        tuple(notes),
    )


def newest_in_backup(
    first: RouteFile,
    start: int,
    scanned: Iterable[Scanned],
    files: Sequence[RouteFile],
    snapshot_by: datetime | None = None,
) -> datetime | None:
    """Return the commit time of the last transaction in a backup; None if the archive lacks that transaction.

    The backup's position is the offset `start` in the binlog `first`, whose transactions are `scanned`. If that binlog
    has no transaction before the offset, earlier archived binlogs in `files` are used. If a session may have set the
    commit time itself, the result is limited to `snapshot_by`, the latest possible time of the snapshot.
    """
    newest = None
    for transaction in scanned:
        if transaction.end > start:
            break
        newest = transaction.between[1] if transaction.between is not None else transaction.committed
        if snapshot_by is not None and not transaction.is_exact:
            newest = min(newest, snapshot_by)
    if newest is not None:
        return newest
    following = first
    for file in sorted(files, key=lambda file: file.number, reverse=True):
        if file.incarnation != first.incarnation or file.number >= following.number:
            continue
        if following.gap is not None or file.number != following.number - 1:
            return None
        if file.last_commit is not None:
            return commit_time(file.last_commit)
        following = file
    return None


def is_past(target: Target, newest: datetime | None, snapshot_by: datetime) -> bool:
    """Return whether a backup may contain a transaction that was committed after the target time.

    The argument `newest` is the commit time of the last transaction in the backup. If it is unknown (None), the backup
    may contain all commits up to its snapshot. By the clock at that time, the snapshot was created no later than
    `snapshot_by`.
    """
    return isinstance(target, AtTime) and (snapshot_by if newest is None else newest) > target.moment


_TOLERANCE = timedelta(microseconds=TOLERANCE)
_STEP = timedelta(seconds=1)
"""The minimum distance in time of two candidates. Closer times are treated as equal, to keep few candidates."""

Scan = Callable[[RouteFile], Iterable[Scanned]]
Stop = tuple[int, int]
"""The place of a file in the route, and the offset in the file at which the replay stops."""


@dataclass(frozen=True)
class _Bounds:
    """A transaction with the bounds of its commit time, its number in commit order, and the stop directly before it."""

    number: int
    earliest: datetime
    latest: datetime
    before: Stop
    transaction: Scanned
    file: str

    def name(self) -> str:
        return f"{self.transaction.gtid or '(no GTID)'} (at {self.file}:{self.transaction.end})"


@dataclass
class _Search:
    """The search for the last transaction that certainly belongs to the state, and the first that certainly does not.

    The fields `inside` and `outside` contain candidates. A later transaction with an earlier commit time disproves
    them.
    """

    moment: datetime
    highest: datetime
    inside: list[_Bounds] = field(default_factory=list)
    outside: list[_Bounds] = field(default_factory=list)

    def see(self, one: _Bounds) -> None:
        """Process the next transaction."""
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
        """Return whether a transaction was committed after the target moment.

        If only bounds of the commit time are known, the commit may be earlier than these bounds by the tolerance.
        """
        return one.earliest > self.moment - (_TOLERANCE if one.earliest < one.latest else timedelta())


def find_stop(choice: RestoreRoute, start: int, scan: Scan, now: datetime) -> Stop:
    """Return the place at which a replay to a time stops: the index of the file, and the offset in the file.

    The replay begins at the offset `start` of the first file. Raises AmbiguousPointError if transactions around the
    time have unknown commit times. The error names the nearest transactions with known times.
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
    """Return the known bounds of the commit time of a transaction that follows the backup."""
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
        f"{readable_time(moment)} cannot be placed: it lies {low} and before {high}; the {count} transaction(s)"
        " between them do not have the times of their commits",
        hint=hint or "name an earlier or a later time, or `latest`",
    )


def check_stop(target: str, flavour: Flavour, stopped_at: str | None, file: str) -> None:
    """Check that a replay to one MariaDB GTID, or to directly before it, stops at the transaction with this GTID.

    Raises NotFound if the replay stops elsewhere, because another server assigned the number in this history. A MySQL
    set needs no check, because it lists every transaction.
    """
    wanted = parse_gtids(flavour, target)
    if not isinstance(wanted, GtidPosition) or len(wanted.heads) != 1:
        return
    if stopped_at is None or parse_gtids(flavour, stopped_at) != wanted:
        what = f"{stopped_at} is in its place" if stopped_at is not None else "it has no such transaction"
        raise NotFound(
            f"{target} is not in {file} of this history: {what}",
            hint="name the history that has it with --history; `zsnapdb binlog status` lists the GTIDs",
        )


def located(
    steps: Sequence[Replay], local: Collection[tuple[str, str]], digests: Mapping[tuple[str, str], str] | None = None
) -> tuple[Replay, ...]:
    """Return the replay steps, with a mark on each binlog that exists on this host.

    The argument `local` contains the incarnation and the name of each such binlog. The argument `digests` maps rotated
    binlogs to the digests of their descriptions.
    """

    def marked(log: LogPart) -> LogPart:
        place = (log.incarnation, log.file)
        return replace(log, is_local=place in local, description=(digests or {}).get(place, ""))

    return tuple(replace(step, logs=tuple(marked(log) for log in step.logs)) for step in steps)


def mode_objection(files: Iterable[RouteFile], gtid_mode: str | None) -> str | None:
    """Return why a server with this `gtid_mode` cannot replay these binlogs; None if it can or has no `gtid_mode`.

    A server with gtid_mode ON applies no transaction without a GTID. A server with gtid_mode OFF applies no transaction
    with a GTID (refman 8.4, "Replication Mode Concepts").
    """
    with_transactions = [file for file in files if file.last_commit is not None]
    wrong = [file.name for file in with_transactions if file.is_anonymous is (gtid_mode == "ON")]
    if gtid_mode not in ("ON", "OFF") or not wrong:
        return None
    have = "have no GTIDs" if gtid_mode == "ON" else "have GTIDs"
    return (
        f"the transactions of {wrong[0]} {have}, and the server of the backup, with gtid_mode {gtid_mode}, replays none"
    )


def beyond(done: Sequence[LogPart], wanted: Sequence[LogPart]) -> tuple[LogPart, ...]:
    """Return the ranges that must still be replayed after a finished restore of the same backup.

    Raises NotFound if the wanted ranges end before the finished ranges or are in another history.
    """
    if not done:
        return tuple(wanted)
    done = _joined_parts(done)
    end = done[-1]
    at = len(done) - 1
    same = len(wanted) > at and all(_is_same(*pair) for pair in zip(done[:-1], wanted, strict=False))
    last = wanted[at] if same else None
    if last is None or not _is_same(end, replace(last, stop=end.stop)):
        raise NotFound(
            f"the point is not after the point of the finished restore, which ends in {end.file}",
            hint="restore to it again, into another dataset",
        )
    if end.stop is None or last.stop is None or last.stop < end.stop:
        raise NotFound(
            f"the point is before the point of the finished restore, which ends at {end.file}:{end.stop}",
            hint="restore to it again, into another dataset",
        )
    rest = () if last.stop == end.stop else (replace(last, start=end.stop),)
    return (*rest, *wanted[at + 1 :])


def _joined_parts(parts: Sequence[LogPart]) -> list[LogPart]:
    """Return the ranges, with the parts of each binlog joined. A continued restore may replay a binlog in parts."""
    result: list[LogPart] = []
    for part in parts:
        before = result[-1] if result else None
        if before is not None and (before.incarnation, before.file) == (part.incarnation, part.file):
            result[-1] = replace(before, size=part.size, stop=part.stop)
        else:
            result.append(part)
    return result


def _is_same(done: LogPart, wanted: LogPart) -> bool:
    """Return whether both parts are the same range of a binlog. Ranges from an older version have no fingerprints."""
    seen = replace(wanted, size=done.size, is_local=done.is_local, description=done.description)
    return done == seen or done == replace(seen, fingerprint="")


def replays(
    point: BackupPoint, files: Sequence[RouteFile], start: int, stop: int, gtids: Gtids | None, batch_bytes: int
) -> tuple[Replay, ...]:
    """Return the replay steps: the binlogs in batches of about `batch_bytes`, with the GTIDs after each batch.

    The argument `gtids` contains the GTIDs after the last batch. The replay begins at the offset `start` of the first
    binlog and ends at the offset `stop` of the last (in bytes). Binlogs with nothing to replay are omitted.
    """
    steps: list[Replay] = []
    batch: list[LogPart] = []
    reached = point.gtids
    for index, file in enumerate(files):
        first, last = index == 0, index == len(files) - 1
        end = stop if last else file.end
        begin = start if first else file.start
        part = LogPart(file.incarnation, file.name, end, begin, end, fingerprint=file.fingerprint)
        if end > part.start:
            batch.append(part)
        reached = gtids if last else joined(reached, file.gtids)
        if batch and (last or sum(log_part.size for log_part in batch) >= batch_bytes):
            steps.append(Replay(len(steps) + 1, tuple(batch), None if reached is None else str(reached)))
            batch = []
    return tuple(steps)

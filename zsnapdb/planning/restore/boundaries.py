"""Where a replay of binlogs starts and stops for a chosen point, by their transactions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.gtid import GtidPosition, Gtids, contains, joined
from zsnapdb.base.model import Flavour, parse_gtids
from zsnapdb.planning.binlog.route import BackupPoint, EndKind, Route
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestorePoint
from zsnapdb.planning.restore.points import RestoreRoute
from zsnapdb.planning.restore.replays import check_stop, reached_by
from zsnapdb.planning.restore.targets import AtGtids, AtTime, BeforeGtid, Latest, Target


@dataclass(frozen=True)
class Scanned:
    """A transaction read from a binlog: its offsets, its GTID, when it was committed (UTC).

    `committed` is the time in its events. If the archiver saw that it was committed at another time, `between` are the
    times between which it was (the first is None if it is not known).
    """

    gtid: str | None
    start: int
    end: int
    committed: datetime
    is_exact: bool = True
    between: tuple[datetime | None, datetime] | None = None


def start_in(route: Route, scanned: Iterable[Scanned]) -> int:
    """Return the offset in the route's first file at which the transactions begin that the backup does not contain.

    `scanned` are all transactions of that file. They are read only if the route does not know the offset exactly.
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
    """Where the replay stops in the last binlog, and the GTIDs of all transactions up to there.

    The stop is after `last` (None: the replay stops where it starts) and before `following`.
    """

    stop: int
    last: Scanned | None
    following: Scanned | None
    gtids: Gtids | None


def boundary_in(choice: RestoreRoute, start: int, scanned: Iterable[Scanned], end: int | None = None) -> Boundary:
    """Return where to stop in the last binlog.

    `start` is where the replay of this binlog begins (offset in bytes). `scanned` are all its transactions.

    If the target is a time, `end` is where the replay stops (`time_place.find_stop`).
    NotThere if the target is a GTID and this history has another transaction in its place.
    """
    point, target = choice.point, choice.target
    reached = reached_by(point, choice.files[:-1])
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
    """What a target asks of each transaction. Its GTIDs are read once; there may be millions of transactions."""

    target: Target
    gtids: Gtids | None
    end: int | None

    @classmethod
    def of(cls, target: Target, flavour: Flavour, end: int | None) -> _Sought:
        named = parse_gtids(flavour, target.text) if isinstance(target, AtGtids | BeforeGtid) else None
        return cls(target, named, end)

    @property
    def is_one_of_mariadb(self) -> bool:
        """Whether the replay stops at a single GTID of MariaDB, and not at a set or a position of several domains."""
        is_one = isinstance(self.gtids, GtidPosition) and len(self.gtids.heads) == 1
        return is_one and isinstance(self.target, AtGtids)

    def includes(self, transaction: Scanned, own: Gtids | None, reached: Gtids | None) -> bool:
        """Whether a transaction, with the GTID `own`, belongs to the target state. `reached` are those before it."""
        if isinstance(self.target, AtTime):
            return self.end is not None and transaction.end <= self.end
        if isinstance(self.target, BeforeGtid):
            return own is None or own != self.gtids
        if self.is_one_of_mariadb:
            # Two servers may give the same number in one domain, in any order (gtid_strict_mode=OFF).
            return own is not None and own == self.gtids
        if self.gtids is not None:
            return reached is None or not contains(reached, self.gtids)
        return True


def to_transaction(transaction: Scanned | None, file: str) -> ArchivedTransaction | None:
    """Return a scanned transaction as the plan shows it."""
    if transaction is None:
        return None
    return ArchivedTransaction(transaction.gtid, transaction.committed, file, transaction.end)


def restore_point(choice: RestoreRoute, boundary: Boundary | None, following_file: str | None = None) -> RestorePoint:
    """Return the point that a choice reaches; without a boundary it is that of the backup alone.

    `following_file` is the binlog of the first transaction that is left out.
    """
    is_short = isinstance(choice.target, Latest) and choice.route.end.kind not in (EndKind.NEWEST, EndKind.NO_ARCHIVE)
    notes = [f"the archive reaches no further: {choice.route.end.reason}"] if is_short else []
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

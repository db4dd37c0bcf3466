"""Which backup and which archived binlogs lead to a point in time, and where exactly the replay stops. Pure.

A point is a transaction boundary. What it may be asked as is in planning/targets.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.gtid import Gtids, contains, joined
from zsnapdb.model import Flavour, backup_time, parse_gtids
from zsnapdb.planning.restore.steps import ArchivedTransaction, LogPart, Replay, RestorePoint
from zsnapdb.planning.restore.targets import AtBackup, AtGtids, AtTime, BeforeGtid, Latest, Target


@dataclass(frozen=True)
class Base:
    """A stored backup, as far as choosing goes: which server, where it stands."""

    backup_id: str
    flavour: Flavour
    server_uuid: str | None
    server_id: int
    gtids: Gtids | None
    file: str | None
    offset: int | None


@dataclass(frozen=True)
class Log:
    """An archived binlog, as far as choosing goes.

    `previous` is what came before it, `gtids` its own transactions; times are UTC.
    """

    incarnation: str
    file: str
    server_uuid: str | None
    server_id: int
    previous: Gtids | None
    gtids: Gtids | None
    head_end: int
    end: int
    transactions: int
    first_commit: datetime | None
    last_commit: datetime | None
    gap: str | None
    last_gtid: str | None = None


@dataclass(frozen=True)
class Path:
    """Archived binlogs that follow a backup without a gap. `broken` says in words what ended it, if something did."""

    base: Base
    logs: tuple[Log, ...]
    broken: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.logs


def path_from(base: Base, logs: Sequence[Log]) -> Path:
    """Return the binlogs that follow the backup: from the one it stands in, as long as nothing is missing.

    `logs` are in order: by incarnation, oldest first, then by number. The first must be of the backup's own server, or,
    if none is, of one that holds the same history by its GTIDs. A later incarnation is followed only if it holds
    everything that was reached before it.
    """
    groups: dict[str, list[Log]] = {}
    for log in logs:
        groups.setdefault(log.incarnation, []).append(log)
    names = list(groups)
    own = [name for name in names if _is_of(groups[name][0], base) and _starting(base, groups[name]) is not None]
    other = [name for name in names if name not in own and _holds_history(base, groups[name])]
    if not own and not other:
        return Path(base, (), None if not logs else "no archived binlog continues the backup")
    begin = (own or other)[-1]
    found = _follow(base if own else _unplaced(base), groups[begin])
    for name in names[names.index(begin) + 1 :]:
        if found.broken is not None or not _continues(found, groups[name]):
            continue
        reached = replace(_unplaced(base), gtids=reached_by(base, found.logs))
        more = _follow(reached, groups[name])
        found = Path(base, (*found.logs, *more.logs), more.broken)
    return found


def _is_of(log: Log, base: Base) -> bool:
    if base.flavour is Flavour.MYSQL:
        return log.server_uuid == base.server_uuid
    return log.server_id == base.server_id


def _unplaced(base: Base) -> Base:
    """Return the backup without its place in a binlog: names of files mean nothing to another server."""
    return replace(base, file=None, offset=None)


def _holds_history(base: Base, logs: Sequence[Log]) -> bool:
    """Whether another server's logs hold everything that is in the backup, and something it lacks."""
    whole = _whole(logs)
    return (
        base.gtids is not None
        and whole is not None
        and contains(whole, base.gtids)
        and _starting(_unplaced(base), logs) is not None
    )


def _whole(logs: Sequence[Log]) -> Gtids | None:
    whole = logs[0].previous
    for log in logs:
        whole = joined(whole, log.gtids)
    return whole


def _starting(base: Base, logs: Sequence[Log]) -> int | None:
    """Return the index of the first log with something new behind the backup, or of the one it stands in.

    None if there is none.
    """
    if base.file is not None and base.offset is not None:
        for index, log in enumerate(logs):
            if log.file == base.file and log.end >= base.offset and _may_be_in(base, log):
                return index
    if base.gtids is None:
        return None
    for index, log in enumerate(logs):
        if (
            log.previous is not None
            and contains(base.gtids, log.previous)
            and not contains(base.gtids, log.gtids or log.previous)
        ):
            return index
    return None


def _may_be_in(base: Base, log: Log) -> bool:
    """Whether the backup's position may be inside the log: what came before it is in the backup, and on MariaDB the backup is in what it reaches.

    A server of MySQL may have GTIDs that are in no binlog; that it is the same one says its UUID.
    """
    if base.gtids is None or log.previous is None:
        return True
    reached = joined(log.previous, log.gtids)
    return contains(base.gtids, log.previous) and (
        base.flavour is Flavour.MYSQL or (reached is not None and contains(reached, base.gtids))
    )


def _follow(base: Base, logs: Sequence[Log]) -> Path:
    first = _starting(base, logs)
    if first is None:
        return Path(base, ())
    chosen: list[Log] = []
    reached = base.gtids
    for index, log in enumerate(logs[first:]):
        if index and log.gap is not None:
            return Path(base, tuple(chosen), f"before {log.file}: {log.gap}")
        if reached is not None and log.previous is not None and not contains(reached, log.previous):
            return Path(base, tuple(chosen), f"transactions before {log.file} are in no archived binlog")
        chosen.append(log)
        reached = joined(reached, log.gtids)
    return Path(base, tuple(chosen))


def _continues(path: Path, logs: Sequence[Log]) -> bool:
    """Whether these logs hold the same history as the path and go on from its end."""
    reached = reached_by(path.base, path.logs)
    if reached is None:
        return False
    whole = _whole(logs)
    return whole is not None and contains(whole, reached) and not contains(reached, whole)


def reached_by(base: Base, logs: Iterable[Log]) -> Gtids | None:
    """Return all transactions that are in after the backup and these logs."""
    reached = base.gtids
    for log in logs:
        reached = joined(reached, log.gtids)
    return reached


@dataclass(frozen=True)
class Scanned:
    """A transaction of a log that was read: where it lies, its GTID, when it was committed (UTC)."""

    gtid: str | None
    start: int
    end: int
    committed: datetime


@dataclass(frozen=True)
class RestoreRoute:
    """What was chosen: the backup, the logs to replay in order, and the log whose transactions tell where to stop.

    `boundary` None: all of the logs are replayed.
    """

    target: Target
    path: Path
    logs: tuple[Log, ...]
    boundary: Log | None
    exact_backup: bool = False


def choose(target: Target, backups: Sequence[Base], logs: Sequence[Log], now: datetime) -> RestoreRoute:
    """Return which backup and logs lead to the target. NotThere or PreflightError says what there is instead.

    `backups` oldest first. Of all backups that lead there the newest is taken: the least to replay.
    """
    if not backups:
        raise NotThere("the repository holds no backup of the instance", hint="see `zsnapdb list`")
    if isinstance(target, AtBackup):
        found = (
            backups[-1]
            if target.backup_id is None
            else next((b for b in backups if b.backup_id == target.backup_id), None)
        )
        if found is None:
            raise NotThere(f"the repository holds no backup {target.backup_id}", hint="see `zsnapdb list`")
        return RestoreRoute(target, path_from(found, logs), (), None, exact_backup=True)
    if isinstance(target, Latest):
        path = path_from(backups[-1], logs)
        return RestoreRoute(target, path, path.logs, None)
    if isinstance(target, AtTime):
        return _choose_time(target, backups, logs, now)
    return _choose_gtid(target, backups, logs)


def _shown(moment: datetime) -> str:
    """Return a time as people read it, with a fraction where it has one."""
    return f"{moment:%Y-%m-%d %H:%M:%S}{f'.{moment.microsecond:06d}' if moment.microsecond else ''} UTC"


def _choose_time(target: AtTime, backups: Sequence[Base], logs: Sequence[Log], now: datetime) -> RestoreRoute:
    moment = target.moment
    if moment > now:
        raise PreflightError(f"{_shown(moment)} is in the future", hint="name a time that has been, or `latest`")
    early = [base for base in backups if backup_time(base.backup_id) <= moment]
    if not early:
        raise NotThere(f"no backup is older than {_shown(moment)}", hint=f"the oldest is {backups[0].backup_id}")
    path = path_from(early[-1], logs)
    if path.is_empty:
        reason = path.broken or "no binlogs are archived behind it"
        raise NotThere(
            f"{_shown(moment)} cannot be reached from backup {path.base.backup_id}: {reason}",
            hint=f"`--to {path.base.backup_id}` restores that backup alone",
        )
    newest = max((log.last_commit for log in path.logs if log.last_commit is not None), default=None)
    if newest is None or newest < moment:
        at = _shown(newest) if newest is not None else "the backup"
        raise NotThere(
            f"{_shown(moment)} is later than what is archived, which ends at"
            f" {at}{': ' + path.broken if path.broken else ''}",
            hint="`--to latest` restores as far as the archive reaches",
        )
    last = max(
        (i for i, log in enumerate(path.logs) if log.first_commit is not None and log.first_commit <= moment), default=0
    )
    return RestoreRoute(target, path, path.logs[: last + 1], path.logs[last])


def _choose_gtid(target: AtGtids | BeforeGtid, backups: Sequence[Base], logs: Sequence[Log]) -> RestoreRoute:
    flavour = backups[-1].flavour
    try:
        wanted = parse_gtids(flavour, target.text)
    except ValueError as error:
        raise PreflightError(
            f"{target.text!r} is no GTID of {flavour}: {error}",
            hint="see `zsnapdb show` for what the backups and the archive hold",
        ) from error
    for base in reversed(backups):
        if base.gtids is None:
            raise PreflightError("the server did not number its transactions", hint="name a time, or a backup")
        if contains(base.gtids, wanted):
            if isinstance(target, AtGtids) and contains(wanted, base.gtids):
                return RestoreRoute(target, path_from(base, logs), (), None, exact_backup=True)
            continue
        path = path_from(base, logs)
        reached = base.gtids
        for index, log in enumerate(path.logs):
            after = joined(reached, log.gtids)
            if after is not None and contains(after, wanted):
                return RestoreRoute(target, path, path.logs[: index + 1], log)
            reached = after or reached
        end = reached_by(base, path.logs)
        raise NotThere(
            f"{target.text} is neither in a backup nor in the archived binlogs behind {base.backup_id}, which reach to"
            f" {end}" + (f": {path.broken}" if path.broken else ""),
            hint="`--to latest` restores as far as the archive reaches",
        )
    raise NotThere(
        f"every backup has {target.text} already, and none ends with it",
        hint=f"the oldest is {backups[0].backup_id}; see `zsnapdb list` for their positions",
    )


def start_in(base: Base, log: Log, scanned: Iterable[Scanned]) -> int:
    """Return the offset in the first log at which what the backup lacks begins."""
    if base.file == log.file and base.offset is not None and _may_be_in(base, log):
        return base.offset
    end = log.head_end
    for found in scanned:
        if not _has(base, found):
            return found.start
        end = found.end
    return end


def _has(base: Base, found: Scanned) -> bool:
    return (
        base.gtids is not None
        and found.gtid is not None
        and contains(base.gtids, parse_gtids(base.flavour, found.gtid))
    )


@dataclass(frozen=True)
class Boundary:
    """Where the replay stops in the last log: behind `last` (None: right at `start`), before `following`; what is in up to there."""

    stop: int
    last: Scanned | None
    following: Scanned | None
    gtids: Gtids | None
    notes: tuple[str, ...] = ()


def boundary_in(choice: RestoreRoute, start: int, scanned: Iterable[Scanned]) -> Boundary:
    """Return where to stop in the last log.

    `start` is where the replay begins in it (offset in bytes), `scanned` all its transactions.

    A time: behind the last transaction stamped at or before it. Where the server's clock was set back, transactions
    before that one may be stamped later; they are in, and a note says so.
    """
    base, target = choice.path.base, choice.target
    reached = reached_by(base, choice.logs[:-1])
    last: Scanned | None = None
    following: Scanned | None = None
    gtids, pending, later, passed = reached, reached, 0, 0
    stop = start
    for found in scanned:
        if found.end <= start:
            continue
        pending = joined(pending, parse_gtids(base.flavour, found.gtid) if found.gtid is not None else None)
        if _is_in(target, base.flavour, found, gtids):
            last, stop, gtids, following, later = found, found.end, pending, None, later + passed
            passed = 0
            continue
        following = following or found
        if not isinstance(target, AtTime):
            break
        passed += 1
    notes = (
        (f"{later} transactions stamped later than the time asked for come before it: the server's clock was set back",)
        if later
        else ()
    )
    return Boundary(stop, last, following, gtids, notes)


def _is_in(target: Target, flavour: Flavour, found: Scanned, reached: Gtids | None) -> bool:
    """Whether a transaction belongs to the state asked for; `reached` is what was in before it."""
    if isinstance(target, AtTime):
        return found.committed <= target.moment
    if isinstance(target, BeforeGtid):
        return found.gtid != target.text and not (
            found.gtid is not None and parse_gtids(flavour, found.gtid) == parse_gtids(flavour, target.text)
        )
    if isinstance(target, AtGtids):
        return reached is None or not contains(reached, parse_gtids(flavour, target.text))
    return True


def is_past(target: Target, start: int, scanned: Iterable[Scanned]) -> bool:
    """Whether the backup that stands at `start` in its log already has a transaction stamped later than the time asked for."""
    if not isinstance(target, AtTime):
        return False
    newest = None
    for found in scanned:
        if found.end > start:
            break
        newest = found
    return newest is not None and newest.committed > target.moment


def without(backups: Sequence[Base], base: Base) -> tuple[Base, ...]:
    """Return the backups older than this one."""
    return tuple(backups[: list(backups).index(base)])


def to_transaction(found: Scanned | None, file: str) -> ArchivedTransaction | None:
    """Return a scanned transaction as the plan shows it."""
    return None if found is None else ArchivedTransaction(found.gtid, found.committed, file, found.end)


def replays(
    base: Base, logs: Sequence[Log], start: int, stop: int, gtids: Gtids | None, batch_bytes: int
) -> tuple[Replay, ...]:
    """Return the replay steps: the logs in batches of about `batch_bytes`, each with what is in after it; after the last that is `gtids`.

    The first log begins at `start`, the last ends at `stop` (offsets in bytes). A log with nothing to replay is left
    out.
    """
    steps: list[Replay] = []
    batch: list[LogPart] = []
    reached = base.gtids
    for index, log in enumerate(logs):
        first, last = index == 0, index == len(logs) - 1
        part = LogPart(
            log.incarnation,
            log.file,
            stop if last else log.end,
            start if first else log.head_end,
            stop if last else log.end,
        )
        if part.stop is not None and part.stop > part.start:
            batch.append(part)
        reached = gtids if last else joined(reached, log.gtids)
        if batch and (last or sum(log_part.size for log_part in batch) >= batch_bytes):
            steps.append(Replay(len(steps) + 1, tuple(batch), None if reached is None else str(reached)))
            batch = []
    return tuple(steps)


def point_of(choice: RestoreRoute, boundary: Boundary | None, following_file: str | None = None) -> RestorePoint:
    """Return the point a choice comes to; without a boundary the backup alone.

    `following_file`: the log of the first one left out.
    """
    base = choice.path.base
    notes = (
        [f"the archive goes no further: {choice.path.broken}"]
        if choice.path.broken and isinstance(choice.target, Latest)
        else []
    )
    if boundary is None:
        return RestorePoint(None if base.gtids is None else str(base.gtids), notes=tuple(notes))
    file = choice.logs[-1].file
    gtids = None if boundary.gtids is None else str(boundary.gtids)
    following = to_transaction(boundary.following, following_file or file)
    return RestorePoint(gtids, to_transaction(boundary.last, file), following, (*notes, *boundary.notes))

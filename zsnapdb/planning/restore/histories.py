"""Whether a point in time lies in one history of the archive or in several. Pure.

If a server is set back, it writes another history from an earlier state. The old history is abandoned, but its binlogs
stay in the archive. A time, and on MariaDB a GTID, may stand for a state in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.errors import AmbiguousPointError, NotThere
from zsnapdb.base.gtid import Gtids, GtidSet, contains
from zsnapdb.base.model import parse_gtids
from zsnapdb.planning.binlog.history import History, histories_of
from zsnapdb.planning.binlog.route import ArchiveState, BackupPoint, Route, RouteFile, commit_time, follow

_DAY = 86_400 * 1_000_000
"""Microseconds by which the clocks of a backup and of a binlog may differ."""


@dataclass(frozen=True)
class ArchiveView:
    """The archive as it was while one history was its newest, and the backups that may be in that history.

    `files` are those of the view, `whole` those of the whole archive.
    `left` is when the server began the next history (UTC; None: it did not, or this is not known).
    """

    history: str
    backups: tuple[BackupPoint, ...]
    files: tuple[RouteFile, ...]
    whole: tuple[RouteFile, ...]
    left: datetime | None = None

    def known(self, state: ArchiveState) -> ArchiveState:
        """Return what is known about the archive in this view.

        If another server took over later, the old server does not say until when nothing was committed.
        """
        server = self.files[-1].server
        is_own = all(file.server == server for file in self.whole[len(self.files) :])
        return state if is_own else replace(state, complete=())

    def route(self, point: BackupPoint, state: ArchiveState) -> Route | None:
        """Return the route of a backup through this view; None if it does not reach the history.

        A backup of a later history may seem to be in this one. Its route through the whole archive shows where it is.
        """
        route, known = follow(point, self.files, state), follow(point, self.whole, state)
        if not known.files or all(file.incarnation != self.history for file in route.files):
            return None
        first, begin = route.files[0], known.files[0]
        is_copy = (first.name, first.fingerprint, first.server) == (begin.name, begin.fingerprint, begin.server)
        return route if first.incarnation == begin.incarnation or is_copy else None


def older_views(backups: Sequence[BackupPoint], files: Sequence[RouteFile]) -> Iterator[ArchiveView]:
    """Yield a view for each history but the newest, newest first."""
    histories = list(histories_of(files))
    for number in range(len(histories) - 2, -1, -1):
        yield _view(backups, files, histories, number)


def view_of(
    history: str, backups: Sequence[BackupPoint], files: Sequence[RouteFile], state: ArchiveState
) -> ArchiveView:
    """Return the view of a named history with the backups that lead into it. NotThere if there is no such history."""
    histories = list(histories_of(files))
    names = [files[part.low].incarnation for part in histories]
    if history not in names:
        raise NotThere(f"the archive has no history {history}", hint="see `zsnapdb binlog status`")
    view = _view(backups, files, histories, names.index(history))
    own = tuple(point for point in view.backups if view.route(point, state) is not None)
    if not own:
        raise NotThere(f"no backup leads into history {history}", hint="see `zsnapdb list` and `zsnapdb binlog status`")
    return replace(view, backups=own)


def _view(
    backups: Sequence[BackupPoint], files: Sequence[RouteFile], histories: Sequence[History], number: int
) -> ArchiveView:
    own = histories[number]
    last = max((file.last_commit or file.created * 1_000_000) for file in files[own.low : own.high])
    newest = max(file.created for file in files[own.low : own.high])
    after = [
        files[at].created
        for later in histories[number + 1 :]
        for at in later.places
        if files[at].server == files[own.low].server and files[at].created > newest
    ]
    return ArchiveView(
        files[own.low].incarnation,
        tuple(point for point in backups if point.taken <= last + _DAY),
        tuple(files[: own.high]),
        tuple(files),
        commit_time(min(after) * 1_000_000) if after else None,
    )


@dataclass(frozen=True)
class Reached:
    """A route that leads to a point, and the file in which the point is (None: the point is a backup)."""

    route: Route
    last: RouteFile | None

    @property
    def place(self) -> RouteFile | None:
        """The file in which the point is; None if no archived file holds it."""
        return self.last or (self.route.files[0] if self.route.files else None)


def is_same(one: Reached, other: Reached, point: datetime | Gtids) -> bool:
    """Whether two routes lead to the same state, or the first to a state through which the second passes.

    After a server was set back, a file may be archived twice, once cut. Up to its end the shorter file has the same
    transactions.
    """
    place = one.place
    if place is None or other.place is None:
        return True
    for file in other.route.files:
        if (file.incarnation, file.name) == (place.incarnation, place.name):
            return True
        if (file.name, file.fingerprint, file.server) == (place.name, place.fingerprint, place.server):
            return file.end == place.end or _is_within(min(file, place, key=lambda copy: copy.end), point)
    return False


def _is_within(file: RouteFile, point: datetime | Gtids) -> bool:
    if isinstance(point, datetime):
        return file.last_commit is not None and point <= commit_time(file.last_commit)
    return file.reached is not None and contains(file.reached, point)


def several(what: str, candidates: Sequence[Reached]) -> AmbiguousPointError:
    """Return the error for a point that lies in several histories."""
    lines = []
    for reached in candidates:
        place = reached.place
        if place is not None:
            history = reached.route.files[-1].incarnation
            lines.append(f"{history} (in {place.name} of server {place.server})")
    return AmbiguousPointError(
        f"{what} lies in {len(lines)} histories of the server, which was set back: {', '.join(lines)}",
        hint="name one of them with --history; `zsnapdb binlog status` lists them",
    )


def file_with_last(point: BackupPoint, files: Sequence[RouteFile]) -> RouteFile | None:
    """Return an archived binlog of the server that has the backup's last transaction, and is not the backup's binlog.

    If there is one, the server gave the GTID twice. None of MariaDB: its positions do not say which GTIDs a file has.
    """
    last = parse_gtids(point.flavour, point.last_gtid) if point.last_gtid is not None else None
    for file in files:
        is_other = file.server == point.server and file.fingerprint != point.fingerprint
        if is_other and isinstance(last, GtidSet) and file.gtids is not None and contains(file.gtids, last):
            return file
    return None


def also_archived(what: str, point: BackupPoint, file: RouteFile) -> AmbiguousPointError:
    """Return the error for GTIDs with which a backup ends, and which an archived history has too."""
    return AmbiguousPointError(
        f"{what} is the end of backup {point.backup_id}, whose history is not archived, and lies in history"
        f" {file.incarnation} (in {file.name} of server {file.server}): the server gave the GTID twice",
        hint=f"`--to {point.backup_id}` restores the backup, `--history {file.incarnation}` the other transaction",
    )


def shown(moment: datetime) -> str:
    """Return a time as people read it, with a fraction where it has one."""
    return f"{moment:%Y-%m-%d %H:%M:%S}{f'.{moment.microsecond:06d}' if moment.microsecond else ''} UTC"

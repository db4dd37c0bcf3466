"""The archive as it was when one of its histories was the newest. A restore to an abandoned history uses this. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.errors import NotFound
from zsnapdb.planning.binlog.route import ArchiveState, BackupPoint, Route, RouteFile, RouteMap, commit_time
from zsnapdb.planning.binlog.route_elements import History, histories_of


@dataclass(frozen=True)
class ArchiveView:
    """The archive at the time when one of its histories was the newest, and the backups that may be from this history.

    The field `files` contains the files of the view, and `whole` contains all files of the archive. The server's next
    history began at `left` (UTC). It is None if there is no next history or its start is unknown.
    """

    history: str
    backups: tuple[BackupPoint, ...]
    files: tuple[RouteFile, ...]
    whole: tuple[RouteFile, ...]
    left: datetime | None = None

    def known(self, state: ArchiveState) -> ArchiveState:
        """Return the archive state as it applies to this view.

        If another server took over later, the records of completeness are ignored, because the old server did not write
        those records.
        """
        server = self.files[-1].server
        is_own = all(file.server == server for file in self.whole[len(self.files) :])
        return state if is_own else replace(state, complete=())

    def routes(self, state: ArchiveState) -> Callable[[BackupPoint], Route | None]:
        """Return a function that finds a backup's route in this view.

        The function returns None if the route does not reach the view's history. A backup of a later history may seem
        to belong to the view's history. Its route through the whole archive shows its real history.
        """
        own, whole = RouteMap(self.files, state), RouteMap(self.whole, state)

        def route_of(point: BackupPoint) -> Route | None:
            route, known = own.follow(point), whole.follow(point)
            if not known.files or all(file.incarnation != self.history for file in route.files):
                return None
            first, begin = route.files[0], known.files[0]
            is_copy = (first.name, first.fingerprint, first.server) == (begin.name, begin.fingerprint, begin.server)
            return route if first.incarnation == begin.incarnation or is_copy else None

        return route_of


def older_views(backups: Sequence[BackupPoint], files: Sequence[RouteFile]) -> Iterator[ArchiveView]:
    """Yield a view for each history except the newest one, newest view first."""
    histories = list(histories_of(files))
    for number in range(len(histories) - 2, -1, -1):
        yield _view(backups, files, histories, number)


def view_of(
    history: str, backups: Sequence[BackupPoint], files: Sequence[RouteFile], state: ArchiveState
) -> ArchiveView:
    """Return the view of a history, with only its own backups. Raises NotFound if the history does not exist."""
    histories = list(histories_of(files))
    names = [files[part.low].incarnation for part in histories]
    if history not in names:
        raise NotFound(f"the archive has no history {history}", hint="see `zsnapdb binlog status`")
    view = _view(backups, files, histories, names.index(history))
    route_of = view.routes(state)
    own = tuple(point for point in reversed(view.backups) if route_of(point) is not None)[::-1]
    if not own:
        raise NotFound(f"no backup leads into history {history}", hint="see `zsnapdb list` and `zsnapdb binlog status`")
    return replace(view, backups=own)


def _view(
    backups: Sequence[BackupPoint], files: Sequence[RouteFile], histories: Sequence[History], number: int
) -> ArchiveView:
    own = histories[number]
    newest = max(file.created for file in files[own.low : own.high])
    after = [
        files[at].created
        for later in histories[number + 1 :]
        for at in later.places
        if files[at].server == files[own.low].server and files[at].created > newest
    ]
    return ArchiveView(
        files[own.low].incarnation,
        tuple(backups),
        tuple(files[: own.high]),
        tuple(files),
        commit_time(min(after) * 1_000_000) if after else None,
    )

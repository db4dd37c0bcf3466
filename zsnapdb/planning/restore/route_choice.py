"""Chooses the backup, the archived binlogs and the history that lead to a point in time. Pure.

A point is a transaction boundary. `point_forms.py` parses the texts for a point; `replays.py` finds the exact stop of
the replay.

A server that is set back starts a new history from an earlier state. The old history is abandoned, but its binlogs stay
in the archive. So a time may mean a different state in each history. On MariaDB, a GTID may also mean several states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.errors import AmbiguousPointError, HistoryError, NotFound, PreflightError, UsageError
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet, contains, joined
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.planning.binlog.archive_times import TOLERANCE, complete_until
from zsnapdb.planning.binlog.recoverable_ranges import leading, newer_beyond
from zsnapdb.planning.binlog.route import (
    NOTHING_KNOWN,
    ArchiveState,
    BackupPoint,
    EndKind,
    Route,
    RouteFile,
    RouteMap,
    commit_time,
    follow,
)
from zsnapdb.planning.binlog.route_elements import RouteEnd
from zsnapdb.planning.restore.history_views import ArchiveView, older_views, view_of
from zsnapdb.planning.restore.point_forms import AtBackup, AtGtids, AtTime, BeforeGtid, Latest, Target

_SECOND = 1_000_000


@dataclass(frozen=True)
class RestoreRoute:
    """The chosen route, the files to replay in order, and the file whose transactions decide where the replay stops.

    If `boundary` is None, all files are replayed to their end. If the target is a time, the replay stops in the file
    with the index `first_doubtful` or in a later file. Each note names data that the state at the target may lack.
    """

    target: Target
    route: Route
    files: Sequence[RouteFile]
    boundary: RouteFile | None
    exact_backup: bool = False
    first_doubtful: int = 0
    notes: tuple[str, ...] = ()

    @property
    def point(self) -> BackupPoint:
        """The backup with which the restore begins."""
        return self.route.point

    @property
    def place(self) -> RouteFile | None:
        """The file that contains the point; None if no archived file contains it."""
        return self.files[-1] if self.files else next(iter(self.route.files), None)


def is_same(one: RestoreRoute, other: RestoreRoute, point: datetime | Gtids) -> bool:
    """Return whether both routes lead to the same state, or route `other` passes through the end of route `one`.

    After a server was set back, a file may be archived twice, and one copy may be shorter. Both copies have the same
    transactions up to the end of the shorter copy.
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


def ambiguous_history_error(what: str, candidates: Sequence[RestoreRoute]) -> AmbiguousPointError:
    """Return the error for a point that is in several histories."""
    places = [(choice.route.files[-1].incarnation, choice.place) for choice in candidates if choice.place is not None]
    return _in_several_histories(what, places)


def _in_several_histories(what: str, places: Sequence[tuple[str, RouteFile]]) -> AmbiguousPointError:
    lines = [f"{history} (in {place.name} of server {place.server})" for history, place in places]
    return AmbiguousPointError(
        f"{what} lies in {len(lines)} histories of the server, which was set back or copied: {', '.join(lines)}",
        hint="name one of them with --history; `zsnapdb binlog status` lists them",
    )


def file_with_last(point: BackupPoint, files: Sequence[RouteFile]) -> RouteFile | None:
    """Return an archived binlog of the server, except the backup's own, that contains the backup's last GTID.

    If there is such a binlog, the server used this GTID twice. On MariaDB the result is None, because its positions do
    not list the GTIDs of a file.
    """
    last = parse_gtids(point.flavour, point.last_gtid) if point.last_gtid is not None else None
    for file in files:
        is_other = file.server == point.server and file.fingerprint != point.fingerprint
        if is_other and isinstance(last, GtidSet) and file.gtids is not None and contains(file.gtids, last):
            return file
    return None


def archived_twice_error(what: str, point: BackupPoint, file: RouteFile) -> AmbiguousPointError:
    """Return the error for GTIDs that are the end of a backup and also occur in an archived history."""
    return AmbiguousPointError(
        f"{what} is the end of backup {point.backup_id}, whose history is not archived, and lies in history"
        f" {file.incarnation} (in {file.name} of server {file.server}): the server used the GTID twice",
        hint=f"`--to {point.backup_id}` restores the backup, `--history {file.incarnation}` the other transaction",
    )


def readable_time(moment: datetime) -> str:
    """Return a time as text, with the fraction of a second if it is not zero."""
    return f"{moment:%Y-%m-%d %H:%M:%S}{f'.{moment.microsecond:06d}' if moment.microsecond else ''} UTC"


Holds = Callable[[RestoreRoute], bool]
"""Function that returns whether the binlogs of a route really contain the transaction that is the target."""


def choose(
    target: Target,
    backups: Sequence[BackupPoint],
    files: Sequence[RouteFile],
    now: datetime,
    state: ArchiveState = NOTHING_KNOWN,
    history: str | None = None,
    holds: Holds = lambda _: True,
) -> RestoreRoute:
    """Return the backup and the binlogs from which the target can be restored.

    The backups are ordered, oldest first. The newest suitable backup is chosen, because it requires the fewest binlogs.
    The argument `history` is the id of the incarnation of the target. The function `holds` is called only if several
    histories seem to contain the GTID.

    Raises NotFound or PreflightError if the target cannot be reached. Raises HistoryError if the archive contains
    unreachable data that is newer than the latest state, or if the target is in several histories and `history` is
    None.
    """
    if not backups:
        raise NotFound("the repository has no backup of the instance", hint=OTHER_ADDRESS_HINT)
    if isinstance(target, AtBackup):
        if history is not None:
            raise UsageError("--history does not apply to a backup", hint="name a time, GTIDs or `latest` with it")
        point = (
            backups[-1]
            if target.backup_id is None
            else next((b for b in backups if b.backup_id == target.backup_id), None)
        )
        if point is None:
            raise NotFound(f"the repository holds no backup {target.backup_id}", hint="see `zsnapdb list`")
        return RestoreRoute(target, follow(point, files), (), None, exact_backup=True)
    if history is not None:
        view = view_of(history, backups, files, state)
        backups, files = view.backups, view.files
        state = replace(state, grown=())
    if isinstance(target, Latest):
        return _choose_latest(target, backups, files, state)
    if not isinstance(target, AtTime) and all(point.gtids is None for point in backups):
        raise PreflightError("the server's transactions have no GTIDs", hint="name a time, or a backup")
    if history is not None:
        return _choose_one(target, backups, files, now, state, history)
    return _choose_of_histories(target, backups, files, now, state, holds)


def _choose_one(
    target: AtTime | AtGtids | BeforeGtid,
    backups: Sequence[BackupPoint],
    files: Sequence[RouteFile],
    now: datetime,
    state: ArchiveState,
    history: str | None = None,
) -> RestoreRoute:
    latest = "`--to latest`" if history is None else f"`--to latest --history {history}`"
    hint = f"{latest} restores as far as the archive reaches"
    if isinstance(target, AtTime):
        return _choose_time(target, backups, files, now, state, hint)
    later = "what was committed a moment ago is archived by `zsnapdb binlog archive --once`"
    return _choose_gtid(target, backups, files, state, f"{hint}; {later}")


def _choose_of_histories(
    target: AtTime | AtGtids | BeforeGtid,
    backups: Sequence[BackupPoint],
    files: Sequence[RouteFile],
    now: datetime,
    state: ArchiveState,
    holds: Holds,
) -> RestoreRoute:
    """Return the route to the target in any history. Raises HistoryError if several routes lead to different states."""
    error: NotFound | None = None
    choices: list[RestoreRoute] = []
    try:
        choices.append(_choose_one(target, backups, files, now, state))
    except NotFound as not_there:
        error = not_there
    point = target.moment if isinstance(target, AtTime) else parse_gtids(backups[-1].flavour, target.text)
    for view in older_views(backups, files):
        choice = _choose_in(view, target, now, view.known(state))
        # A history that ended before the time does not contain the target, but it makes a result from another history
        # doubtful.
        if choice is None or (choice.target != target and not choices):
            continue
        if not any(is_same(choice, known, point) for known in choices):
            choices.append(choice)
    if len(choices) > 1 and not isinstance(target, AtTime):
        # A MariaDB position seems to contain every lower number, whichever server assigned the number.
        choices = [choice for choice in choices if choice.exact_backup or holds(choice)] or choices[:1]
    if len(choices) > 1:
        raise ambiguous_history_error(readable_time(point) if isinstance(point, datetime) else str(point), choices)
    if not choices:
        raise error or NotFound("the point cannot be reached from any backup", hint="see `zsnapdb status`")
    choice = choices[0]
    beside = _histories_at(choice, files, target.moment) if isinstance(target, AtTime) else []
    if beside and choice.place is not None and isinstance(point, datetime):
        here = (choice.route.files[-1].incarnation, choice.place)
        raise _in_several_histories(readable_time(point), [here, *beside])
    again = file_with_last(choice.point, files) if choice.exact_backup and choice.route.is_empty else None
    if again is not None:
        raise archived_twice_error(str(point), choice.point, again)
    return choice


def _histories_at(choice: RestoreRoute, files: Sequence[RouteFile], moment: datetime) -> list[tuple[str, RouteFile]]:
    """Return the server's other histories that have commits before and after the time, each with one file.

    A copy of a server may write at the same time as the server. Then several histories contain the time, although the
    routes of the backups may lead into one of them only. Commits that the route also contains do not count.
    """
    sought, passed = moment.timestamp() * _SECOND, {file.incarnation for file in choice.route.files}
    ends: dict[tuple[str, str], int] = {}
    for file in choice.route.files:
        ends[file.name, file.fingerprint] = max(file.last_commit or 0, ends.get((file.name, file.fingerprint), 0))
    servers = {file.server for file in choice.route.files}
    beside: list[tuple[str, RouteFile]] = []
    for name, group in groupby(files, lambda file: file.incarnation):
        own = [file for file in group if name not in passed and file.server in servers]
        # If the route contains a file too, only commits after its copy count, and no earlier file counts.
        shared = [at for at, file in enumerate(own) if (file.name, file.fingerprint) in ends]
        own = [file for file in own[shared[-1] if shared else 0 :] if file.last_commit is not None]
        starts = [max(file.first_commit or 0, ends.get((file.name, file.fingerprint), -1) + 1) for file in own]
        within = [(start, file) for start, file in zip(starts, own, strict=True) if start <= (file.last_commit or 0)]
        after = [file for _, file in within if (file.last_commit or 0) >= sought]
        if after and any(start <= sought for start, _ in within):
            beside.append((name, after[0]))
    return beside


def _choose_in(
    view: ArchiveView, target: AtTime | AtGtids | BeforeGtid, now: datetime, state: ArchiveState
) -> RestoreRoute | None:
    """Return the route to the target in an abandoned history; None if there is no such route.

    The route begins with the newest backup from which this history can be reached.

    The target may be a time after the end of this history, but before the start of the server's next history. In this
    case, the result is the route to the end of this history.
    """
    route_of = view.routes(state)
    for point in reversed(view.backups):
        if isinstance(target, AtTime) and commit_time(point.taken) > target.moment:
            continue
        if not isinstance(target, AtTime) and point.gtids is None:
            continue
        route = route_of(point)
        if route is None:
            continue
        inside = target
        if isinstance(target, AtTime) and view.left is not None and target.moment < view.left:
            inside = AtTime(min(target.moment, commit_time(route.to)))
        try:
            return _choose_one(inside, (point,), view.files, now, state)
        except NotFound:
            if isinstance(target, AtTime):
                return None
    return None


def _choose_latest(
    target: Latest, backups: Sequence[BackupPoint], files: Sequence[RouteFile], state: ArchiveState
) -> RestoreRoute:
    route_of = RouteMap(files, state).follow
    route = leading(backups, route_of)
    beyond = newer_beyond(route, files, backups, route_of)
    if beyond is not None and not target.accepts_older:
        reach = "that backup alone" if route.is_empty else readable_time(commit_time(route.to))
        names = _histories_beside(route, backups, files, state)
        other = f"; {' or '.join(f'`--history {name}`' for name in names)} chooses one history" if names else ""
        raise HistoryError(
            f"the latest state cannot be reached: from backup {route.point.backup_id}, the archive leads only to"
            f" {reach}, because {beyond.reason}",
            hint="run `zsnapdb binlog archive --once`, then `zsnapdb backup`; `zsnapdb restore --accept-older` restores"
            f" as far as the archive reaches{other}",
        )
    return RestoreRoute(target, route, route.files, None)


def _histories_beside(
    route: Route, backups: Sequence[BackupPoint], files: Sequence[RouteFile], state: ArchiveState
) -> list[str]:
    """Return the history in which a route ends and the other histories that it leaves out; none if there is only one.

    Only histories into which a backup leads are returned.
    """
    if not route.files:
        return []
    last, names = route.files[-1].incarnation, list(dict.fromkeys(file.incarnation for file in files))
    beside = dict.fromkeys([*filter(None, [route.end.other]), *names[names.index(last) :]])
    reachable = [name for name in beside if name == last or _has_view(name, backups, files, state)]
    return reachable if len(reachable) > 1 else []


def _has_view(name: str, backups: Sequence[BackupPoint], files: Sequence[RouteFile], state: ArchiveState) -> bool:
    try:
        view_of(name, backups, files, state)
    except NotFound:
        return False
    return True


def _choose_time(
    target: AtTime,
    backups: Sequence[BackupPoint],
    files: Sequence[RouteFile],
    now: datetime,
    state: ArchiveState,
    hint: str,
) -> RestoreRoute:
    moment = target.moment
    if moment > now:
        raise PreflightError(
            f"{readable_time(moment)} is in the future", hint="name a time in the past, or `latest`", about=()
        )
    early = [point for point in backups if commit_time(point.taken) <= moment]
    if not early:
        raise NotFound(
            f"no backup is older than {readable_time(moment)}",
            hint=f"the oldest is {backups[0].backup_id}",
            about=(),
        )
    route = leading(early, RouteMap(files, state).follow)
    if route.is_empty:
        raise NotFound(
            f"{readable_time(moment)} cannot be reached from backup {route.point.backup_id}: {route.end.reason}",
            hint=f"`--to {route.point.backup_id}` restores that backup alone",
            about=(),
        )
    if commit_time(route.to) < moment:
        at = readable_time(commit_time(route.to)) if route.to > route.point.taken else "the backup"
        raise NotFound(
            f"{readable_time(moment)} is after the end of the archive, which is at {at}{_because(route)}",
            hint=hint,
            about=(),
        )
    first, last = _doubtful(route, moment, now)
    notes = _lost_between_histories(route.files, last, moment, state)
    return RestoreRoute(target, route, route.files[: last + 1], route.files[last], first_doubtful=first, notes=notes)


def _lost_between_histories(
    files: Sequence[RouteFile], last: int, moment: datetime, state: ArchiveState
) -> tuple[str, ...]:
    """Return a note if the time is between two histories of a route, so that the earlier server stopped archiving.

    Before the start of the next history, the server may have committed transactions that it did not archive, for
    example because the server was lost. There is no note if a record proves that the archive was complete at the time,
    or if the same server continued with the next transaction.
    """
    ended = files[last].incarnation
    following = next((file for file in files[last:] if file.incarnation != ended), None)
    if following is None:
        return ()
    own = [at for at, file in enumerate(files) if file.incarnation == ended]
    complete = complete_until(files[: own[-1] + 1], RouteEnd(EndKind.NEWEST, ""), state.complete)
    known = max(filter(None, [complete, *(files[at].last_commit for at in own)]), default=None)
    if known is None or commit_time(known) >= moment:
        return ()
    end = files[own[-1]]
    if (end.server, end.reached) == (following.server, following.previous) and end.reached is not None:
        return ()
    text = (
        f"{readable_time(moment)} is between two histories: the archive of history {ended} of server"
        f" {files[last].server} ends at {readable_time(commit_time(known))}, and then history {following.incarnation}"
        f" of server {following.server} began; any transactions that server {files[last].server} committed in between"
        " are not archived, so the restore lacks them"
    )
    return (text,)


def _doubtful(route: Route, moment: datetime, now: datetime) -> tuple[int, int]:
    """Return the indexes of the first and the last file whose transactions decide where a restore to a time stops.

    Times before the start of the backup, or after `now`, are not real commit times.
    """
    least, most, files = route.point.taken, round(now.timestamp() * _SECOND), route.files
    last = _last_to_replay(files, moment)
    own = [at for at, file in enumerate(files) if file.incarnation == files[last].incarnation and file.last_commit]
    sought = moment.timestamp() * _SECOND
    latest = {at: min(files[at].last_commit or 0, most) for at in own}
    first = next((at for at in own if latest[at] > sought and at < last), last)
    for at in (at for at in own if at > last):
        # A later file with an earlier time makes the times doubtful.
        highest = max((latest[other] for other in own if first <= other < at), default=0)
        if max(files[at].first_commit or 0, least) < highest - TOLERANCE:
            last = at
    return first, last


def _last_to_replay(files: Sequence[RouteFile], moment: datetime) -> int:
    """Return the index of the file in which a restore to a time stops: the last file with a commit up to that time.

    After a takeover, the files of the new server may contain old commits of the previous server. So a restore stays in
    a history if this history contains commits after the requested time.
    """
    last = 0
    for _, own in groupby(enumerate(files), lambda numbered: numbered[1].incarnation):
        ended = None
        for at, file in own:
            if file.first_commit is not None and commit_time(file.first_commit) <= moment:
                last = at
            ended = file.last_commit or ended
        if ended is not None and commit_time(ended) > moment:
            break
    return last


def _because(route: Route) -> str:
    """Return text for the end of a sentence that says why a route ends; empty if nothing newer is archived."""
    return "" if route.end.kind is EndKind.NEWEST else f": {route.end.reason}"


def _choose_gtid(
    target: AtGtids | BeforeGtid,
    backups: Sequence[BackupPoint],
    files: Sequence[RouteFile],
    state: ArchiveState,
    hint: str,
) -> RestoreRoute:
    flavour = backups[-1].flavour
    try:
        gtids = parse_gtids(flavour, target.text)
    except ValueError as error:
        raise PreflightError(
            f"{target.text!r} is not a GTID of {flavour}: {error}",
            hint="see `zsnapdb show` for the GTIDs in the backups and the archive",
            about=(),
        ) from error
    for point in reversed(backups):
        if point.gtids is None:
            # The server had no GTIDs when this backup was made. An older backup may lead to the transaction.
            continue
        if contains(point.gtids, gtids):
            if isinstance(target, AtGtids) and (gtids == point.gtids or _ends_with(point, gtids)):
                return RestoreRoute(target, follow(point, files, state), (), None, exact_backup=True)
            continue
        route = follow(point, files, state)
        reached: Gtids | None = point.gtids
        for index, file in enumerate(route.files):
            reached = joined(reached, file.gtids)
            if reached is not None and contains(reached, gtids):
                return RestoreRoute(target, route, route.files[: index + 1], file)
        raise NotFound(
            f"{target.text} is neither in a backup nor in the archived binlogs after {point.backup_id}, which reach to"
            f" {route.reached}{_because(route)}",
            hint=hint,
            about=(),
        )
    raise NotFound(
        f"every backup already contains {target.text}, and none ends with it",
        hint=f"the oldest is {backups[0].backup_id}; see `zsnapdb list` for their positions",
        about=(),
    )


def _ends_with(point: BackupPoint, gtids: Gtids) -> bool:
    """Return whether one of these transactions is the last transaction in a backup that contains all of them."""
    if point.last_gtid is None:
        return False
    last = parse_gtids(point.flavour, point.last_gtid)
    if isinstance(last, GtidPosition) and isinstance(gtids, GtidPosition):
        return last.heads.items() <= gtids.heads.items()
    return contains(gtids, last)


_SPARE = 2
"""How many sets before the point count, newest first. The newest may contain transactions after the point."""


@dataclass(frozen=True)
class SetOnHost:
    """A snapshot set on this host: its creation time (UTC), the number of its binlog, and its GTIDs.

    The binlog number is None if unknown. The GTIDs are in the server's format. They are None if the transactions have
    no GTIDs.
    """

    created: datetime
    binlog: int | None
    gtids: str | None


def first_binlog(sets: Sequence[SetOnHost], target: Target | None, flavour: Flavour) -> int:
    """Return the number of the oldest binlog that is needed to reach the target from one of the sets (oldest first).

    If there is no target, return the oldest binlog that any of the sets needs. If the number is unknown, return 0,
    because every binlog may be needed.
    """
    near = list(sets)
    if target is not None:
        near = ([one for one in sets if _is_before(one, target, flavour)] or near)[-_SPARE:]
    numbers = [one.binlog for one in near if one.binlog is not None]
    return min(numbers) if numbers and len(numbers) == len(near) else 0


def _is_before(one: SetOnHost, target: Target, flavour: Flavour) -> bool:
    """Return whether a replay from the set may reach the target. Only a set with later transactions is excluded."""
    if isinstance(target, AtTime):
        return one.created <= target.moment
    if isinstance(target, AtGtids | BeforeGtid) and one.gtids is not None:
        try:
            return not contains(parse_gtids(flavour, one.gtids), parse_gtids(flavour, target.text))
        except ValueError:
            return True
    return True

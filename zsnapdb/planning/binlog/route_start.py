"""Finds the archived binlog with a backup's position, and the offset at which it continues the backup. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.gtid import GtidPosition, GtidSet, contains
from zsnapdb.planning.binlog.archive import is_some, same_gtids
from zsnapdb.planning.binlog.failover_history import begins_at
from zsnapdb.planning.binlog.route_elements import ArchiveState, BackupPoint, EndKind, History, RouteEnd, RouteFile
from zsnapdb.planning.server_family import family

_MICROSECONDS = 1_000_000
_Identify = Callable[[RouteFile], Hashable]
Heads = Mapping[str, Sequence[int]]
"""The indexes of the files by the fingerprint of their head, newest first."""

NO_ARCHIVE = RouteEnd(EndKind.NO_ARCHIVE, "no binlogs are archived")
NOT_ARCHIVED = RouteEnd(EndKind.NOT_ARCHIVED, "no archived binlog holds its position")
_AMBIGUOUS = RouteEnd(
    EndKind.AMBIGUOUS,
    "the head of its binlog is not known, and binlogs of two histories of its server fit its position",
)

_PERHAPS_LEFT = RouteEnd(
    EndKind.AMBIGUOUS,
    "the head of its binlog is not known, and the server may have left the history that has its position before",
)


@dataclass(frozen=True)
class RouteStart:
    """The index of the first file of a route, and the offset in that file."""

    at: int
    offset: int
    is_exact: bool


def heads_of(files: Sequence[RouteFile]) -> Heads:
    """Return the indexes of files, newest first, by the fingerprint of the file's head."""
    heads: dict[str, list[int]] = {}
    for at in range(len(files) - 1, -1, -1):
        heads.setdefault(files[at].fingerprint, []).append(at)
    return heads


def begin_of(
    point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History], state: ArchiveState, heads: Heads
) -> RouteStart | RouteEnd:
    """Return the start of the route from a backup's position.

    The fingerprint of its head identifies the archived file, regardless of file names and clocks. If the fingerprint is
    unknown, the name and the offset identify the file within the histories of the backup's server. In all other
    histories, GTIDs identify the file.

    After a reset, the same names and GTIDs can occur a second time. If two histories of that server fit, the start is
    ambiguous, because the server's clock may have been wrong. The clock only excludes:

    - Files that the server created after the snapshot are excluded.
    - Files of a history that the server left before the backup started are excluded.
    - If the server may have left a history by the time of the backup, the start is ambiguous.

    If the server has only one history, its clock excludes no file with matching GTIDs.
    """
    if point.fingerprint is not None:
        return (
            _in_own_binlog(point, files, heads)
            or _by_gtids(point, files, histories, state)
            or _damage_at(point, state)
            or NOT_ARCHIVED
        )
    older = list(_begun_before(point, files, histories, _identity))
    only = _only_history(point, files, histories, state)
    fitting = [at for at in older if _is_at_coordinates(files[at], point)] or [
        at for at in only if _is_at_coordinates(files[at], point) and _is_at_gtids(files[at], point, files[at])
    ]
    if fitting:
        first = files[fitting[0]]
        offset = point.coordinates.offset if point.coordinates is not None else first.start
        return _if_not_left(RouteStart(fitting[0], max(offset, first.start), True), point, files, histories)
    begin = _by_gtids(point, files, histories, state)
    if begin is not None:
        return _if_not_left(begin, point, files, histories)
    return _before_rename(point, files, histories) or _damage_at(point, state) or NOT_ARCHIVED


def _if_not_left(
    begin: RouteStart, point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History]
) -> RouteStart | RouteEnd:
    """Return the start `begin`, or an ambiguous end.

    If another history of the same server fits the position too, return an ambiguous end. If the server may have left
    its history before the backup started, return an ambiguous end too. If the history has a successor on the same
    server, the history must contain transactions that are newer than the start of the backup. This check is needed
    because the successor's first binlogs may be lost, and then nothing else shows when the successor started.
    """
    server = files[begin.at].server
    own = [history for history in histories if files[history.low].server == server]
    here = next(history for history in own if begin.at in history.places)
    # The clock may have been wrong at the backup, so it does not choose between two histories.
    copies = {_identity(files[at]) for at in here.places}
    others = [at for history in own for at in history.places if _identity(files[at]) not in copies]
    if any(_is_at_coordinates(files[at], point) or _holds(files, histories, at, point) for at in others):
        return _AMBIGUOUS
    written = [max(files[at].created * _MICROSECONDS, files[at].last_commit or 0) for at in here.places]
    return begin if here == own[-1] or max(written) >= point.taken else _PERHAPS_LEFT


def _in_own_binlog(point: BackupPoint, files: Sequence[RouteFile], heads: Heads) -> RouteStart | None:
    """Return the position in the binlog whose head the backup recorded; None if that binlog is not archived.

    If a server was set back or its binlogs were renamed, several histories contain that binlog, and some copies may be
    shorter. The newest copy that contains the position is used.
    """
    where = point.coordinates
    if where is None:
        return None
    for at in _own_copies(point, files, heads):
        if _is_within(files[at], point, where.offset):
            return RouteStart(at, max(where.offset, files[at].start), True)
    return None


def held_by(point: BackupPoint, files: Sequence[RouteFile]) -> int:
    """Return how many files, counted from the first, certainly contain no transaction after the backup.

    The head of the backup's binlog proves this without a clock: the archived part of that binlog ends before the
    backup, so all earlier files are older.
    """
    newest = next(_own_copies(point, files, heads_of(files)), None)
    if newest is None or point.coordinates is None or files[newest].end > point.coordinates.offset:
        return 0
    return newest + 1


def _own_copies(point: BackupPoint, files: Sequence[RouteFile], heads: Heads) -> Iterator[int]:
    """Yield the indexes of the backup's own binlog, identified by its head, newest first."""
    if point.coordinates is None or point.fingerprint is None:
        return
    # If two binlogs without transactions start within the same second, they differ only in their numbers. The head
    # contains the server_id, so it identifies the server, even if the server_id changed before the backup.
    is_named = family(point.flavour).has_uuid
    own = (point.server if is_named else None, point.coordinates.file.rpartition(".")[2])
    for at in heads.get(point.fingerprint, ()):
        file = files[at]
        if (file.server if is_named else None, file.name.rpartition(".")[2]) == own:
            yield at


def _by_gtids(
    point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History], state: ArchiveState
) -> RouteStart | None:
    """Return the position of the first transaction after the backup, found only by GTIDs; None if no file proves it.

    If the head of the backup's binlog is known, no other file that this server created before the backup can contain
    the position.
    """
    is_head_known = point.fingerprint is not None
    older = (
        at
        for at in _begun_before(point, files, histories, _identity)
        if not (is_head_known and files[at].server == point.server)
    )
    only = _only_history(point, files, histories, state)
    at = next((at for at in older if _holds(files, histories, at, point)), None)
    if at is None:
        at = next((at for at in only if _begins_at(files, at, point)), None)
    return None if at is None else RouteStart(at, files[at].start, same_gtids(point.gtids, files[at].previous))


def _begun_before(
    point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History], identity: _Identify
) -> Iterator[int]:
    """Yield the indexes of the files that existed on the server at the time of the backup, newest first."""
    present = _not_left(files, histories, point.taken, identity)
    gone = {identity(files[at]) for history in histories if history not in present for at in history.places}
    for history in reversed(present):
        for at in reversed(history.places):
            # The first files of a later history may belong to a history that the server left before the backup started.
            if files[at].created * _MICROSECONDS <= point.before and identity(files[at]) not in gone:
                yield at


def _before_rename(point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History]) -> RouteStart | None:
    """Return the position if the server's binlogs were renamed after the backup; None if they were not.

    Renamed files are archived again in a new history, although the server has not left the old history.
    """
    older = _begun_before(point, files, histories, _identity_without_base)
    at = next((at for at in older if _is_at_coordinates(files[at], point)), None)
    if at is None or point.coordinates is None:
        return None
    return RouteStart(at, max(point.coordinates.offset, files[at].start), True)


def _damage_at(point: BackupPoint, state: ArchiveState) -> RouteEnd | None:
    """Return the end of a route whose backup is in an unreadable binlog; None if no such binlog is known."""
    for place in reversed(state.unreadable):
        if place.name is None or (point.coordinates is not None and place.name == point.coordinates.file):
            what = place.name or "a history of the archive"
            return RouteEnd(EndKind.UNREADABLE, f"{what}, which may hold its position, cannot be read: {place.reason}")
    return None


def _only_history(
    point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History], state: ArchiveState
) -> Sequence[int]:
    """Return the indexes of the server's files, newest first; none if the server has several histories.

    The result is also empty if the history starts with file number 1 after the snapshot, because the server was
    probably reset at that time.
    """
    own = [history for history in histories if files[history.low].server == point.server]
    if len(own) != 1 or point.gtids is None or state.has_lost_history:
        return ()
    first = files[own[0].low]
    if first.number == 1 and first.created * _MICROSECONDS > point.before:
        return ()
    return range(own[0].high - 1, own[0].low - 1, -1)


def _begins_at(files: Sequence[RouteFile], at: int, point: BackupPoint) -> bool:
    file = files[at]
    rest = [other for other in files[at:] if other.incarnation == file.incarnation]
    return not file.is_anonymous and point.gtids is not None and begins_at(rest, point.gtids)


def _holds(files: Sequence[RouteFile], histories: Sequence[History], at: int, point: BackupPoint) -> bool:
    """Return whether GTIDs show that this file and its successors contain all transactions after the backup.

    Either this file alone or the whole history proves this. The whole history proves it only if each of the backup's
    GTIDs identifies a single transaction. A server with several histories may have assigned a number twice.
    """
    file = files[at]
    if isinstance(point.gtids, GtidPosition):
        return _begins_at(files, at, point)
    history = next(history for history in histories if at in history.places)
    if _is_at_gtids(file, point, file):
        return True
    servers = [files[other.low].server for other in histories]
    repeated = {server for server in servers if servers.count(server) > 1}
    before = files[history.low].previous
    if point.gtids is None or not isinstance(before, GtidSet):
        return False
    doubtful = {name: part for name, part in point.gtids.intervals.items() if name.partition(":")[0] in repeated}
    return before.contains(GtidSet(doubtful)) and _is_at_gtids(file, point, files[history.high - 1])


def _not_left(
    files: Sequence[RouteFile], histories: Sequence[History], taken: int, identity: _Identify
) -> list[History]:
    """Return the histories that the servers had not left by `taken` (microseconds UTC)."""
    left: set[History] = set()
    earlier: dict[str, list[History]] = {}
    for history in histories:
        first = files[history.low]
        before = earlier.setdefault(first.server, [])
        if before:
            known = {identity(files[at]) for other in before for at in other.places}
            started = max(files[at].created for other in before for at in other.places)
            # If a server was set back, its first files may be older files that other histories lack. Only the files
            # after these are new.
            own = next(
                (at for at in history.places if identity(files[at]) not in known and files[at].created >= started), None
            )
            if own is not None and files[own].created * _MICROSECONDS <= taken:
                left.update(before)
        before.append(history)
    return [history for history in histories if history not in left]


def _identity(file: RouteFile) -> tuple[str, int, int, str]:
    """Return a key that identifies a file of a server. All copies of the file, even shorter ones, have the same key."""
    return file.name, *_identity_without_base(file)


def _identity_without_base(file: RouteFile) -> tuple[int, int, str]:
    """Return the part of the key that stays the same if the base name changes."""
    return file.number, file.created, file.fingerprint


def _is_at_coordinates(file: RouteFile, point: BackupPoint) -> bool:
    """Return whether name and offset show that the file contains the position, and no GTID contradicts this."""
    where = point.coordinates
    if where is None or (file.name, file.server) != (where.file, point.server):
        return False
    return _is_within(file, point, where.offset)


def _is_within(file: RouteFile, point: BackupPoint, offset: int) -> bool:
    """Return whether a file is long enough to contain a backup's offset, and no GTID contradicts this."""
    if offset > file.end:
        return False
    if point.gtids is None or file.previous is None or file.reached is None:
        return True
    # A MySQL server may have GTIDs that are in no binlog (gtid_purged).
    return contains(point.gtids, file.previous) and (
        family(point.flavour).gtids_are_sets or contains(file.reached, point.gtids)
    )


def _is_at_gtids(file: RouteFile, point: BackupPoint, last: RouteFile) -> bool:
    """Return whether a file starts at or before the backup's GTIDs, and the file `last` ends at or after them."""
    if point.gtids is None or not is_some(point.gtids) or file.previous is None or file.is_anonymous:
        return False
    return contains(point.gtids, file.previous) and last.reached is not None and contains(last.reached, point.gtids)

"""`zsnapdb binlog find --follow`: reports the transactions of a live server as it commits them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from zsnapdb.base.errors import DamagedError, UsageError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.files import LocalFiles, find_source
from zsnapdb.jobs.binlog.find import FindRequest
from zsnapdb.mysql.binlog.transaction_changes import transaction_changes
from zsnapdb.planning.binlog.changes import ChangeFilter, ListedTransaction, Match

_POLL_SECONDS = 0.5

Report = Callable[[ListedTransaction], None]


class FollowStop(Protocol):
    """Ends the following."""

    def wait(self, seconds: float) -> bool:
        """Wait until the end is requested, at most this long. Return whether it was requested."""


@dataclass(frozen=True)
class _Place:
    """How far a binlog was read: its name, its fingerprint, and the end of the last transaction (None: none yet)."""

    name: str
    fingerprint: str
    end: int | None = None


def follow(instance: Instance, request: FindRequest, stop: FollowStop, report: Report) -> None:
    """Report each transaction that the request selects and that the server commits from now on, until the stop.

    The binlogs are read where the server writes them; the archive is not asked. The server may be restarted meanwhile,
    and its binlogs reset. UsageError if the request has a period or an order. DamagedError if a binlog is damaged.
    """
    conditions = request.filter()
    if request.between is not None or request.user_time is not None or request.largest:
        raise UsageError(
            "--follow reports what is committed from now on, in its order",
            hint="leave --between, --user-time and --largest out",
        )
    with instance.session() as session:
        files = LocalFiles(find_source(session))
    follow_files(files, conditions, stop, report)


def follow_files(files: LocalFiles, conditions: ChangeFilter, stop: FollowStop, report: Report) -> None:
    """Report, as `follow` does, what these binlogs get from now on until the stop."""

    def select(listed: ListedTransaction) -> None:
        match = conditions.match(listed.changes)
        if match is not Match.NO:
            report(replace(listed, match=match))

    place = _present(files)
    while not stop.wait(_POLL_SECONDS):
        place = _read_on(files, place, select)


def _present(files: LocalFiles) -> _Place | None:
    """Return the end of the last transaction that is committed now; None if the server has no binlog yet."""
    names = [binlog.name for binlog in files.list() if not binlog.problem]
    if not names:
        return None
    return _read(files, _Place(names[-1], files.opening(names[-1]).fingerprint), lambda _listed: None)


def _read_on(files: LocalFiles, place: _Place | None, report: Report) -> _Place | None:
    """Report what follows the place in its binlog and in those after it. Return the new place."""
    binlogs = files.list()
    problem = next((binlog.problem for binlog in binlogs if binlog.problem), None)
    if problem is not None:
        raise DamagedError(problem, hint="see the server's error log and `zpool status`")
    names = [binlog.name for binlog in binlogs]
    is_known = place is not None and place.name in names and files.opening(place.name).fingerprint == place.fingerprint
    # After a reset the server begins anew: every binlog is new then.
    begin = names.index(place.name) if is_known and place is not None else 0
    for name in names[begin:]:
        if place is None or not is_known or name != place.name:
            place = _Place(name, files.opening(name).fingerprint)
        place = _read(files, place, report)
    return place


def _read(files: LocalFiles, place: _Place, report: Report) -> _Place:
    end = place.end
    with files.open(place.name) as file:
        for changes in transaction_changes(file, place.name, end):
            end = changes.end
            report(ListedTransaction(place.name, None, Match.YES, changes))
    return _Place(place.name, place.fingerprint, end)

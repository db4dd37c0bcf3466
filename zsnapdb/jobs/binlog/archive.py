"""`zsnapdb binlog archive`: once, or for as long as the server runs."""

from __future__ import annotations

import time
from threading import Event

from zsnapdb.errors import (
    ConsistencyError,
    DamagedError,
    NotThere,
    PreflightError,
    RepositoryError,
    ServerError,
    ZsnapdbError,
)
from zsnapdb.jobs.binlog.archiver import Archiver, Round
from zsnapdb.jobs.binlog.files import BinlogSource, find_source
from zsnapdb.jobs.events import Events
from zsnapdb.jobs.exclusion import exclusive
from zsnapdb.jobs.instance import Instance
from zsnapdb.repository.binlog_archive import BinlogArchive

_SHORTEST_PAUSE = 0.2
"""Seconds between two looks, however long they take."""


def open_archive(instance: Instance) -> BinlogArchive:
    """Open the archive to write to it; the repository is made if there is none yet."""
    return BinlogArchive(instance.open_or_create_repository(), instance.name)


def archive_once(instance: Instance) -> Round:
    """Archive everything the server's binlogs hold now.

    PreflightError if the newest of them cannot be archived; the others are all the same.
    """
    with exclusive(f"binlog-{instance.name}", doing=f"archiving the binlogs of instance {instance.name}"):
        with instance.session() as session:
            source = find_source(session)
        archiver = Archiver(instance, open_archive(instance), source)
        found = archiver.look()
    if found.blocked is not None:
        raise PreflightError(
            f"the newest binlog of instance {instance.name} cannot be archived: {found.blocked}",
            hint=(
                "encrypted binlogs cannot be read from their files: set binlog_encryption (MySQL) or encrypt_binlog"
                " (MariaDB) to OFF"
            ),
        )
    return found


def archive_continuously(instance: Instance, stop: Event) -> Round:
    """Archive until `stop` is set, then once more.

    Whatever is committed is in the repository within `binlog.interval`, as long as that can be reached.

    Troubles with server and repository are told and outlived.
    """
    with exclusive(f"binlog-{instance.name}", doing=f"archiving the binlogs of instance {instance.name}"):
        with instance.session() as session:
            source = find_source(session)
        archiver = Archiver(instance, open_archive(instance), source)
        # Half of the interval: what is written right after a look waits for the next one, which then still has time to
        # store it.
        pause = instance.settings.binlog.interval / 2
        notes = Notes(instance.events)
        found = Round()
        while True:
            is_last, begun = stop.is_set(), time.monotonic()
            try:
                source, archiver = _current(instance, archiver, source)
                found = archiver.look()
                notes.of(found)
            except (RepositoryError, ConsistencyError, DamagedError, PreflightError, OSError) as error:
                if is_last and isinstance(error, ZsnapdbError):
                    raise
                notes.trouble(error)
                archiver = _renewed(instance, archiver, source)
            if is_last:
                return found
            stop.wait(max(_SHORTEST_PAUSE, pause - (time.monotonic() - begun)))


def _current(instance: Instance, archiver: Archiver, source: BinlogSource) -> tuple[BinlogSource, Archiver]:
    """Return the source as the server says it is now, with an archiver for it.

    One that does not answer is taken to be what it was.
    """
    try:
        with instance.session(read_timeout=5.0) as session:
            found = find_source(session)
    except ServerError:
        return source, archiver
    if found == source:
        return source, archiver
    return found, Archiver(instance, open_archive(instance), found)


def _renewed(instance: Instance, archiver: Archiver, source: BinlogSource) -> Archiver:
    """Return an archiver that has read the archive anew: after an error nobody knows what of the last request was done.

    The old one if it cannot be read.
    """
    try:
        return Archiver(instance, open_archive(instance), source)
    except (RepositoryError, DamagedError, NotThere):
        return archiver


class Notes:
    """Tells what happens once, not at every look."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._trouble = ""
        self._problems: set[str] = set()

    def of(self, found: Round) -> None:
        """Tell what a look came to, as far as it is new."""
        if self._trouble:
            self._events.tell("archiving goes on")
            self._trouble = ""
        if found.begun:
            self._events.tell(f"a new incarnation is begun: {found.begun}")
        for gap in found.gaps:
            self._events.warn(f"GAP: {gap}; no point in time from there to the next backup can be restored")
        for name in found.rotated:
            self._events.tell(f"{name} is archived whole")
        for problem in found.problems:
            if problem not in self._problems:
                self._events.warn(f"{problem}; it is not archived")
        self._problems = set(found.problems)

    def trouble(self, error: BaseException) -> None:
        """Tell of a trouble that is new."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            self._events.warn(f"{error}; trying again")

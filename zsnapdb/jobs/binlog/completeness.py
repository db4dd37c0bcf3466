"""Records in the repository until when the archive of a server is complete, so that a quiet server is not refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from zsnapdb.base.errors import RepositoryError, ServerError
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.binlog.round import Round
from zsnapdb.mysql.binlog.read import commit_horizon
from zsnapdb.mysql.probe import dialect
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock
from zsnapdb.planning.binlog.completeness import CommitHorizon, LastRecord, is_reached, is_worth_recording
from zsnapdb.planning.binlog.history import CompleteUntil
from zsnapdb.planning.facts import Dialect
from zsnapdb.repository.binlog_archive import BinlogArchive

_SECOND = 1_000_000


class CompletenessRecorder:
    """Asks the server before a round of its archiver, and records afterwards until when the archive is complete.

    `interval` is the time in seconds between two records.
    """

    def __init__(self, events: Events, interval: float, steady: Callable[[], float] = time.monotonic) -> None:
        self._events, self._interval, self._steady = events, interval, steady
        self._recorded: tuple[int, float] | None = None
        self._refused: float | None = None
        self._forms: Dialect | None = None
        self._trouble = ""

    def before(self, session: Session) -> CommitHorizon | None:
        """Return the horizon of the server's commits; None if no record is due, or the server does not tell.

        A repository that refused a record is not asked again for a while.
        """
        if self._refused is not None and self._steady() - self._refused < self._interval:
            return None
        try:
            if not is_worth_recording(self._last(), round(clock(session)) * _SECOND, self._interval, None):
                return None
            # Which statements a server understands is asked once: each question is a statement in its logs.
            self._forms = self._forms or dialect(session)
            return commit_horizon(session, self._forms)
        except ServerError as error:
            # It may be another server now.
            self._forms = None
            self._warn(str(error))
            return None

    def after(self, result: Round, horizon: CommitHorizon | None, archive: BinlogArchive) -> Round:
        """Record the horizon if the round reached it. Return the round with the recorded time.

        A repository that refuses the record is a warning: the archive itself is written.
        """
        if result.new_incarnation:
            # What was recorded says nothing about the new incarnation, so the next round records again.
            self._recorded = None
        # A binlog that could not be archived may be the one that the horizon is in.
        is_whole = result.blocked is None and not result.problems
        if not is_whole or horizon is None or result.end is None or result.incarnation is None:
            return result
        if not is_reached(horizon, result.end):
            return result
        if not is_worth_recording(self._last(), horizon.until, self._interval, result.last_commit):
            return result
        try:
            archive.note_complete(CompleteUntil(result.incarnation, result.end.file, result.end.offset, horizon.until))
        except RepositoryError as error:
            self._refused = self._steady()
            self._warn(str(error))
            return result
        self._refused = None
        self._recorded, self._trouble = (horizon.until, self._steady()), ""
        return replace(result, complete_until=horizon.until)

    def _last(self) -> LastRecord | None:
        if self._recorded is None:
            return None
        until, at = self._recorded
        return LastRecord(until, self._steady() - at)

    def _warn(self, why: str) -> None:
        if why != self._trouble:
            self._trouble = why
            self._events.warn(f"until when the archive is complete cannot be recorded: {why}")

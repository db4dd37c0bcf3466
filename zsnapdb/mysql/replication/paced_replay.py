"""Replays binlogs at the pace at which production committed them, on a server that others use meanwhile.

The channel is that of a replay (`replay`), and the server itself waits: a delayed replica applies each event so many
seconds after its time (refman 8.4, "Delayed Replication"; MariaDB manual, "Delayed Replication"), to the second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zsnapdb.base.errors import ServerError
from zsnapdb.base.model import Flavour
from zsnapdb.mysql.replication.replay import ChannelStatements, RelayLogs, ReplayInput, paced_settings, status
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.recorded_load import AppliedSample

_POLL_SECONDS = 0.1
_ENDING_SECONDS = 60.0


@dataclass
class PacedReplay:
    """A replay that runs. A thread with a session of its own notes how far it is, until it stops with an error."""

    words: ChannelStatements
    session: Session
    began: float
    samples: list[AppliedSample] = field(default_factory=list)
    error: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @classmethod
    def start(
        cls,
        open_session: Callable[[], Session],
        flavour: Flavour,
        logs: RelayLogs,
        source: ReplayInput,
        delay: int,
        workers: int,
    ) -> PacedReplay:
        """Let the server apply the relay logs, each event `delay` seconds after its time. The files stay."""
        words = ChannelStatements.of(flavour)
        with open_session() as session:
            session.query(words.change_paced, (source.file, source.start, logs.file(1).name, source.start, delay))
            for statement in paced_settings(flavour, workers):
                session.query(statement)
            session.query(words.start)
        running = cls(words, open_session(), time.monotonic())
        running.thread = threading.Thread(target=running._watch, daemon=True)
        running.thread.start()
        return running

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began

    def _watch(self) -> None:
        while not self.stopped.wait(_POLL_SECONDS):
            try:
                seen = status(self.session, self.words)
            except ServerError as error:
                self.error = error.message
                return
            self.samples.append(AppliedSample(self.seconds, seen.number, seen.offset))
            if not seen.is_running:
                self.error = seen.error or "the server stopped it"
                return

    def end(self) -> None:
        """Stop it; a transaction that is being applied ends first. Afterwards `samples` and `error` are final.

        The last sample has the moment of this call, and all that was applied. If it has not ended after a minute, that
        is the error.
        """
        ended = self.seconds
        self.stopped.set()
        if self.thread is not None:
            self.thread.join(_ENDING_SECONDS)
        try:
            with self.session as session:
                session.query(self.words.stop)
                if not self.error:
                    last = status(session, self.words)
                    self.samples.append(AppliedSample(ended, last.number, last.offset))
        except ServerError as error:
            self.error = self.error or f"it did not stop after the migration: {error.message}"

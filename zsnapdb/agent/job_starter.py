"""Starts jobs, of the agent and of the helper: forked from a server where they are frequent, else from nothing."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.agent.adoption import Adoption
from zsnapdb.agent.children import Process, ProcessChild, from_nothing, logged, own_environment
from zsnapdb.agent.fork_server import ForkServer, StartRequest, Streams

FREQUENT = 150.0
"""A server waits this many seconds for the next job; jobs that come more seldom are started from nothing.

One that is started from nothing every two and a half minutes costs less than half a percent of a processor, and a
server some 80 MiB of memory.
"""
SPARED = 600.0
"""How many seconds no server is started after one that forked no job, such as one whose modules cannot be imported."""


@dataclass
class JobStarter:
    """Starts jobs with this environment. A job is a child of this process, whichever way it is started.

    A server that is not ready, has ended, does not answer, or would give a job other limits than this process has, is
    passed by: the job is started from nothing. `steady` are seconds of a clock that nobody sets. A server waits for the
    next job for `frequent` seconds. Threads may start jobs at once.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    steady: Callable[[], float] = time.monotonic
    frequent: float = FREQUENT
    server: ForkServer | None = field(init=False, default=None)
    _adoption: Adoption = field(init=False, default_factory=Adoption)
    _began: float | None = field(init=False, default=None)
    _is_useful: bool = field(init=False, default=True)
    _not_before: float = field(init=False, default=-math.inf)
    _alone: threading.RLock = field(init=False, default_factory=threading.RLock)

    def start(self, words: Sequence[str], log: Path, run_id: str) -> ProcessChild:
        """Start the run of `zsnapdb` with these words. OSError if that is impossible. The log is emptied before."""
        return logged(self._started, StartRequest(tuple(words), own_environment(run_id, self.environment)), log)

    def apart(self, words: Sequence[str], environment: Mapping[str, str], streams: Streams) -> Process:
        """Start `zsnapdb` with these words as `children.apart` does: with this environment and no other."""
        return self._started(StartRequest(tuple(words), environment, is_apart=True), streams)

    def prepare(self) -> None:
        """Start a server for the jobs to come, if it can be. Nobody waits for it."""
        with self._alone:
            self._began = self.steady()
            self._start_server()

    def tidy(self) -> None:
        """End a server for which no job has come, and take note of the ends of processes that became children here.

        Nobody waits for that: a thread that starts a job does it too.
        """
        if not self._alone.acquire(blocking=False):
            return
        try:
            self._adoption.tidy()
            idle = self.steady() - self._began if self._began is not None else 0.0
            if self.server is not None and self.server.has_ended():
                self._give_up_server()
            elif idle > self.frequent:
                self._end_server()
        finally:
            self._alone.release()

    def close(self) -> None:
        """End the server. Jobs go on."""
        with self._alone:
            self._end_server()

    def _started(self, request: StartRequest, streams: Streams) -> Process:
        with self._alone:
            server = self._usable()
            job = server.fork(request, streams, self._adoption) if server else None
            self._is_useful = self._is_useful or job is not None
            if server is not None and job is None:
                self._give_up_server()
            process = job or from_nothing(request, streams)
            self._start_server()
        return process

    def _usable(self) -> ForkServer | None:
        self.tidy()
        if self.server is None or not self.server.is_ready():
            return None
        if not self.server.gives_what_this_process_would():
            self._end_server()
        return self.server

    def _start_server(self) -> None:
        """Start a server for the next job, if this one came soon after the one before. Nobody waits for it."""
        at, before = self.steady(), self._began
        self._began = at
        if self.server is not None or before is None or at - before > self.frequent or at < self._not_before:
            return
        # Without a server the next job is started from nothing too, and tries again.
        with contextlib.suppress(OSError):
            self.server, self._is_useful = ForkServer(self.environment), False

    def _give_up_server(self) -> None:
        """End a server that fails."""
        self._end_server()
        if not self._is_useful:
            self._not_before = self.steady() + SPARED

    def _end_server(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

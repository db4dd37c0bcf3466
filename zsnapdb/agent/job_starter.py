"""Starts jobs for the agent and for the helper of `zsnapdb serve`. A fork server starts frequent jobs faster.

The fork server has already imported the modules that jobs need, which saves half a second of processor time per job.
The process of the fork server runs `zsnapdb/cli/fork_server.py`.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.agent.children import (
    AdoptedProcess,
    Adoption,
    ProcessChild,
    StartRequest,
    Streams,
    from_nothing,
    is_child,
    logged,
    own_environment,
)
from zsnapdb.base.program_start import Process

LARGEST = 1 << 20
"""Maximum length of a packet in bytes."""
READY = b"ready"
"""The server's first packet, sent after all imports. Later packets are process ids of jobs, or NOT_STARTED."""
NOT_STARTED = b"none"
GO = b"go"
"""The message in the pipe of an adopted job. If the pipe closes without this message, the job does nothing."""

PATIENCE = 10.0
"""Seconds within which the fork server must fork a job.

A fork server that takes longer is killed, and the job is started without a fork server.
"""
_MODULE = "zsnapdb.cli.fork_server"
_ROOM = " " * 256
"""The last argument of the server's command line. It reserves space for the command lines of jobs."""


class ForkServer:
    """A fork server that is running or has ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the server. Raises OSError if the server cannot be started."""
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_ready = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(other.fileno()), _ROOM],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=(other.fileno(),),
            )
        except OSError:
            self._line.close()
            raise
        finally:
            other.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def is_ready(self) -> bool:
        """Return whether the server has imported all modules."""
        if not self._is_ready:
            self._line.setblocking(False)
            with contextlib.suppress(OSError):
                self._is_ready = self._line.recv(len(READY)) == READY
        return self._is_ready

    def fork(self, request: StartRequest, streams: Streams, adoption: Adoption) -> AdoptedProcess | None:
        """Let the server fork a job, and return the job as a child of this process.

        Return None if the server cannot fork the job. If the result is None, no job runs, and the server has ended or
        must be ended.
        """
        with contextlib.ExitStack() as ending:
            reading, writing = os.pipe()
            ending.callback(os.close, reading)
            # If a job's pipe closes before the job has read GO, the job does nothing. So no job runs that this process
            # does not know.
            ending.callback(os.close, writing)
            try:
                with adoption.orphans():
                    self._line.settimeout(PATIENCE)
                    socket.send_fds(self._line, [request.packet()], [*streams, reading])
                    answer = self._line.recv(32)
            except OSError:
                return None
            if answer in (b"", NOT_STARTED) or not is_child(int(answer)):
                return None
            job = AdoptedProcess(int(answer))
            if request.is_apart:
                # The group is set here too, so that it exists before the job runs any code.
                os.setpgid(job.pid, job.pid)
            os.write(writing, GO)
            return job

    def close(self) -> None:
        """End the fork server. Jobs that it forked continue."""
        self._line.close()
        self._process.kill()
        # If the fork server hangs in the kernel, it ends later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)

    def gives_what_this_process_would(self) -> bool:
        """Return whether jobs of the server inherit the limits, niceness, groups and folder of this process."""
        try:
            return _inherited(self.pid) == _inherited(os.getpid())
        except OSError:
            return False


def _inherited(pid: int) -> tuple[object, ...]:
    """Return the properties that children of a process inherit. Raises OSError if the process has ended.

    Sources: proc(5), credentials(7).
    """
    own = Path("/proc") / str(pid)
    wanted = ("Umask:", "Uid:", "Gid:", "Groups:", "CapBnd:", "Cpus_allowed:", "Mems_allowed:")
    status = tuple(line for line in (own / "status").read_text().splitlines() if line.startswith(wanted))
    files = tuple(_text(own / name) for name in ("cgroup", "oom_score_adj"))
    limits = tuple(resource.prlimit(pid, number) for number in _LIMITS)
    nice, scheduler = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
    groups = os.getpgid(pid), os.getsid(pid)
    return (*status, *files, *limits, nice, scheduler, *groups, (own / "cwd").readlink())


_LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))


def _text(file: Path) -> str:
    """Return the text of a file in /proc, or "" if the kernel does not have this file."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""


FREQUENT = 150.0
"""Seconds that a fork server waits for the next job. If jobs are rarer, they are started without a fork server.

A start without a server every two and a half minutes costs less than half a percent of a processor. A server costs
about 80 MiB of memory.
"""
SPARED = 600.0
"""Seconds until the next fork server is started after a server that forked no job, for example because an import
failed.
"""


@dataclass
class JobStarter:
    """Starts jobs with the given environment. Each job is a child of this process.

    A job is started without the fork server if the server is not ready, has ended, does not answer, or has different
    resource limits from this process. The clock `steady` is monotonic and returns seconds. A fork server waits
    `frequent` seconds for the next job. Several threads may start jobs at the same time.
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
        """Empty the log, then start `zsnapdb` with the given arguments and run id.

        Raises OSError if the job cannot be started.
        """
        return logged(self._started, StartRequest(tuple(words), own_environment(run_id, self.environment)), log)

    def apart(self, words: Sequence[str], environment: Mapping[str, str], streams: Streams) -> Process:
        """Start `zsnapdb` with the given arguments, with only the given environment, like `children.start_detached`."""
        return self._started(StartRequest(tuple(words), environment, is_apart=True), streams)

    def prepare(self) -> None:
        """Start a server for later jobs, if possible. The method returns before the server is ready."""
        with self._alone:
            self._began = self.steady()
            self._start_server()

    def tidy(self) -> None:
        """End the server if it has forked no job recently, and reap adopted processes.

        While another thread starts a job, this method returns immediately, because that thread does the same work.
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
        """End the server. Jobs continue."""
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
        """Start a server for the next job, if this job came soon after the previous one.

        The method returns before the server is ready.
        """
        at, before = self.steady(), self._began
        self._began = at
        if self.server is not None or before is None or at - before > self.frequent or at < self._not_before:
            return
        # If this fails, the next job is also started without a fork server, and tries again to start one.
        with contextlib.suppress(OSError):
            self.server, self._is_useful = ForkServer(self.environment), False

    def _give_up_server(self) -> None:
        self._end_server()
        if not self._is_useful:
            self._not_before = self.steady() + SPARED

    def _end_server(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

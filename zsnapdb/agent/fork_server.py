"""Starts jobs of the agent and of the helper of `zsnapdb serve`: by a fork server while they are frequent.

The server has imported what jobs need, which takes half a second of a processor for each job that is started from
nothing. `zsnapdb/cli/fork_server.py` is
the process itself.
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

from zsnapdb.agent.adoption import AdoptedProcess, Adoption, is_child
from zsnapdb.agent.children import ProcessChild, StartRequest, Streams, from_nothing, logged, own_environment
from zsnapdb.base.processes import Process

LARGEST = 1 << 20
"""The most bytes of a packet."""
READY = b"ready"
"""The server's first packet: it has imported everything. Each later one is the process id of a job, or NOT_STARTED."""
NOT_STARTED = b"none"
GO = b"go"
"""What is written into the pipe of a job that has become a child. A job whose pipe ends without it does nothing."""

PATIENCE = 10.0
"""How many seconds the server has to fork a job. Then it is ended, and the job is started from nothing."""
_MODULE = "zsnapdb.cli.fork_server"
_ROOM = " " * 256
"""The last word of the server's command line: room for the command lines of jobs."""


class ForkServer:
    """A running fork server, or one that has ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it. OSError if that is impossible."""
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
        """Whether it has ended."""
        return self._process.poll() is not None

    def is_ready(self) -> bool:
        """Whether it has imported everything."""
        if not self._is_ready:
            self._line.setblocking(False)
            with contextlib.suppress(OSError):
                self._is_ready = self._line.recv(len(READY)) == READY
        return self._is_ready

    def fork(self, request: StartRequest, streams: Streams, adoption: Adoption) -> AdoptedProcess | None:
        """Have it fork a job, and return the job, which is a child of this process.

        None, and no job runs or will run, if the server cannot do it: then it has ended, or must be.
        """
        with contextlib.ExitStack() as ending:
            reading, writing = os.pipe()
            ending.callback(os.close, reading)
            # A job whose pipe ends before it has read GO does nothing. So none runs that is not known here.
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
                # Here, so that the group is there before anything of the job runs.
                os.setpgid(job.pid, job.pid)
            os.write(writing, GO)
            return job

    def close(self) -> None:
        """End it. Jobs that it forked go on."""
        self._line.close()
        self._process.kill()
        # A process that hangs in the kernel ends later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)

    def gives_what_this_process_would(self) -> bool:
        """Whether its jobs inherit the limits, niceness, groups and folder of children of this process."""
        try:
            return _inherited(self.pid) == _inherited(os.getpid())
        except OSError:
            return False


def _inherited(pid: int) -> tuple[object, ...]:
    """Return what a child gets from the process. OSError if it has ended. Source: proc(5), credentials(7)."""
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
    """Return the text of a file that some kernels lack."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""


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

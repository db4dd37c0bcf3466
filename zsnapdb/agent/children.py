"""Jobs of the agent as child processes, which the agent starts itself or adopts from the fork server."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from zsnapdb.base import run_context as run_ids
from zsnapdb.base.program_start import Process, Running

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessWork:
    """Facts that change while a job works: the job's processes, their processor time, and the bytes they printed."""

    processes: frozenset[int]
    ticks: int
    printed: int


@dataclass(frozen=True)
class _Process:
    parent: int
    ticks: int
    began: int


def work_of(pid: int, printed: int) -> ProcessWork:
    """Return how much work a process and all its descendants have done. If the process has ended, the result is empty.

    Two equal results mean that the job did no work in between. A process that polls is not idle, because polling uses
    processor time. Source: proc_pid_stat(5).
    """
    known = _processes()
    tree, following = {pid}, {pid}
    while following:
        following = {number for number, process in known.items() if process and process.parent in following} - tree
        tree |= following
    running = {number: process for number in tree if (process := known.get(number)) is not None}
    return ProcessWork(frozenset(running), sum(process.ticks for process in running.values()), printed)


def children_of(pid: int) -> dict[int, int]:
    """Return the process ids of all children of the process, each with its start time in clock ticks since boot."""
    return {number: process.began for number, process in _processes().items() if process and process.parent == pid}


def _processes() -> dict[int, _Process | None]:
    return {int(entry): _process(int(entry)) for entry in os.listdir(_PROC) if entry.isascii() and entry.isdecimal()}


def _process(pid: int) -> _Process | None:
    try:
        # The name of the program is in parentheses, and may contain any character.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        # The pattern has three fields: the parent, the processor time of the process and its reaped descendants, and
        # the start time.
        return _Process(int(fields[1]), sum(int(field) for field in fields[11:15]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


_PR_SET_CHILD_SUBREAPER = 36
_LOST = 255
"""The exit code of a child that another part of this process has reaped."""


class AdoptedProcess:
    """A child process that another process forked. The class has the interface of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative if a signal ended the process; None while it runs."""
        if self._code is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._code = _LOST
            else:
                self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        # Until the child is reaped, its process id cannot belong to another process.
        if self.poll() is None:
            os.kill(self.pid, number)


def is_child(pid: int) -> bool:
    """Return whether the process is a child of this process, according to the kernel."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@dataclass
class Adoption:
    """Adopts orphaned descendants for short periods, and reaps adopted processes that are not jobs.

    An adopted process that is not a job can be, for example, a MySQL server whose job ended at that moment. An adopted
    process that is not reaped stays a zombie.
    """

    _unmeant: list[AdoptedProcess] = field(init=False, default_factory=list)

    @contextlib.contextmanager
    def orphans(self) -> Iterator[None]:
        """Adopt orphaned descendants while the block runs. Raises OSError if the kernel does not support this."""
        own = os.getpid()
        # This time is in seconds since the boot, like the times in /proc.
        began = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        before = set(children_of(own))
        _ask(True)
        try:
            yield
        finally:
            _ask(False)
            # A process that another thread starts meanwhile is also a child of this process, but it started after this
            # moment.
            new = ((pid, start) for pid, start in children_of(own).items() if pid not in before)
            self._unmeant.extend(AdoptedProcess(pid) for pid, start in new if start < began)

    def tidy(self) -> None:
        """Reap the adopted processes that are not jobs."""
        self._unmeant = [process for process in self._unmeant if process.poll() is None]


def _ask(wanted: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not pass orphaned processes to this process")


ZSNAPDB = (sys.executable, "-m", "zsnapdb")
_TAIL = 8192
"""The number of bytes at the end of a log that are stored with a run's result."""


Streams = tuple[int, int, int]
"""The descriptors of stdin, stdout and stderr of a process."""


@dataclass(frozen=True)
class StartRequest:
    """A request to start `zsnapdb` with the given arguments and environment.

    If `is_apart` is set, the command starts in the root folder (/), as the leader of a new process group. Four file
    descriptors are sent with the request: the job's three streams, and the pipe end from which the job reads GO.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    is_apart: bool = False

    def packet(self) -> bytes:
        return json.dumps(
            {"words": self.words, "environment": dict(self.environment), "is_apart": self.is_apart}
        ).encode()

    @classmethod
    def of_packet(cls, packet: bytes) -> StartRequest:
        """Return the request in a packet. Raises ValueError or KeyError if the packet is incomplete."""
        sent = json.loads(packet)
        return cls(tuple(sent["words"]), sent["environment"], sent["is_apart"])


class Child(Running, Protocol):
    """A running job."""

    def stop(self) -> None:
        """Ask the job to end. The job first releases its locks and removes incomplete objects."""

    def kill(self) -> None:
        """Kill the job immediately."""

    def tail(self) -> str:
        """Return the last lines that the job printed."""

    def work(self) -> object:
        """Return a value that changes while the job works.

        If two values are equal, the job did no work in between.
        """


class StartChild(Protocol):
    """Starts the run `run_id` of `zsnapdb` with the given arguments.

    The output goes to the file `log`, which is emptied first.
    """

    def __call__(self, words: Sequence[str], log: Path, run_id: str) -> Child: ...


class Starter(Protocol):
    """Starts jobs, and may hold resources for this purpose."""

    def start(self, words: Sequence[str], log: Path, run_id: str) -> Child:
        """Start the run `run_id` of `zsnapdb` with the given arguments, as `StartChild` does."""

    def tidy(self) -> None:
        """Release unneeded resources. The caller calls this method regularly, and each time a child ends."""

    def close(self) -> None:
        """Release all resources. Running jobs continue."""


class ProcessChild:
    """A child process and its log."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process, self._log = process, log

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
                return log.read(_TAIL).decode(errors="replace")
        except OSError as error:
            return f"the log cannot be read: {error.strerror}"

    def work(self) -> object:
        try:
            printed = self._log.stat().st_size
        except OSError:
            printed = 0
        return work_of(self._process.pid, printed)


def start(words: Sequence[str], log: Path, run_id: str, environment: Mapping[str, str] | None = None) -> ProcessChild:
    """Start `zsnapdb` with the given arguments as a child process. Raises OSError if the job cannot be started.

    The process has the agent's environment, including the variables with passwords that the configuration refers to.
    """
    return logged(from_nothing, StartRequest(tuple(words), own_environment(run_id, environment)), log)


def logged(start_process: Callable[[StartRequest, Streams], Process], request: StartRequest, log: Path) -> ProcessChild:
    """Empty the log, and start a job that has an empty stdin and writes its output to the log.

    Raises OSError if the job cannot be started.
    """
    with emptied(log) as out, open(os.devnull, "rb") as nothing:
        streams = nothing.fileno(), out.fileno(), out.fileno()
        return ProcessChild(start_process(request, streams), log)


def from_nothing(request: StartRequest, streams: Streams, program: Sequence[str] = ZSNAPDB) -> Process:
    """Start the program with the arguments of the request, without a fork server.

    Raises OSError if the job cannot be started.
    """
    given, out, errors = streams
    return subprocess.Popen(
        [*program, *request.words],
        stdin=given,
        stdout=out,
        stderr=errors,
        env=request.environment,
        cwd="/" if request.is_apart else None,
        process_group=0 if request.is_apart else None,
    )


def start_detached(
    words: Sequence[str], environment: Mapping[str, str], streams: Streams, program: Sequence[str] = ZSNAPDB
) -> Process:
    """Start `zsnapdb` with the given arguments in the root folder (/), as the leader of a new process group.

    The process gets only the given environment. Raises OSError if it cannot be started.
    """
    return from_nothing(StartRequest(tuple(words), environment, is_apart=True), streams, program)


def command_line(words: Sequence[str]) -> list[str]:
    """Return the command line of a job, as `ps` shows it."""
    return [*ZSNAPDB, *words]


def own_environment(run_id: str, environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of the run.

    It is a copy of `environment` (None means this process's environment), with the run id added.
    """
    return {**(os.environ if environment is None else environment), run_ids.VARIABLE: run_id}


def emptied(log: Path) -> BinaryIO:
    """Open the log of a job for writing, and empty it. Raises OSError if the log is a link or cannot be opened."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(log, flags, 0o600), "wb")

"""The adoption of a job that the fork server forked: the agent becomes its parent, and waits for it as for any child.

When the parent of a process ends, the nearest ancestor that asked for orphans becomes the parent, else process 1
(prctl(2), PR_SET_CHILD_SUBREAPER). The server forks a job through a process that ends at once, and the agent asks for
orphans during that time. So the kernel reports the end and exit code of the job, even if the server dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessWork:
    """Facts that change while a job works: its processes, their processor time, and the bytes that it printed."""

    processes: frozenset[int]
    ticks: int
    printed: int


@dataclass(frozen=True)
class _Process:
    parent: int
    ticks: int
    began: int


def work_of(pid: int, printed: int) -> ProcessWork:
    """Return the work of the process and all its descendants. A process that has ended did no work.

    Two equal results mean that the job did nothing between them: it read, sent and wrote no byte, and made no step. A
    process that polls does use the processor. Source: proc_pid_stat(5).
    """
    known = _processes()
    tree, following = {pid}, {pid}
    while following:
        following = {number for number, process in known.items() if process and process.parent in following} - tree
        tree |= following
    running = {number: process for number in tree if (process := known.get(number)) is not None}
    return ProcessWork(frozenset(running), sum(process.ticks for process in running.values()), printed)


def children_of(pid: int) -> dict[int, int]:
    """Return the children of the process, with their start in clock ticks since the boot."""
    return {number: process.began for number, process in _processes().items() if process and process.parent == pid}


def _processes() -> dict[int, _Process | None]:
    return {int(entry): _process(int(entry)) for entry in os.listdir(_PROC) if entry.isascii() and entry.isdecimal()}


def _process(pid: int) -> _Process | None:
    try:
        # The name of the program is in parentheses, and may contain any character.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        # The parent; the processor time of the process and of its reaped descendants; the start.
        return _Process(int(fields[1]), sum(int(field) for field in fields[11:15]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


_PR_SET_CHILD_SUBREAPER = 36
_LOST = 255
"""The exit code of a child that another part of this process has reaped."""


class AdoptedProcess:
    """A child that another process forked. Its interface is that of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative if a signal ended it. Return None while it runs."""
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
        # The id belongs to the child until it is reaped.
        if self.poll() is None:
            os.kill(self.pid, number)


def is_child(pid: int) -> bool:
    """Return whether the kernel knows the process as a child of this one."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@dataclass
class Adoption:
    """Adopts orphans of descendants for short times, and reaps those that are no job.

    Such an orphan is, for example, a MySQL server whose job ended at that moment. Unreaped, it would stay a zombie.
    """

    _unmeant: list[AdoptedProcess] = field(init=False, default_factory=list)

    @contextlib.contextmanager
    def orphans(self) -> Iterator[None]:
        """Adopt orphans during the block. Raises OSError if the kernel does not support this."""
        own = os.getpid()
        # Since the boot, as in /proc.
        began = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        before = set(children_of(own))
        _ask(True)
        try:
            yield
        finally:
            _ask(False)
            # A process that another thread started meanwhile is its own child, and started later than this moment.
            new = ((pid, start) for pid, start in children_of(own).items() if pid not in before)
            self._unmeant.extend(AdoptedProcess(pid) for pid, start in new if start < began)

    def tidy(self) -> None:
        """Reap the adopted processes that are no job."""
        self._unmeant = [process for process in self._unmeant if process.poll() is None]


def _ask(wanted: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not pass orphaned processes to this process")

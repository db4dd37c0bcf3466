"""How much a process and its descendants have worked, and which its children are, as the kernel says it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessWork:
    """What changes while a job does something: its processes, their processor time, and the bytes that it printed."""

    processes: frozenset[int]
    ticks: int
    printed: int


@dataclass(frozen=True)
class _Process:
    parent: int
    ticks: int
    began: int


def work_of(pid: int, printed: int) -> ProcessWork:
    """Return the work of the process and of all its descendants. A process that has ended has done none.

    Two equal results mean that nothing was done between them: no byte was read, sent or written, and no step was made.
    A process that waits and looks from time to time does use the processor. Source: proc_pid_stat(5).
    """
    known = _processes()
    tree, following = {pid}, {pid}
    while following:
        following = {number for number, process in known.items() if process and process.parent in following} - tree
        tree |= following
    running = {number: process for number in tree if (process := known.get(number)) is not None}
    return ProcessWork(frozenset(running), sum(process.ticks for process in running.values()), printed)


def children_of(pid: int) -> dict[int, int]:
    """Return the children of the process, and when each began: in ticks of the clock since the boot."""
    return {number: process.began for number, process in _processes().items() if process and process.parent == pid}


def _processes() -> dict[int, _Process | None]:
    return {int(entry): _process(int(entry)) for entry in os.listdir(_PROC) if entry.isascii() and entry.isdigit()}


def _process(pid: int) -> _Process | None:
    try:
        # The name of the program stands in parentheses, and may have any character.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        # The parent; the processor time of the process, and of its descendants that have ended and were waited for;
        # the begin.
        return _Process(int(fields[1]), sum(int(field) for field in fields[11:15]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None

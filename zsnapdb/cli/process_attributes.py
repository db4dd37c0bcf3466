"""Attributes of a command's process: its title, its end when its parent ends, and its memory."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

_NEW_OBJECTS = 10_000
"""The number of new objects after which the collector examines the young generation. Python's default is 700 (gc,
set_threshold).
"""


def collect_rarely() -> None:
    """Make the garbage collector run rarely, and not at the end of the process.

    During its imports, a command creates several hundred thousand objects, which it never frees. Repeated examinations
    of these objects took a third of a short command's processor time.
    """
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    atexit.register(gc.freeze)


def set_process_title(words: Sequence[str]) -> None:
    """Set /proc/self/cmdline, which `ps` shows, to the given arguments, shortened if necessary.

    The available space is the length of the original command line. If the kernel does not report the address of the
    command line, the command line is not changed. Source: proc_pid_stat(5), arg_start and arg_end.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        text = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
        room = end - begin
        if begin and room > 0:
            ctypes.memmove(begin, text[: room - 1].ljust(room, b"\0"), room)


_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of mallopt(3), from malloc.h of glibc."""
_HEAPS = 2
_LARGE = 128 << 10
"""Minimum size in bytes of objects that get their own pages, which are released when the object is freed (glibc's
initial value).
"""


def give_back_memory() -> None:
    """Limit all later threads to two heaps, and let large objects always have their own pages.

    The GNU C library uses up to eight heaps per processor. Each heap keeps the largest size that its threads ever used,
    and glibc raises the threshold for large objects over time (mallopt(3)). So the memory of a service whose threads
    read documents of several MiB would grow for hours. With other C libraries, this function does nothing.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, _HEAPS)
        mallopt(_MMAP_THRESHOLD, _LARGE)


VARIABLE = "ZSNAPDB_ENDS_WITH"
"""Environment variable with the process id of the parent. This process must end when that parent ends."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(environment: MutableMapping[str, str]) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends, even by kill -9.

    After SIGTERM, the command undoes its changes.

    The environment variable that requests this is removed, so that child processes are not affected. The kernel watches
    the thread of the parent that started this process (prctl(2), PR_SET_PDEATHSIG). Only Linux has this function.
    """
    parent = environment.pop(VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0) != 0:
        return
    if str(os.getppid()) != parent:
        # The parent ended before prctl was called.
        os.kill(os.getpid(), signal.SIGTERM)

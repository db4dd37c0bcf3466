"""The process of a command: how it shows itself, ends with its parent, and how little memory it keeps."""

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
"""After so many new objects it looks through the young ones; Python's own number is 700 (gc, set_threshold)."""


def collect_rarely() -> None:
    """Afterwards this process looks for such objects rarely, and not at its end.

    A command makes some hundred thousand objects while it imports its modules, and keeps them. To look through them
    again and again, and once more at the end, took a third of the processor time of a command with little to do.
    """
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    atexit.register(gc.freeze)


def show_as(words: Sequence[str]) -> None:
    """Have /proc/self/cmdline, and so `ps`, show these words, as far as there is room.

    There is as much room as the command line had with which the process was started. Where the kernel does not say
    where it lies, it stays as it is. Source: proc_pid_stat(5), arg_start and arg_end.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        text = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
        room = end - begin
        if begin and room > 0:
            ctypes.memmove(begin, text[: room - 1].ljust(room, b"\0"), room)


_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of mallopt(3), as malloc.h of glibc has them."""
_HEAPS = 2
_LARGE = 128 << 10
"""From this size on, in bytes, an object has pages of its own, which go back when it is freed: glibc's first value."""


def give_back_memory() -> None:
    """Let the threads that begin from now on share two heaps, and large objects have pages of their own for good.

    The GNU C library has up to eight heaps a processor, each as large as the most that its threads ever held, and
    counts ever larger objects as small ones (mallopt(3)). A service whose threads read documents of some MiB grows for
    hours by that, without holding more. Another C library stays as it is.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, _HEAPS)
        mallopt(_MMAP_THRESHOLD, _LARGE)


VARIABLE = "ZSNAPDB_ENDS_WITH"
"""The environment variable with the id of the process that asks for it: that of the parent."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(environment: MutableMapping[str, str]) -> None:
    """Have SIGTERM sent to this process when its parent has gone, also by kill -9; what it began is undone then.

    The variable is taken out of the environment: programs that this one starts end as they did. The kernel looks at the
    thread of the parent that started this process (prctl(2), PR_SET_PDEATHSIG). Only Linux knows it.
    """
    parent = environment.pop(VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0) != 0:
        return
    if str(os.getppid()) != parent:
        # It went before the kernel was asked.
        os.kill(os.getpid(), signal.SIGTERM)

"""The command line of a process as `ps` shows it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path


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

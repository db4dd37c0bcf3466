"""Interruption of zsnapdb at its Nth event. Python imports this file if its folder is in PYTHONPATH.

An event is a started program (except `zfs` and `zpool` commands that only read), a file system change, a signal, an
fsync, an SQL statement that is not a query, or a request that changes the store. The interruption comes before the
event. Nothing changes between two events, so it also comes after the previous event. With a delay it comes that many
seconds later, at any point.

INTERRUPT_AT is `PHASE NUMBER HOW DELAY`. Events are counted from the first one whose text starts with the prefix in
PHASES. HOW is `kill`, `int`, `term`, or `power` (it reports the event and waits until the caller cuts the power).
INTERRUPT_INTO is a folder: the file `events` gets all events, `reached` the event of the interruption.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

READS = ("list", "get", "holds", "diff", "version", "status", "userspace", "--version", "-V")
CHANGES = tuple(
    f"os.{name}"
    for name in ("rename", "remove", "rmdir", "mkdir", "link", "symlink", "truncate", "chmod", "chown", "kill", "utime")
)
PHASES = {
    "start": "",
    "stop": "server stop",
    "exchange": "zfs unmount",
    "rename": "zfs rename",
    "destroy": "zfs destroy",
    "apply": "SQL START TRANSACTION",
}
QUESTIONS = (b"SELECT", b"SHOW", b"SET ", b"DESC", b"EXPL", b"/*", b"USE ")
SIGNALS = {"kill": signal.SIGKILL, "int": signal.SIGINT, "term": signal.SIGTERM}
_COM_QUERY = 3


class Interruption:
    """Counts the events of this process and interrupts it at one of them."""

    def __init__(self, phase: str, number: int, how: str, delay: float, folder: str) -> None:
        self._number = number
        self._how = how
        self._delay = delay
        self._folder = folder
        self._first = PHASES[phase]
        self._begun = False
        self._count = 0
        self._busy = threading.local()
        self._log = os.open(f"{folder}/events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def hook(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event (Python's table of audit events has the names)."""
        if name == "subprocess.Popen":
            self._program(arguments)
        elif name == "open":
            self._opened(arguments)
        elif name in CHANGES and not str(arguments[0]).startswith("/tmp/"):
            self.event(f"{name} {' '.join(str(word) for word in arguments[:2])}")

    def _program(self, arguments: tuple[Any, ...]) -> None:
        words = [os.fsdecode(word) for word in arguments[1]]
        program = os.path.basename(words[0])
        if program in ("zfs", "zpool") and len(words) > 1 and words[1] in READS:
            return
        self.event(" ".join([program, *words[1:]])[:200])

    def _opened(self, arguments: tuple[Any, ...]) -> None:
        path, _, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if isinstance(path, int) or not writes or os.fsdecode(path).startswith(("/dev/", "/proc/", "/tmp/")):
            return
        self.event(f"open {os.fsdecode(path)}")

    def event(self, text: str) -> None:
        """Count an event, and interrupt this process if the number is reached."""
        if getattr(self._busy, "is_set", False):
            return
        self._begun = self._begun or text.startswith(self._first)
        if not self._begun:
            return
        self._count += 1
        os.write(self._log, f"{self._count} {text}\n".encode())
        if self._count != self._number:
            return
        self._busy.is_set = True
        if self._delay:
            threading.Thread(target=self._later, args=(text,), daemon=True).start()
        else:
            self._interrupt(text)
        self._busy.is_set = False

    def _later(self, text: str) -> None:
        self._busy.is_set = True
        time.sleep(self._delay)
        self._interrupt(f"{self._delay:.2f} s behind {text}")

    def _interrupt(self, text: str) -> None:
        with open(f"{self._folder}/reached.new", "w") as file:
            file.write(text)
        os.rename(f"{self._folder}/reached.new", f"{self._folder}/reached")
        if self._how == "power":
            time.sleep(600)
        elif self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            # As with a terminal or a service manager, child processes get the signal too.
            os.killpg(0, SIGNALS[self._how])


def _watch_what_is_not_audited(interruption: Interruption) -> None:
    import socket

    sync, send_signal, send = os.fsync, signal.pidfd_send_signal, socket.socket.sendall

    def fsync(descriptor: Any) -> None:
        interruption.event("fsync")
        sync(descriptor)

    def pidfd_send_signal(*arguments: Any) -> None:
        if arguments[1]:
            interruption.event(f"signal {arguments[1]}")
        send_signal(*arguments)

    def sendall(self: socket.socket, data: Any, flags: int = 0) -> None:
        head = bytes(data[:40])
        if head.startswith((b"PUT ", b"POST ", b"DELETE ")):
            interruption.event(head.decode(errors="replace"))
        elif len(head) > 8 and head[4] == _COM_QUERY and not head[5:].lstrip().upper().startswith(QUESTIONS):
            interruption.event(f"SQL {head[5:].decode(errors='replace')}")
        send(self, data, flags)

    os.fsync = fsync  # type: ignore[assignment]
    signal.pidfd_send_signal = pidfd_send_signal
    socket.socket.sendall = sendall  # type: ignore[method-assign, assignment]


if "INTERRUPT_AT" in os.environ and "zsnapdb" in sys.orig_argv:
    # Child processes are not interrupted.
    _words = os.environ.pop("INTERRUPT_AT").split()
    _one = Interruption(_words[0], int(_words[1]), _words[2], float(_words[3]), os.environ.pop("INTERRUPT_INTO"))
    _watch_what_is_not_audited(_one)
    sys.addaudithook(_one.hook)

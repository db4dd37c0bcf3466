"""An interactive shell in a guest, on this terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty

from .guest import Guest
from .host import LabError


def attach(guest: Guest) -> int:
    """Run a login shell in the guest on this terminal until it ends; return its exit status.

    The terminal settings are restored.
    """
    if not sys.stdin.isatty():
        raise LabError("shell needs a terminal; use exec for a script")
    size = os.get_terminal_size()

    def show(descriptor: int, data: bytes) -> None:
        os.write(1, data)

    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        env = {"TERM": os.environ.get("TERM", "linux"), "PS1": r"lab:\w\$ "}
        command = guest.spawn(["bash", "-i"], env=env, sink=show, terminal=(size.lines, size.columns))
        while not command.done.is_set():
            if select.select([0], [], [], 0.1)[0]:
                command.write(os.read(0, 1024))
        return command.wait().code
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)

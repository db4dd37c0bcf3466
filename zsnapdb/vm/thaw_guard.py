"""The thaw guard, a process that thaws a guest if the process that froze the guest dies or takes too long.

The guard is connected to libvirt before anything is frozen. The guard reads lines from its parent: `freezing` before
the freeze, `thawed` after the thaw. End of file means that the parent has ended, because the kernel closes the pipe
even after kill -9. The guard has its own session and ignores signals from a terminal.

A domain has one guard at a time. The guard inherits its run's lock on the domain, and keeps it until the guard ends.
Otherwise the guard of a killed run, which still watches for a late freeze, could thaw file systems frozen by the next
run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO

from zsnapdb.base.errors import CommandError, ZsnapdbError
from zsnapdb.base.program_start import for_site
from zsnapdb.vm.guest_agent import Agent, is_frozen, thaw
from zsnapdb.vm.hypervisor import connected

_PATIENCE = 600.0
"""Seconds for which a guard tries to thaw a guest."""
_WATCHED_SECONDS = 5.0
"""Seconds for which a guard watches for a late freeze, which a dying parent may have requested just before its end.
"""
_START_SECONDS = 30.0
_FREEZING, _THAWED = b"freezing\n", b"thawed\n"


class ThawGuard:
    """The parent's connection to a running guard."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def freezing(self) -> None:
        """Report that the freeze begins.

        Raises CommandError if the guard has ended. After this error, the caller must not freeze the guest.
        """
        try:
            self._say(_FREEZING)
        except OSError as error:
            raise CommandError("the process that guards the thaw has ended", hint="see `dmesg`; try again") from error

    def thawed(self) -> None:
        """Report that the guest is thawed. From then on, the guard does nothing."""
        with contextlib.suppress(OSError):
            self._say(_THAWED)

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()


@contextlib.contextmanager
def guarding(uri: str, uuid: str, deadline: float, turn: int) -> Iterator[ThawGuard]:
    """Yield a guard that is connected to libvirt. The guard thaws the guest `deadline` seconds after `freezing`.

    `turn` is the descriptor of the lock that only one run and its guard hold. The guard keeps the lock until it ends.
    If the caller does not report that the guest is thawed, the guard continues alone after the block. Raises
    CommandError if the guard cannot start.
    """
    argv = [sys.executable, "-P", "-m", "zsnapdb.vm.thaw_guard", uri, uuid, repr(deadline)]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=for_site(),
        pass_fds=[turn],
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        if not ready or process.stdout.readline() != b"ready\n":
            process.kill()
            raise CommandError(
                f"the process that guards the thaw of the domain {uuid} did not start",
                hint="see the log of libvirt; set freeze_deadline = 0 to back up without a freeze",
            )
        yield ThawGuard(process)
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        # A guard that is still trying continues alone. The thread only reads its exit status.
        threading.Thread(target=process.wait, name="thaw guard", daemon=True).start()


def guard(hypervisor: Agent, uuid: str, deadline: float, lines: IO[bytes]) -> bool:
    """Read the parent's lines, and thaw the guest unless the parent reports in time that the guest is thawed.

    Return whether the guard had to thaw the guest. Raises CommandTimeout if the guest could not be thawed.
    """
    if lines.readline() != _FREEZING:
        return False
    ready, _, _ = select.select([lines], [], [], deadline)
    if ready and lines.readline() == _THAWED:
        return False
    thaw(hypervisor, uuid, _PATIENCE)
    # If the parent is alive, it checks the thaw itself.
    until = time.monotonic() + (_WATCHED_SECONDS if ready else 0.0)
    while time.monotonic() < until:
        time.sleep(0.5)
        with contextlib.suppress(CommandError):
            if is_frozen(hypervisor, uuid):
                thaw(hypervisor, uuid, _PATIENCE)
    return True


def main(uri: str, uuid: str, deadline: float) -> int:
    """Guard one freeze. Return 0 if the guest is thawed."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        with connected(uri) as hypervisor:
            os.write(1, b"ready\n")
            guard(hypervisor, uuid, deadline, os.fdopen(0, "rb", buffering=0))
    except ZsnapdbError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))

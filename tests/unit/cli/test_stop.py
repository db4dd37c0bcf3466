"""A signal ends the waiting of a command, whenever it arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.unit.support.command_line import CHECKOUT, ENVIRONMENT
from zsnapdb.cli.main_process import SignalledStop

STORM = """
import signal
from zsnapdb.cli.main_process import stop_on_signals
stop = stop_on_signals([signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.00005)
for _ in range(20_000):
    stop.wait(0)
signal.setitimer(signal.ITIMER_REAL, 0)
print(stop.is_set())
"""


def test_signals_at_every_moment_of_waiting_do_not_hang_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORM], cwd=CHECKOUT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_waiting_ends_at_once_when_the_stop_is_requested() -> None:
    stop = SignalledStop()
    assert not stop.wait(0.01)
    previous = signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        began = time.monotonic()
        assert stop.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert stop.is_set()
    assert time.monotonic() - began < 30


def test_waiting_ends_early_once_when_the_command_is_woken_and_no_stop_is_requested() -> None:
    stop = SignalledStop()
    stop.wake()
    began = time.monotonic()
    assert not stop.wait(60)
    assert time.monotonic() - began < 30
    assert not stop.wait(0.2)
    assert time.monotonic() - began >= 0.2
    stop.set()
    assert stop.wait(60)
    assert stop.wait(60)

"""A signal in the middle of an exchange is obeyed after it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from zsnapdb.jobs.base.events import uninterrupted


def signalled(number: signal.Signals, tell: Callable[[str], None], then: Callable[[], None]) -> None:
    """Get the signal twice inside of a block, and do something after that."""
    with uninterrupted(tell):
        signal.raise_signal(number)
        signal.raise_signal(number)
        then()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_behind_the_block_and_is_told_once(number: signal.Signals) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    told: list[str] = []
    done: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            signalled(number, told.append, lambda: done.append("the block"))
        assert (done, len(told)) == (["the block"], 1)
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)


def test_an_error_of_the_block_is_the_error_of_the_command() -> None:
    def fail() -> None:
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        signalled(signal.SIGINT, lambda _: None, fail)


def test_a_program_that_the_block_starts_ignores_no_signal() -> None:
    """A server that were started with ignored signals could not be stopped (signal(7): they are inherited)."""
    script = "import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in (1, 2, 15)])"
    with uninterrupted(lambda _: None):
        output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output.strip() == "[False, False, False]"

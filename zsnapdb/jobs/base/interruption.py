"""What an interruption finds: work that is undone if it fails, and seconds that no signal cuts."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails.

    The error of the block is raised. If `undo` fails too, a note on that error says so.
    """
    try:
        yield
    except BaseException as error:
        try:
            undo()
        except Exception as second:
            error.add_note(f"the cleanup failed too: {second}")
        raise


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted(tell: Callable[[str], None]) -> Iterator[None]:
    """Run the block to its end. Ctrl-C, SIGTERM and the end of the session interrupt what comes after it.

    `tell` gets one line when a signal comes. The handlers are functions, not ignored signals: a program that the block
    starts would inherit an ignored signal (signal(7)). Programs that must not see Ctrl-C need a process group of their
    own. Outside of the main thread, which alone gets signals, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            # The terminal may be gone, which is why the signal came.
            with contextlib.suppress(OSError):
                tell("a signal was received: this command ends as soon as nothing is half done")

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # A signal that was ignored from the beginning (nohup) stays so; None is a handler that Python did not set.
    kept = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in kept:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    # An error of the block ends the command by itself, with its reason.
    if came:
        signal.raise_signal(came[0])

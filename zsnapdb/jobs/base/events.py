"""The events of a running job, and the handling of interruptions."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

from zsnapdb.base import run_context
from zsnapdb.base.domain_types import Progress
from zsnapdb.base.errors import ZsnapdbError


class Events(Protocol):
    """A receiver of the events of a running job. Several threads may call its methods. The methods raise no errors."""

    def tell(self, text: str) -> None:
        """Receive one line about the current action, or about the reason for a delay."""

    def warn(self, text: str) -> None:
        """Receive one warning line for a person. The job continues."""

    def progress(self, progress: Progress) -> None:
        """Receive the progress of a step. This is called often."""


class Silent:
    """A receiver that ignores all events."""

    def tell(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


SILENT: Events = Silent()


class KeptWarnings:
    """A receiver that forwards all events, and also keeps the warnings for the job's result."""

    def __init__(self, inner: Events) -> None:
        self._inner = inner
        self.warnings: list[str] = []

    def tell(self, text: str) -> None:
        self._inner.tell(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self._inner.warn(text)

    def progress(self, progress: Progress) -> None:
        self._inner.progress(progress)


def told(error: ZsnapdbError) -> str:
    """Return the error's message for the reader of warnings, who may not see names of other owners' objects."""
    return run_context.current_audience().told(error).message


@contextlib.contextmanager
def undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Run the block. If the block fails, call `undo`, and then raise the error of the block.

    If `undo` fails too, the error of the block gets a note about this second failure.
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
    """Run the block to its end. Ctrl-C, SIGTERM or the end of the login session stops the command only after the block.

    When a signal arrives, `tell` gets one line. The signals are handled and not ignored, because a program that is
    started in the block would inherit an ignored signal (signal(7)). Programs that must not get Ctrl-C need their own
    process group. Outside the main thread this function does nothing, because only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            # `tell` may fail because the terminal is closed, which may also have caused the signal.
            with contextlib.suppress(OSError):
                tell("a signal was received: this command ends as soon as nothing is half done")

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # If the signal was ignored when the process started (nohup), it stays ignored. The value None means a handler that
    # Python did not set.
    kept = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in kept:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    # This line is not reached after an error of the block, because that error ends the command.
    if came:
        signal.raise_signal(came[0])

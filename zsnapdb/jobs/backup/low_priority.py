"""The server comes first: what is not done under a lock is done at a lower priority."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_STEPS = 10
"""How much nicer: with it a busy thread has about a tenth of a processor while anything else wants one (sched(7))."""
_THIS_THREAD = 0


class Courtesy:
    """A step back that is under way: the priorities of before and of meanwhile."""

    def __init__(self, before: int, meanwhile: int) -> None:
        self._before = before
        self._meanwhile = meanwhile

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """Run the block at the priority of before: for who holds something others wait for."""
        _set(self._before)
        try:
            yield
        finally:
            _set(self._meanwhile)


@contextlib.contextmanager
def stepped_back(*, to_the_end: bool = False) -> Iterator[Courtesy]:
    """Run the block at a lower priority: this thread, the threads and the processes it starts (setpriority(2), "C library/kernel differences").

    Where the kernel schedules by session or control group it counts only within ours (sched(7)); the rest is theirs to
    set. A lock inside is to be taken in `interrupted`, as who holds one must be quick. An account that may not raise
    its priority again does not step back, unless nothing it does afterwards needs hurry (`to_the_end`).
    """
    before = os.getpriority(os.PRIO_PROCESS, _THIS_THREAD)
    returns = _may_return(before)
    if not (returns or to_the_end):
        yield Courtesy(before, before)
        return
    meanwhile = min(19, before + _STEPS)
    _set(meanwhile)
    try:
        yield Courtesy(before if returns else meanwhile, meanwhile)
    finally:
        if returns:
            _set(before)


def _set(priority: int) -> None:
    os.setpriority(os.PRIO_PROCESS, _THIS_THREAD, priority)


def _may_return(before: int) -> bool:
    """Whether this account may raise a priority that it lowered (capabilities(7), CAP_SYS_NICE.

    Or RLIMIT_NICE): tried on a thread that is not needed.
    """
    allowed: list[bool] = []

    def attempt() -> None:
        try:
            _set(min(19, before + 1))
            _set(before)
            allowed.append(True)
        except PermissionError:
            pass

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(allowed)

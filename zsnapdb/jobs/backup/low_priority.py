"""Runs work at a low CPU priority while no lock is held, so that the database server gets the processors first."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_STEPS = 10
"""The increase of the nice value.

With this increase, a busy thread gets about a tenth of a processor that other threads also want (sched(7)).
"""
_THIS_THREAD = 0


class LowPriority:
    """The low, previous and high priority of a thread. If all are equal, the thread's priority is never changed."""

    def __init__(self, before: int, low: int, high: int) -> None:
        self._before = before
        self._low = low
        self._high = high

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Run the block at the high priority if this account may set that priority, else at the previous priority.

        Use this block while the thread holds a lock for which other processes wait. Otherwise these processes also wait
        whenever this thread waits for a processor.
        """
        _set(self._before)
        with contextlib.suppress(PermissionError):
            _set(self._high)
        try:
            yield
        finally:
            _set(self._low)


@contextlib.contextmanager
def at_low_priority(*, may_stay_low: bool = False) -> Iterator[LowPriority]:
    """Run the block in this thread at low priority, with all threads and processes that it starts.

    See setpriority(2), "C library/kernel differences". If the kernel schedules by session or control group, the
    priority applies only within the group of this process (sched(7)). Take a lock only inside `hurried`, because other
    processes may wait for the holder of the lock. If the account cannot raise the priority again later, the priority is
    lowered only with `may_stay_low`, and then stays low.
    """
    before = os.getpriority(os.PRIO_PROCESS, _THIS_THREAD)
    can_restore = _may_restore(before)
    if not (can_restore or may_stay_low):
        yield LowPriority(before, before, before)
        return
    low = min(19, before + _STEPS)
    _set(low)
    try:
        yield LowPriority(before, low, max(-20, before - _STEPS)) if can_restore else LowPriority(low, low, low)
    finally:
        if can_restore:
            _set(before)


def lower_permanently() -> None:
    """Lower the priority of this thread, and of all threads and processes that it starts, until the thread ends.

    Call this only when no process needs to wait for this thread any more.
    """
    _set(min(19, os.getpriority(os.PRIO_PROCESS, _THIS_THREAD) + _STEPS))


def _set(priority: int) -> None:
    os.setpriority(os.PRIO_PROCESS, _THIS_THREAD, priority)


def _may_restore(before: int) -> bool:
    """Return whether this account may raise a lowered priority: by CAP_SYS_NICE (capabilities(7)) or RLIMIT_NICE.

    The test changes only the priority of a short-lived thread.
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

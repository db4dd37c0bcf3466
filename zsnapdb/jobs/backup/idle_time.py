"""Short work that nobody waits for is done in the idle class where the server has few processors.

A low priority (`low_priority.py`) leaves such work a tenth of a contended processor, and lets a commit wait until its
time slice ends. The idle class gives way at once (sched(7), "SCHED_IDLE").
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from zsnapdb.jobs.backup.low_priority import LOWEST, may_restore
from zsnapdb.planning.backup.scheduling import SchedulingChoice, SchedulingClass, SchedulingFacts, choose_class

_MOST_SECONDS = 3.0
"""Beside a busy server the idle class gets a few thousandths of a processor. The work goes on at a low priority then.

That is a tenth of what others of this host and of this process wait for it, such as the renewal of a lease.
"""
_CLASSES = {os.SCHED_OTHER: SchedulingClass.NORMAL, os.SCHED_IDLE: SchedulingClass.IDLE}


def choice() -> SchedulingChoice:
    """Return the class for short work of this thread, and why. Ask before the thread lowers its priority.

    Who may raise a priority may leave the idle class, which counts as the lowest one (sched(7), "RLIMIT_NICE").
    """
    present = _CLASSES.get(os.sched_getscheduler(0))
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    may_return = priority < LOWEST and may_restore(priority)
    return choose_class(SchedulingFacts(len(os.sched_getaffinity(0)), present, may_return))


@contextlib.contextmanager
def in_idle_time(chosen: SchedulingChoice, most_seconds: float = _MOST_SECONDS) -> Iterator[None]:
    """Run the block in the chosen class: this thread, and the threads and processes that it starts meanwhile.

    The thread leaves the idle class at the end of the block, and after `most_seconds` in any case. Hold nothing in the
    block that others wait for.
    """
    if chosen.chosen is not SchedulingClass.IDLE:
        yield
        return
    thread = threading.get_native_id()
    # Started before, so that it is not of the idle class itself.
    timer = threading.Timer(most_seconds, _leave, (thread,))
    timer.daemon = True
    timer.start()
    try:
        # A sandbox may refuse the call. Then the work is done at a low priority.
        with contextlib.suppress(PermissionError):
            _set(thread, os.SCHED_IDLE)
        yield
    finally:
        _leave(thread)
        timer.cancel()
        # It must not touch a thread that has ended, whose number another one may have.
        timer.join()


def _leave(thread: int) -> None:
    """Put the thread back, if it is in the idle class."""
    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
        _set(thread, os.SCHED_OTHER)


def _set(thread: int, policy: int) -> None:
    os.sched_setscheduler(thread, policy, os.sched_param(0))

"""The server comes first: what is not done under a lock is done at a lower priority."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_STEPS = 10
"""How much nicer: with it a busy thread has about a tenth of a processor while anything else wants one (sched(7))."""
_THIS_THREAD = 0


@contextlib.contextmanager
def stepped_back() -> Iterator[None]:
    """Run the block at a lower priority: this thread, the threads and the processes it starts (setpriority(2), "C library/kernel differences").

    Where the kernel schedules by session or control group it counts only within ours (sched(7)); the rest is theirs to set.
    Never to be used around a lock: who holds one must be quick. An account that may not raise its priority again stays back.
    """
    before = os.getpriority(os.PRIO_PROCESS, _THIS_THREAD)
    os.setpriority(os.PRIO_PROCESS, _THIS_THREAD, min(19, before + _STEPS))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, _THIS_THREAD, before)

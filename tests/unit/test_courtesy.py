"""The server comes first: what needs no hurry runs at a lower priority, and only that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from zsnapdb.jobs.courtesy import stepped_back


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_the_block_and_what_it_starts_stand_back_and_afterwards_nothing_does() -> None:
    before = priority()
    seen: list[int] = []
    with stepped_back():
        seen.append(priority())
        thread = threading.Thread(target=lambda: seen.append(priority()))
        thread.start()
        thread.join()
        child = subprocess.run([sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"], capture_output=True, text=True, check=True)
        seen.append(int(child.stdout))
    assert seen == [min(19, before + 10)] * 3
    assert priority() == before


def test_other_threads_keep_their_priority() -> None:
    before = priority()
    go, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        go.wait(10)
        seen.append(priority())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with stepped_back():
        go.set()
        assert done.wait(10)
    thread.join()
    assert seen == [before]

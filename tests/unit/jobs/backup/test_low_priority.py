"""The server comes first: what needs no hurry runs at a lower priority, and only that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from zsnapdb.jobs.backup.low_priority import stepped_back


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
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"],
            capture_output=True,
            text=True,
            check=True,
        )
        seen.append(int(child.stdout))
    assert seen == [min(19, before + 10)] * 3
    assert priority() == before


def test_other_threads_keep_their_priority() -> None:
    before = priority()
    go, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        go.wait(120)
        seen.append(priority())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with stepped_back():
        go.set()
        assert done.wait(120)
    thread.join()
    assert seen == [before]


def test_who_holds_a_lock_in_between_is_as_quick_as_before() -> None:
    before = priority()
    with stepped_back() as courtesy:
        with courtesy.interrupted():
            held = priority()
        after = priority()
    assert (held, after, priority()) == (before, min(19, before + 10), before)


@pytest.mark.parametrize("to_the_end", [False, True])
def test_an_account_that_cannot_come_back_steps_back_only_if_no_lock_follows(to_the_end: bool) -> None:
    """As one that has dropped its rights, in a process of its own."""
    script = f"""
import os, resource
from zsnapdb.jobs.backup.low_priority import stepped_back
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
seen = []
def look(): seen.append(os.getpriority(os.PRIO_PROCESS, 0))
with stepped_back(to_the_end={to_the_end}) as courtesy:
    look()
    with courtesy.interrupted():
        look()
look()
print(*seen)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = min(19, priority() + 10) if to_the_end else priority()
    assert done.stdout.split() == [str(expected)] * 3

"""Work without a lock runs at low priority, and only that work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from zsnapdb.jobs.backup.low_priority import at_low_priority, lower_permanently


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


raising = pytest.mark.skipif(os.geteuid() != 0, reason="only root raises a priority that it lowered")


@raising
def test_the_block_and_what_it_starts_run_at_low_priority_and_afterwards_nothing_does() -> None:
    before = priority()
    seen: list[int] = []
    with at_low_priority():
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
    with at_low_priority():
        go.set()
        assert done.wait(120)
    thread.join()
    assert seen == [before]


@raising
@pytest.mark.parametrize("lowest", [False, True])
def test_a_lock_inside_the_block_is_held_at_a_high_priority(lowest: bool) -> None:
    """Also by a run of cron with `nice -n 19`, which can go no lower."""
    seen: list[int] = []

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 19 if lowest else 3)
        with at_low_priority() as low_priority:
            with low_priority.hurried():
                seen.append(priority())
            seen.append(priority())
        seen.append(priority())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ([9, 19, 19] if lowest else [-7, 13, 3])


@pytest.mark.parametrize("may_stay_low", [False, True])
def test_an_account_that_cannot_raise_its_priority_lowers_it_only_if_no_lock_follows(may_stay_low: bool) -> None:
    """Run as an account without rights, in a process of its own."""
    script = f"""
import os, resource
from zsnapdb.jobs.backup.low_priority import at_low_priority, lower_permanently
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
seen = []
def look(): seen.append(os.getpriority(os.PRIO_PROCESS, 0))
with at_low_priority(may_stay_low={may_stay_low}) as low_priority:
    look()
    with low_priority.hurried():
        look()
look()
print(*seen)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = min(19, priority() + 10) if may_stay_low else priority()
    assert done.stdout.split() == [str(expected)] * 3


def test_what_follows_runs_at_low_priority_and_other_threads_as_before() -> None:
    before = priority()
    seen: list[int] = []

    def lower() -> None:
        lower_permanently()
        seen.append(priority())

    thread = threading.Thread(target=lower)
    thread.start()
    thread.join()
    assert (seen, priority()) == ([min(19, before + 10)], before)

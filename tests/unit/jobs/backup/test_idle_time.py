"""A block runs in the idle class for a short while, and its thread always comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from zsnapdb.jobs.backup import idle_time
from zsnapdb.jobs.backup.idle_time import in_idle_time
from zsnapdb.planning.backup.scheduling import SchedulingChoice, SchedulingClass

IDLE = SchedulingChoice(SchedulingClass.IDLE, "few processors")
NORMAL = SchedulingChoice(SchedulingClass.NORMAL, "many processors")
SHOW = "import os; print(os.sched_getscheduler(0))"


def policy() -> int:
    return os.sched_getscheduler(0)


def may_leave() -> bool:
    """Whether this account may leave the idle class; a child tries it."""
    words = "import os; o = os.sched_param(0); os.sched_setscheduler(0, os.SCHED_IDLE, o)"
    tried = f"{words}; os.sched_setscheduler(0, os.SCHED_OTHER, o)"
    return subprocess.run([sys.executable, "-c", tried], stderr=subprocess.DEVNULL, check=False).returncode == 0


returns = pytest.mark.skipif(not may_leave(), reason="this account may not leave the idle class (RLIMIT_NICE)")


@returns
def test_the_block_and_what_it_starts_are_idle_and_the_thread_comes_back_also_after_an_error() -> None:
    seen: list[int] = []

    def fail() -> None:
        with in_idle_time(IDLE):
            seen.append(policy())
            child = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
            seen.append(int(child.stdout))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (seen, policy()) == ([os.SCHED_IDLE, os.SCHED_IDLE], os.SCHED_OTHER)


@returns
def test_other_threads_stay_as_they_are() -> None:
    go, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        go.wait(120)
        seen.append(policy())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with in_idle_time(IDLE):
        go.set()
        assert done.wait(120)
    thread.join()
    assert seen == [os.SCHED_OTHER]


@returns
def test_work_that_takes_long_goes_on_in_the_normal_class() -> None:
    with in_idle_time(IDLE, most_seconds=0.05):
        deadline = time.monotonic() + 120
        while policy() == os.SCHED_IDLE:
            assert time.monotonic() < deadline
    assert policy() == os.SCHED_OTHER


def test_where_the_call_is_refused_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, policy: int, parameter: os.sched_param) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    done = []
    with in_idle_time(IDLE, most_seconds=0.01):
        done.append(policy())
        time.sleep(0.1)
    assert done == [os.SCHED_OTHER]


def test_where_there_are_many_processors_nothing_changes() -> None:
    before = policy()
    with in_idle_time(NORMAL):
        assert policy() == before


def test_an_account_that_could_not_come_back_does_not_go() -> None:
    """Run as an account without rights, on one processor, in a process of its own."""
    script = """
import os, resource
from zsnapdb.jobs.backup import idle_time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
choice = idle_time.choice()
with idle_time.in_idle_time(choice):
    print(os.sched_getscheduler(0), choice.reason)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{os.SCHED_OTHER} this account may not leave the idle class")


@returns
def test_a_server_with_one_processor_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert idle_time.choice().chosen is SchedulingClass.IDLE

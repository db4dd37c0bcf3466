"""Servers of clones start as many at once as there are processors, not more."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from zsnapdb.base.errors import BusyError
from zsnapdb.jobs.clone import clone_info, locks

PROCESS = """
import sys
from pathlib import Path
from zsnapdb.jobs.clone import locks
with locks.wait_for_turn(2, folder=Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_no_more_have_a_turn_at_once_than_there_are_processors_and_all_get_one(tmp_path: Path) -> None:
    lock, started, free = threading.Lock(), threading.Semaphore(0), threading.Semaphore(0)
    at_once: list[int] = []
    working = 0

    def work() -> None:
        nonlocal working
        with locks.wait_for_turn(2, folder=tmp_path):
            with lock:
                working += 1
                at_once.append(working)
            started.release()
            free.acquire()
            with lock:
                working -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=120)
        free.release()
    for thread in threads:
        thread.join(120)
    assert len(at_once) == 6
    assert max(at_once) <= 2


def test_a_third_waits_until_one_ends_and_one_that_is_killed_keeps_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    got = threading.Event()

    def third() -> None:
        with locks.wait_for_turn(2, folder=tmp_path):
            got.set()

    with locks.wait_for_turn(2, folder=tmp_path):
        thread = threading.Thread(target=third)
        thread.start()
        assert not got.wait(0.5)
        holder.kill()
        assert got.wait(120)
    thread.join(120)
    holder.communicate()


def test_a_process_that_waits_too_long_gets_an_error(tmp_path: Path) -> None:
    turn = functools.partial(locks.wait_for_turn, 2, patience=0.1, folder=tmp_path)
    with turn(), turn(), pytest.raises(BusyError, match="other servers are starting"), turn():
        pass


def test_no_name_of_a_clone_takes_the_lock_of_a_turn(tmp_path: Path) -> None:
    """A subject that chose such a name would wait for its own lock, and let every other clone wait too."""
    with locks.wait_for_turn(1, folder=tmp_path):
        (turn,) = (file.stem for file in tmp_path.glob("*.lock"))
    prefix = locks.name_of_clone("")
    assert not (turn.startswith(prefix) and clone_info.is_clone_name(turn.removeprefix(prefix)))

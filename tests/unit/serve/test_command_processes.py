"""How a command of the helper ends that does not end by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

from zsnapdb.agent.children import start_detached
from zsnapdb.serve.command_processes import ChildRunner, CommandCall, StartCommand, _end_group
from zsnapdb.serve.helper_messages import FailureAnswer


def of_python(program: str) -> StartCommand:
    """Return what starts a program of Python as a command."""
    return partial(start_detached, program=(sys.executable, "-I", "-S", "-c", program))


def run(program: str, *, cancelled: bool = False) -> FailureAnswer:
    """Run a program of Python as a command, and return how it failed."""
    runner = ChildRunner(of_python(program), grace=0.2)
    call = CommandCall((), "ci:shop/web", "20260101T000000Z-0123abcd", 1.0)
    if cancelled:
        call.cancelled.set()
    answer = runner(call)
    assert isinstance(answer, FailureAnswer)
    return answer


def test_a_command_that_obeys_no_signal_is_killed() -> None:
    began = time.monotonic()
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert (run(deaf).code, time.monotonic() - began < 30) == ("command-timeout", True)


def test_a_command_that_is_cancelled_already_is_not_begun() -> None:
    assert run("raise SystemExit(7)", cancelled=True).code == "cancelled"


def test_a_command_that_ended_as_it_was_to_be_stopped_has_its_exit_code() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "raise SystemExit(7)"], process_group=0)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert _end_group(process, 5) == 7


def test_a_command_waits_for_its_turn_no_longer_than_it_may() -> None:
    runner = ChildRunner(of_python("import time; time.sleep(60)"), most=1, patience=0.3)
    calls = [CommandCall((), "ci:shop/web", "20260101T000000Z-0123abcd", 60.0) for _ in range(2)]
    first = threading.Thread(target=runner, args=(calls[0],))
    first.start()
    while runner._turns.acquire(blocking=False):
        runner._turns.release()
        time.sleep(0.01)
    answer = runner(calls[1])
    calls[0].cancelled.set()
    first.join()
    assert isinstance(answer, FailureAnswer)
    assert (answer.code, answer.message) == ("busy", "1 such commands are running")


def test_one_subject_never_takes_every_place() -> None:
    """Its commands can wait for each other, and those of everybody else would wait with them."""
    runner = ChildRunner(of_python("import time; time.sleep(60)"), most=3)
    others = CommandCall((), "user:ann@example.org", "20260101T000000Z-0123abcd", 0.2)
    calls = [replace(others, subject=one, seconds=60.0, cancelled=threading.Event()) for one in ("ci:a", "CI:A") * 3]
    threads = [threading.Thread(target=runner, args=(call,)) for call in calls]
    ended = threading.Thread(target=runner, args=(others,))
    try:
        for thread in threads:
            thread.start()
        # Two of the three places are taken. The other commands of the subject wait.
        while runner._turns._value > 1:
            time.sleep(0.01)
        ended.start()
        ended.join(20)
        assert not ended.is_alive()
    finally:
        for call in (*calls, others):
            call.cancelled.set()
        for thread in (*threads, ended):
            thread.join()

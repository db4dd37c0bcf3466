"""How commands end: signals, closed pipes and errors of the system, each with its exit code and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT, ENVIRONMENT, zsnapdb_from_nothing
from zsnapdb.cli.main_process import command_arguments

WORKS = """
import os, signal, sys, zsnapdb.cli.app as app
@app.app.command("work")
def work() -> None:
    try:
        {work}
    finally:
        for number in {again}:
            os.kill(os.getpid(), number)
        print("cleaned up", flush=True)
sys.argv = ["zsnapdb", "work"]
app.main()
"""


def run(work: str, again: tuple[int, ...] = (), prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command with this work. In its cleanup, the command gets the signals in `again`.

    The command starts with SIGHUP as in a session, also where these tests run under nohup(1).
    """
    program = WORKS.format(work=work, again=list(map(int, again)))
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        return subprocess.run(
            [*prefix, sys.executable, "-c", program], capture_output=True, text=True, cwd=CHECKOUT, timeout=60
        )
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_interrupts_a_command_which_then_cleans_up(number: signal.Signals) -> None:
    # A shell's background process finds SIGINT ignored. The command then has no handler of its own for it.
    default = "signal.signal(signal.SIGINT, signal.default_int_handler); "
    done = run(f"{default}os.kill(os.getpid(), {int(number)}); signal.pause()")
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "zsnapdb: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_comes_in_a_destructor_is_not_lost(number: signal.Signals) -> None:
    """The interpreter drops the exception there. Destructors run anywhere, as that of a library's answer by HTTP."""
    done = run(
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"dying = type('Dying', (), {{'__del__': lambda _: os.kill(os.getpid(), {int(number)})}}); dying(); "
        "signal.pause()"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "zsnapdb: interrupted\n")


def test_a_signal_that_comes_in_a_destructor_waits_for_what_is_not_interrupted() -> None:
    done = run(
        "import time; from zsnapdb.jobs.base.events import uninterrupted; "
        "dying = type('Dying', (), {'__del__': lambda _: os.kill(os.getpid(), signal.SIGTERM)}); told = []; dying()\n"
        "        with uninterrupted(told.append):\n"
        "            while not told: time.sleep(0.01)\n"
        "            print('whole', len(told), flush=True)\n"
        "        signal.pause()"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "whole 1\ncleaned up\n", "zsnapdb: interrupted\n")


def test_other_errors_in_a_destructor_are_printed() -> None:
    done = run("type('Dying', (), {'__del__': lambda _: 1 / 0})()")
    assert (done.returncode, done.stdout, "ZeroDivisionError" in done.stderr) == (0, "cleaned up\n", True)


def test_the_shells_own_sighup_does_not_interrupt_the_cleanup_after_the_first() -> None:
    done = run("os.kill(os.getpid(), signal.SIGHUP); signal.pause()", again=(signal.SIGHUP, signal.SIGHUP))
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")


def test_a_program_started_during_the_cleanup_does_not_ignore_sighup() -> None:
    """As an ignored signal stays ignored in a started program (execve(2))."""
    work = "os.kill(os.getpid(), signal.SIGHUP); signal.pause()\n    except KeyboardInterrupt:\n        "
    work += "import subprocess; print(subprocess.run(['sh', '-c', 'kill -HUP $$; sleep 60']).returncode)"
    assert run(work).stdout == f"{-signal.SIGHUP}\ncleaned up\n"


def test_a_command_under_nohup_survives_the_end_of_its_session() -> None:
    done = run("os.kill(os.getpid(), signal.SIGHUP)", prefix=("nohup",))
    assert (done.returncode, done.stdout) == (0, "cleaned up\n")


def test_a_lost_terminal_ends_no_job_and_hides_no_cleanup() -> None:
    """The session's end closes the pipe of stderr too."""
    work = (
        "from zsnapdb.cli.progress import Terminal; from zsnapdb.base.domain_types import Progress; os.close(2); "
        "end = os.pipe(); os.close(end[0]); os.dup2(end[1], 2); terminal = Terminal(); "
        "terminal.tell('x'); terminal.warn('y'); terminal._shown = -99; terminal.progress(Progress('z', 1, 2)); "
        "os.kill(os.getpid(), signal.SIGHUP); signal.pause()"
    )
    done = run(work)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")


def to_closed_pipe(*words: str) -> subprocess.CompletedProcess[str]:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "zsnapdb", *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize("words", [("--help",), ("list", "--json", "--config", "/nonexistent")])
def test_a_closed_pipe_ends_a_command_without_a_traceback(words: tuple[str, ...]) -> None:
    done = to_closed_pipe(*words)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_broken_pipe_of_another_program_is_an_error_and_is_named() -> None:
    done = run("raise BrokenPipeError(32, 'Broken pipe')")
    assert done.returncode == 1
    assert done.stderr.startswith("zsnapdb: Broken pipe\nhint:")


def test_a_full_disk_behind_stdout_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zsnapdb", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("zsnapdb: writing the result to stdout: No space left on device\nhint:")


def test_closed_standard_streams_are_never_the_files_of_a_job() -> None:
    work = "number = os.open('/dev/null', os.O_RDONLY); sys.exit(number)"
    command = [sys.executable, "-c", WORKS.format(work=work, again=[])]
    closed = "import os, sys; [os.close(n) for n in (0, 1, 2)]; os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", closed, *command], cwd=CHECKOUT, timeout=60)
    assert done.returncode > 2


def test_an_error_of_the_system_names_its_file_and_has_no_traceback() -> None:
    done = run("open('/proc/1/mem/x')")
    assert done.returncode == 1
    assert done.stderr.startswith("zsnapdb: /proc/1/mem/x: Not a directory\nhint:")
    assert "Traceback" not in done.stderr


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    done = run("raise KeyError('x')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_usage_error_ends_with_2() -> None:
    assert zsnapdb_from_nothing("list", "--no-such-option").returncode == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rewind", "main", "--to", "10m"], ["rewind", "main"]),
        (["--log-level", "debug", "-v", "--log-format=json", "clone", "list"], ["clone", "list"]),
        (["--version"], []),
    ],
)
def test_the_end_of_a_run_is_told_with_the_words_of_its_command_alone(argv: list[str], words: list[str]) -> None:
    assert command_arguments(argv) == words

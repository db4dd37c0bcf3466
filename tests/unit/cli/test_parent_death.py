"""A command that is to end with its parent is told to end when that is gone, and undoes what it began."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.cli.process_attributes import VARIABLE, end_with_parent

CHILD = """
import os, signal, zsnapdb.cli.app as app
@app.app.command("work")
def work() -> None:
    assert "ZSNAPDB_ENDS_WITH" not in os.environ
    try:
        print("works", flush=True)
        signal.pause()
    finally:
        print("cleaned up", flush=True)
import sys
sys.argv = ["zsnapdb", "work"]
app.main()
"""
PARENT = """
import os, signal, subprocess, sys
environment = {**os.environ, "ZSNAPDB_ENDS_WITH": str(os.getpid())}
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_command_whose_parent_is_killed_undoes_what_it_began() -> None:
    words, pipe = [sys.executable, "-c", PARENT, CHILD], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=CHECKOUT, text=True, bufsize=1) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "works\n"
        parent.stdin.write("now\n")
        # Both have the pipe: it ends when the command has ended, too.
        assert parent.stdout.read() == "cleaned up\n"


def test_a_command_whose_parent_went_before_it_could_ask_ends_at_once() -> None:
    program = (
        "import os; from zsnapdb.cli.process_attributes import end_with_parent; end_with_parent(os.environ); print(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, VARIABLE: str(os.getpid() + 1)},
        cwd=CHECKOUT,
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (-15, b"")


def test_a_command_that_nobody_asks_goes_on_without_its_parent() -> None:
    environment: dict[str, str] = {}
    end_with_parent(environment)
    assert environment == {}

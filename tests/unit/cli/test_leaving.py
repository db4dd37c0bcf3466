"""How a command ends where a library with its own threads was used: at once, and with all that it printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.support.command_line import ENVIRONMENT

CODE = """
import atexit, sys
from zsnapdb.cli.main_process import leave
atexit.register(print, "the interpreter is taken apart")
sys.modules.setdefault(sys.argv[1], sys)
print("the answer")
leave(3)
"""


@pytest.mark.parametrize("library", ["temporalio.bridge.temporal_sdk_bridge", "obstore"])
def test_interpreter_is_not_taken_apart_after_a_library(library: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, library], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr) == (3, "the answer\n", "")

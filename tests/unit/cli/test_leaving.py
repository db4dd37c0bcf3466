"""How a command ends where the client's library of a fleet was used: at once, and with all that it printed."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.support.command_line import ENVIRONMENT

CODE = """
import sys
from zsnapdb.cli.main_process import leave
sys.modules["temporalio.bridge.temporal_sdk_bridge"] = sys
print("the answer")
leave(3)
"""


def test_what_was_printed_is_there_when_the_interpreter_is_not_taken_apart() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr) == (3, "the answer\n", "")

"""What a command does without: to look again and again through the objects of its modules."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import atexit, gc, sys
atexit.register(lambda: print("looks through", gc.get_count()[2], gc.get_freeze_count() > 10_000))
from zsnapdb.cli.app import main
sys.argv = ["zsnapdb", "config", "check", "--config", "/nowhere.toml"]
main()
"""


def test_a_command_does_not_look_through_the_objects_of_its_modules_at_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout == "looks through 0 True\n", done.stderr

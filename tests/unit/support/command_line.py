"""Execution of zsnapdb as by a user, in its own process."""

from __future__ import annotations

import atexit
import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.documents import check_printed
from tests.lab.inside.zygote import Zygote

CHECKOUT = Path(__file__).parents[3]
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "LC_ALL": "C.UTF-8"}


def zsnapdb(*words: str, config: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command line. `variables` are additional environment variables.

    It runs in a child of a process that has imported the package, because imports take longer than most commands.
    """
    env = {**ENVIRONMENT, "ZSNAPDB_CONFIG": config, **variables}
    done = subprocess.CompletedProcess(["zsnapdb", *words], *_zygote().run(words, env, timeout=60))
    check_printed(words, done.stdout)
    return done


def zsnapdb_from_nothing(*words: str) -> subprocess.CompletedProcess[str]:
    """Start a command line without the zygote, as a shell does."""
    return subprocess.run(
        [sys.executable, "-m", "zsnapdb", *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )


@functools.cache
def _zygote() -> Zygote:
    """Return the process that runs the commands of all tests; it ends with them."""
    folder = tempfile.TemporaryDirectory()
    zygote = Zygote(Path(folder.name) / "zygote", ENVIRONMENT)
    atexit.register(folder.cleanup)
    atexit.register(zygote.close)
    return zygote

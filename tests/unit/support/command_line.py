"""Runs zsnapdb as a person runs it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "LC_ALL": "C.UTF-8"}


def zsnapdb(*words: str, config: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command line. `variables` are those of its environment, beside the usual ones."""
    env = {**ENVIRONMENT, "ZSNAPDB_CONFIG": config, **variables}
    return subprocess.run(
        [sys.executable, "-m", "zsnapdb", *words], capture_output=True, text=True, env=env, timeout=60
    )

"""Starts the jobs of the agent, each as a process of its own that prints into a file."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from zsnapdb.agent.process_work import work_of
from zsnapdb.base import run_id as run_ids

_TAIL = 8192
"""How many of the last bytes of a log are kept with the result of a run."""


class Child(Protocol):
    """A running job."""

    def poll(self) -> int | None:
        """Return its exit code, negative if a signal ended it; None while it runs."""

    def stop(self) -> None:
        """Ask it to end: it releases its locks and removes what is incomplete."""

    def kill(self) -> None:
        """End it at once."""

    def tail(self) -> str:
        """Return the last lines that it printed."""

    def work(self) -> object:
        """Return what changes while it does something: two equal results mean that nothing was done between them."""


class StartChild(Protocol):
    """Starts the run `run_id` of `zsnapdb` with these words.

    What it prints goes to the file, which is emptied before.
    """

    def __call__(self, words: Sequence[str], log: Path, run_id: str) -> Child: ...


class ProcessChild:
    """A child process and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
                return log.read(_TAIL).decode(errors="replace")
        except OSError as error:
            return f"the log cannot be read: {error.strerror}"

    def work(self) -> object:
        try:
            printed = self._log.stat().st_size
        except OSError:
            printed = 0
        return work_of(self._process.pid, printed)


def start(words: Sequence[str], log: Path, run_id: str, environment: Mapping[str, str] | None = None) -> ProcessChild:
    """Start the run of `zsnapdb` with these words in a process of its own. OSError if that is impossible.

    Its environment is that of the agent, also with the passwords that the configuration names.
    """
    own = {**(os.environ if environment is None else environment), run_ids.VARIABLE: run_id}
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "zsnapdb", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=own,
        )
    return ProcessChild(process, log)

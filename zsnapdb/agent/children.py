"""Starts jobs as processes: those of the agent, which print into a file, and others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from zsnapdb.agent.orphan_children import work_of
from zsnapdb.base import run_id as run_ids
from zsnapdb.base.processes import Process, Running

ZSNAPDB = (sys.executable, "-m", "zsnapdb")
_TAIL = 8192
"""The bytes at the end of a log that are stored with the result of a run."""


Streams = tuple[int, int, int]
"""The descriptors of stdin, stdout and stderr of a process."""


@dataclass(frozen=True)
class StartRequest:
    """A request to start `zsnapdb` with these arguments and this environment.

    `is_apart`: in the folder /, as the first process of its own group. Four descriptors are sent with it: those of its
    streams, and the end of a pipe from which the job reads GO.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    is_apart: bool = False

    def packet(self) -> bytes:
        return json.dumps(
            {"words": self.words, "environment": dict(self.environment), "is_apart": self.is_apart}
        ).encode()

    @classmethod
    def of_packet(cls, packet: bytes) -> StartRequest:
        """Return the request in a packet. Raises ValueError or KeyError if the packet is incomplete."""
        sent = json.loads(packet)
        return cls(tuple(sent["words"]), sent["environment"], sent["is_apart"])


class Child(Running, Protocol):
    """A running job."""

    def stop(self) -> None:
        """Ask it to end: it releases its locks and removes incomplete objects."""

    def kill(self) -> None:
        """Kill it at once."""

    def tail(self) -> str:
        """Return the last lines that it printed."""

    def work(self) -> object:
        """Return a value that changes while it works: two equal values mean that it did nothing between them."""


class StartChild(Protocol):
    """Starts the run `run_id` of `zsnapdb` with these arguments.

    Its output goes to the file, which is emptied before.
    """

    def __call__(self, words: Sequence[str], log: Path, run_id: str) -> Child: ...


class Starter(Protocol):
    """Starts jobs, and has resources of its own."""

    def start(self, words: Sequence[str], log: Path, run_id: str) -> Child:
        """Start the run `run_id` of `zsnapdb` with these arguments, as StartChild does."""

    def tidy(self) -> None:
        """Release unneeded resources. The caller repeats this regularly, and after each end of a child."""

    def close(self) -> None:
        """Release all resources. Jobs continue."""


class ProcessChild:
    """A child process and its log."""

    def __init__(self, process: Process, log: Path) -> None:
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
    """Start the run of `zsnapdb` with these arguments as a process. Raises OSError if that is impossible.

    It has the environment of the agent, including the passwords that the configuration names.
    """
    return logged(from_nothing, StartRequest(tuple(words), own_environment(run_id, environment)), log)


def logged(start_process: Callable[[StartRequest, Streams], Process], request: StartRequest, log: Path) -> ProcessChild:
    """Start a job with an empty stdin and its output in the log, which is emptied before.

    Raises OSError if that is impossible.
    """
    with emptied(log) as out, open(os.devnull, "rb") as nothing:
        streams = nothing.fileno(), out.fileno(), out.fileno()
        return ProcessChild(start_process(request, streams), log)


def from_nothing(request: StartRequest, streams: Streams, program: Sequence[str] = ZSNAPDB) -> Process:
    """Start the program with the arguments of the request, without a fork server.

    Raises OSError if that is impossible.
    """
    given, out, errors = streams
    return subprocess.Popen(
        [*program, *request.words],
        stdin=given,
        stdout=out,
        stderr=errors,
        env=request.environment,
        cwd="/" if request.is_apart else None,
        process_group=0 if request.is_apart else None,
    )


def apart(
    words: Sequence[str], environment: Mapping[str, str], streams: Streams, program: Sequence[str] = ZSNAPDB
) -> Process:
    """Start `zsnapdb` with these arguments in the folder /, as the first process of its own group.

    It has only this environment. Raises OSError if it cannot be started.
    """
    return from_nothing(StartRequest(tuple(words), environment, is_apart=True), streams, program)


def command_line(words: Sequence[str]) -> list[str]:
    """Return the command line of a job, as `ps` shows it."""
    return [*ZSNAPDB, *words]


def own_environment(run_id: str, environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of the run: this one (None: that of this process) with the run id."""
    return {**(os.environ if environment is None else environment), run_ids.VARIABLE: run_id}


def emptied(log: Path) -> BinaryIO:
    """Open and empty the log of a job. No link is followed. Raises OSError if it cannot be opened."""
    return open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")

"""Runs commands of zsnapdb for the helper, each as a process of its own, and reads what they print."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import run_id, subject
from zsnapdb.base.errors import INTERNAL, CommandTimeout
from zsnapdb.base.foreign_json import fields_of
from zsnapdb.jobs.clone.meant import MeantClone
from zsnapdb.serve.messages import FailureAnswer, ResultAnswer, cancelled, too_busy

ZSNAPDB = (sys.executable, "-m", "zsnapdb")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_BYTES = 16 << 20
"""The longest document that is read."""
_TAIL = 2000
_POLL_SECONDS = 0.02
_TURN_SECONDS = 0.1
_GRACE_SECONDS = 60.0
"""How long a command may take to undo what it began."""


@dataclass(frozen=True)
class CommandCall:
    """A command: its words, for whom and as which run it is run, and how many seconds it may take.

    `objection` is asked when its turn has come, which can be long after it was asked for: why it may not be run now.
    `cancelled` ends it early. `judges`: its exit code judges what its document tells, and the document is the answer.
    `issuer` vouched for the subject ("": zsnapdb itself). `meant` is the clone that the command is about, and about no
    other of its name (None: it is about none that is there). `given` is what it reads from stdin, at most 16 KiB:
    nobody else can read it there.
    """

    words: Sequence[str]
    subject: str
    run_id: str
    seconds: float
    objection: Callable[[], FailureAnswer | None] = lambda: None
    cancelled: threading.Event = field(default_factory=threading.Event)
    judges: bool = False
    issuer: str = ""
    meant: MeantClone | None = None
    given: bytes = field(default=b"", repr=False)


class RunCommand(Protocol):
    """Runs a command of zsnapdb to its end. OSError if it cannot be started."""

    def __call__(self, call: CommandCall) -> ResultAnswer | FailureAnswer: ...


@dataclass
class ChildRunner:
    """Runs commands as processes, at most so many at once; others wait for their turn, at most `patience` seconds.

    A child has a clean environment: `environment`, the id of its run, and its subject, which its evidence names. A
    child that is stopped has `grace` seconds to undo what it began.
    """

    program: Sequence[str] = ZSNAPDB
    environment: Mapping[str, str] = field(default_factory=dict)
    most: int = 8
    patience: float = math.inf
    grace: float = _GRACE_SECONDS
    _turns: threading.BoundedSemaphore = field(init=False)
    _stopped: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._turns = threading.BoundedSemaphore(self.most)

    def stop(self) -> None:
        """Let each running command end as after SIGTERM, and begin no other."""
        self._stopped.set()

    def __call__(self, call: CommandCall) -> ResultAnswer | FailureAnswer:
        """Run the command, and return its document, or how it failed."""
        deadline = time.monotonic() + self.patience
        while not self._turns.acquire(timeout=_TURN_SECONDS):
            why = self._end_of(call, math.inf)
            if why is not None:
                return why
            if time.monotonic() >= deadline:
                return too_busy(f"{self.most} such commands are at work").failure
        try:
            return self._end_of(call, math.inf) or call.objection() or self._run(call)
        finally:
            self._turns.release()

    def _end_of(self, call: CommandCall, deadline: float) -> FailureAnswer | None:
        """Return why the command may not begin, or not go on; None if it may."""
        what = f"`{' '.join(call.words[:2])}`"
        if self._stopped.is_set():
            return _ended_early(f"{what} was stopped: the helper ends")
        if call.cancelled.is_set():
            return cancelled(f"{what} was cancelled")
        return _ended_early(f"{what} was stopped: it took too long") if time.monotonic() >= deadline else None

    def _run(self, call: CommandCall) -> ResultAnswer | FailureAnswer:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            own = {run_id.VARIABLE: call.run_id, subject.VARIABLE: call.subject}
            own |= {subject.ISSUER_VARIABLE: call.issuer} if call.issuer else {}
            own |= call.meant.variables() if call.meant is not None else {}
            process = subprocess.Popen(
                [*self.program, *call.words],
                stdin=subprocess.PIPE if call.given else subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd="/",
                env={"PATH": PATH, "LANG": "C.UTF-8", **self.environment, **own},
                process_group=0,
            )
            _give(process, call.given)
            why = self._wait(process, call)
            # What was done before the signal came is done.
            return why if why is not None and process.returncode != 0 else _read(call, process.returncode, out, errors)

    def _wait(self, process: subprocess.Popen[bytes], call: CommandCall) -> FailureAnswer | None:
        """Return None when the process has ended by itself. Else it is stopped, and why is returned."""
        deadline = time.monotonic() + call.seconds
        while process.poll() is None:
            why = self._end_of(call, deadline)
            if why is not None:
                _end_group(process, self.grace)
                return why
            time.sleep(_POLL_SECONDS)
        return None


def _give(process: subprocess.Popen[bytes], given: bytes) -> None:
    """Let the process read what it is given. That fits into a pipe, so nothing waits for the process."""
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(given)


def _end_group(process: subprocess.Popen[bytes], grace: float) -> None:
    """End the process as SIGTERM does, in the end by SIGKILL, and kill what is left of its group.

    Until the process is waited for nothing else can have its number. Popen.terminate may wait for it.
    """
    os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _ErrorFields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    code: str
    message: str
    hint: str = ""


class _ErrorDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    error: _ErrorFields


def _read(call: CommandCall, code: int, out: IO[bytes], errors: IO[bytes]) -> ResultAnswer | FailureAnswer:
    out.seek(0)
    text = out.read(_MOST_BYTES + 1)
    if code != 0:
        with contextlib.suppress(ValidationError):
            said = _ErrorDocument.model_validate_json(text).error
            return FailureAnswer(code=said.code, message=said.message, hint=said.hint, exit_code=code)
    if (code == 0 or call.judges) and len(text) <= _MOST_BYTES:
        with contextlib.suppress(ValueError, ValidationError):
            return ResultAnswer.model_validate({"document": fields_of(text)})
    errors.seek(max(0, os.fstat(errors.fileno()).st_size - _TAIL))
    print(errors.read(_TAIL).decode(errors="replace"), file=sys.stderr, flush=True)
    return FailureAnswer(
        code="internal",
        message=f"the command ended with {code} and printed no document",
        hint="the log of the helper has its last words",
        exit_code=code if code > 0 else INTERNAL,
    )


def _ended_early(message: str) -> FailureAnswer:
    return FailureAnswer(
        code=CommandTimeout.code,
        message=message,
        hint="look at the clone before you ask again",
        exit_code=CommandTimeout.exit_code,
    )

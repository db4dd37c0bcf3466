"""Runs commands of zsnapdb for the helper, each as a process of its own, and reads what they print."""

from __future__ import annotations

import contextlib
import os
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
from zsnapdb.serve.messages import FailureAnswer, ResultAnswer

ZSNAPDB = (sys.executable, "-m", "zsnapdb")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_BYTES = 16 << 20
"""The longest document that is read."""
_TAIL = 2000
_POLL_SECONDS = 0.02
_GRACE_SECONDS = 60.0
"""How long a command may take to undo what it began."""


@dataclass(frozen=True)
class CommandCall:
    """A command: its words, for whom and as which run it is run, and how many seconds it may take.

    `objection` is asked when its turn has come, which can be long after it was asked for: why it may not be run now.
    `issuer` vouched for the subject ("": zsnapdb itself).
    """

    words: Sequence[str]
    subject: str
    run_id: str
    seconds: float
    objection: Callable[[], FailureAnswer | None] = lambda: None
    issuer: str = ""


class RunCommand(Protocol):
    """Runs a command of zsnapdb to its end. OSError if it cannot be started."""

    def __call__(self, call: CommandCall) -> ResultAnswer | FailureAnswer: ...


@dataclass
class ChildRunner:
    """Runs commands as processes, at most so many at once; others wait for their turn.

    A child has a clean environment: `environment`, the id of its run, and its subject, which its evidence names.
    """

    program: Sequence[str] = ZSNAPDB
    environment: Mapping[str, str] = field(default_factory=dict)
    most: int = 8
    _turns: threading.BoundedSemaphore = field(init=False)
    _stopped: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._turns = threading.BoundedSemaphore(self.most)

    def stop(self) -> None:
        """Let each running command end as after SIGTERM, and begin no other."""
        self._stopped.set()

    def __call__(self, call: CommandCall) -> ResultAnswer | FailureAnswer:
        """Run the command, and return its document, or how it failed."""
        with self._turns, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            if self._stopped.is_set():
                return _ended_early("the helper ends")
            refused = call.objection()
            if refused is not None:
                return refused
            own = {run_id.VARIABLE: call.run_id, subject.VARIABLE: call.subject}
            own |= {subject.ISSUER_VARIABLE: call.issuer} if call.issuer else {}
            process = subprocess.Popen(
                [*self.program, *call.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd="/",
                env={"PATH": PATH, "LANG": "C.UTF-8", **self.environment, **own},
            )
            if not self._wait(process, time.monotonic() + call.seconds):
                why = "the helper ends" if self._stopped.is_set() else f"it took longer than {call.seconds:g} s"
                return _ended_early(f"`{' '.join(call.words[:2])}` was stopped: {why}")
            return _read(process.returncode, out, errors)

    def _wait(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Return whether the process ended by itself. Else it is stopped, in the end killed."""
        while process.poll() is None:
            if self._stopped.wait(_POLL_SECONDS) or time.monotonic() >= deadline:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                try:
                    process.wait(_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return False
        return True


class _ErrorFields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    code: str
    message: str
    hint: str = ""


class _ErrorDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    error: _ErrorFields


def _read(code: int, out: IO[bytes], errors: IO[bytes]) -> ResultAnswer | FailureAnswer:
    out.seek(0)
    text = out.read(_MOST_BYTES + 1)
    if code == 0 and len(text) <= _MOST_BYTES:
        with contextlib.suppress(ValueError, ValidationError):
            return ResultAnswer.model_validate({"document": fields_of(text)})
    with contextlib.suppress(ValidationError):
        said = _ErrorDocument.model_validate_json(text).error
        return FailureAnswer(code=said.code, message=said.message, hint=said.hint, exit_code=code)
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

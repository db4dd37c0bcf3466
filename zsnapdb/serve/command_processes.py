"""Runner of `zsnapdb` commands for the helper. Each command is a separate process whose output the runner reads."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import patterns, run_context
from zsnapdb.base.errors import INTERNAL, CommandTimeout
from zsnapdb.base.program_start import Process, poll_timeout
from zsnapdb.base.untrusted_text import fields_of, printed
from zsnapdb.jobs.clone.expected_clone import ExpectedClone
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.serve.helper_messages import FailureAnswer, ResultAnswer, cancelled, too_busy

CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""The environment of every command."""
_MOST_BYTES = 16 << 20
"""Maximum size of a document that is read, in bytes."""
_TAIL = 2000
_TURN_SECONDS = 0.1
_GRACE_SECONDS = 60.0
"""Seconds within which a stopped command can undo its work, before it is killed."""


@dataclass(frozen=True)
class CommandCall:
    """A command: its arguments, subject, run id, and timeout in seconds.

    - `objection` is called immediately before the command starts. It returns the reason if the command may no longer
      run.
    - `cancelled` ends the command early.
    - `judges`: an exit code other than 0 is a verdict, and the command's document is still the answer.
    - `issuer` is the issuer that authenticated the subject ("": zsnapdb itself did).
    - `meant` is the only clone that the command may use, even if another clone now has the same name (None: the command
      uses no existing clone).
    - `given` is the command's stdin, at most 16 KiB. Other accounts cannot read the stdin.
    - `audience` is the owner whose clones the answer may mention ("": all owners).
    """

    words: Sequence[str]
    subject: str
    run_id: str
    seconds: float
    objection: Callable[[], FailureAnswer | None] = lambda: None
    cancelled: threading.Event = field(default_factory=threading.Event)
    judges: bool = False
    issuer: str = ""
    meant: ExpectedClone | None = None
    given: bytes = field(default=b"", repr=False)
    audience: str = ""


class RunCommand(Protocol):
    """Runs a zsnapdb command to its end. Raises OSError if the command cannot be started."""

    def __call__(self, call: CommandCall) -> ResultAnswer | FailureAnswer: ...


class StartCommand(Protocol):
    """Starts `zsnapdb` with the given arguments in the folder /, as the leader of a new process group.

    The process's environment is exactly `environment`. `streams` are the descriptors of its stdin, stdout and stderr.
    Raises OSError if the process cannot be started.
    """

    def __call__(
        self, words: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int, int]
    ) -> Process: ...


@dataclass
class ChildRunner:
    """Runs at most `most` commands simultaneously, each in its own process.

    Further commands wait at most `patience` seconds. A subject can run at most `most - 1` commands simultaneously (at
    least one), so that other subjects can also run commands.

    The environment of a child contains only the variables in CLEAN and `environment`, the run id, and the subject for
    the evidence. A stopped child has `grace` seconds to undo its work before it is killed.
    """

    start: StartCommand
    environment: Mapping[str, str] = field(default_factory=dict)
    most: int = 8
    patience: float = math.inf
    grace: float = _GRACE_SECONDS
    _turns: threading.BoundedSemaphore = field(init=False)
    _taken: Counter[str] = field(init=False, default_factory=Counter)
    _taking: threading.Lock = field(init=False, default_factory=threading.Lock)
    _stopped: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._turns = threading.BoundedSemaphore(self.most)

    def stop(self) -> None:
        """Stop each running command with SIGTERM, and start no more commands."""
        self._stopped.set()

    def __call__(self, call: CommandCall) -> ResultAnswer | FailureAnswer:
        deadline = time.monotonic() + self.patience
        while not self._takes_turn(call.subject.casefold()):
            why = self._end_of(call, math.inf)
            if why is not None:
                return why
            if time.monotonic() >= deadline:
                return too_busy(f"{self.most} such commands are running").failure
        try:
            return self._end_of(call, math.inf) or call.objection() or self._run(call)
        finally:
            with self._taking:
                self._taken -= Counter([call.subject.casefold()])
            self._turns.release()

    def _takes_turn(self, subject: str) -> bool:
        """Try to reserve a slot for a command of the subject, and return whether a slot was free.

        If no slot was free, wait briefly before returning. The subject "" is zsnapdb itself, which may use all slots.
        """
        with self._taking:
            may = not subject or self._taken[subject] < max(1, self.most - 1)
            if may and self._turns.acquire(blocking=False):
                self._taken[subject] += 1
                return True
        time.sleep(_TURN_SECONDS)
        return False

    def _end_of(self, call: CommandCall, deadline: float) -> FailureAnswer | None:
        """Return why the command must not start or continue; None if it may."""
        what = f"`{' '.join(call.words[:2])}`"
        if self._stopped.is_set():
            return _ended_early(f"{what} was stopped: the helper ends")
        if call.cancelled.is_set():
            return cancelled(f"{what} was cancelled")
        return _ended_early(f"{what} was stopped: it took too long") if time.monotonic() >= deadline else None

    def _run(self, call: CommandCall) -> ResultAnswer | FailureAnswer:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            own = {run_context.VARIABLE: call.run_id, patterns.SUBJECT_VARIABLE: call.subject}
            own |= {patterns.ISSUER_VARIABLE: call.issuer} if call.issuer else {}
            own |= call.meant.variables() if call.meant is not None else {}
            own |= {run_context.AUDIENCE_VARIABLE: owner_text(call.audience)} if call.audience else {}
            environment = {**CLEAN, **self.environment, **own}
            with _stdin_of(call.given) as stdin:
                process = self.start(call.words, environment, (stdin, out.fileno(), errors.fileno()))
            why, code = self._wait(process, call)
            # If a command succeeded before the signal arrived, its result counts.
            return why if why is not None and code != 0 else _read(call, code, out, errors)

    def _wait(self, process: Process, call: CommandCall) -> tuple[FailureAnswer | None, int]:
        """Wait until the process ends. Return why it was stopped (None if it ended by itself), and its exit code."""
        deadline = time.monotonic() + call.seconds
        while (code := process.poll()) is None:
            why = self._end_of(call, deadline)
            if why is not None:
                return why, _end_group(process, self.grace)
            _until_end(process, _TURN_SECONDS)
        return None, code


@contextlib.contextmanager
def _stdin_of(given: bytes) -> Iterator[int]:
    """Yield a descriptor for a child's stdin: /dev/null, or a pipe to which `given` is written after the block.

    A pipe can buffer all these bytes, so the write never blocks, even if the process has ended.
    """
    if not given:
        with open(os.devnull, "rb") as nothing:
            yield nothing.fileno()
        return
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as stdin:
        with open(reading, "rb", buffering=0):
            yield reading
        with contextlib.suppress(BrokenPipeError):
            stdin.write(given)


def _until_end(process: Process, seconds: float) -> None:
    """Wait at most `seconds` until the child ends (pidfd_open(2)). The child is not reaped."""
    watched, poll = os.pidfd_open(process.pid), select.poll()
    try:
        poll.register(watched, select.POLLIN)
        poll.poll(poll_timeout(seconds))
    finally:
        os.close(watched)


def _end_group(process: Process, grace: float) -> int:
    """Stop the process with SIGTERM, and after `grace` seconds with SIGKILL. Return its exit code.

    The other processes of its group are killed. The process is reaped last, so that no other process gets its number
    until then.
    """
    os.kill(process.pid, signal.SIGTERM)
    _until_end(process, grace)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    while (code := process.poll()) is None:
        _until_end(process, _TURN_SECONDS)
    return code


class _ErrorFields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    code: str
    message: str
    hint: str = ""
    audience: str = ""


class _ErrorDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    error: _ErrorFields


def _read(call: CommandCall, code: int, out: IO[bytes], errors: IO[bytes]) -> ResultAnswer | FailureAnswer:
    out.seek(0)
    text = out.read(_MOST_BYTES + 1)
    if code != 0:
        with contextlib.suppress(ValidationError):
            said = _ErrorDocument.model_validate_json(text).error
            return _failure(call, code, said)
    if (code == 0 or call.judges) and len(text) <= _MOST_BYTES:
        with contextlib.suppress(ValueError, ValidationError):
            return ResultAnswer.model_validate({"document": fields_of(text)})
    errors.seek(max(0, os.fstat(errors.fileno()).st_size - _TAIL))
    print(errors.read(_TAIL).decode(errors="replace"), file=sys.stderr, flush=True)
    return FailureAnswer(
        code="internal",
        message=f"the command ended with {code} and printed no document",
        hint="the log of the helper has its last output",
        exit_code=code if code > 0 else INTERNAL,
    )


def _failure(call: CommandCall, code: int, said: _ErrorFields) -> FailureAnswer:
    """Return the failure with the texts that the audience may read. Texts for other audiences go only to the log."""
    if not call.audience or said.audience == owner_text(call.audience):
        return FailureAnswer(code=said.code, message=said.message, hint=said.hint, exit_code=code)
    print(printed(f"run {call.run_id} of {call.subject}: {said.message}; {said.hint}"), file=sys.stderr, flush=True)
    return FailureAnswer(
        code=said.code, message=run_context.describe_exit_code(code), hint=run_context.ASK, exit_code=code
    )


def _ended_early(message: str) -> FailureAnswer:
    return FailureAnswer(
        code=CommandTimeout.code,
        message=message,
        hint="look at the clone before you ask again",
        exit_code=CommandTimeout.exit_code,
    )

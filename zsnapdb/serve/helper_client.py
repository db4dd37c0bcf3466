"""Asks the helper, from the web process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from zsnapdb.base.deadline import TimedSocket, within
from zsnapdb.base.errors import UnreachableError
from zsnapdb.serve.messages import ANSWER, BegunAnswer, Ending, FailureAnswer, PendingAnswer, failure_of
from zsnapdb.serve.verbs import HelperRequest

_MOST_BYTES = 32 << 20


@dataclass(frozen=True)
class HelperClient:
    """The helper behind a socket. It has so many seconds for each part of its answer."""

    path: Path
    seconds: float = 90.0

    def ask(self, request: HelperRequest) -> Ending:
        """Return how the request ended. A helper that breaks off after it began something leaves it pending."""
        begun: BegunAnswer | None = None
        try:
            for line in self._lines(request.line()):
                answer = ANSWER.validate_json(line)
                if not isinstance(answer, BegunAnswer):
                    return answer
                begun = answer
        except (OSError, ValidationError):
            if begun is None:
                return _unreachable()
        return PendingAnswer(operation=begun.operation) if begun is not None else _unreachable()

    def begin(self, request: HelperRequest) -> BegunAnswer | Ending:
        """Return the operation as soon as it has begun; it goes on. Else how the request ended."""
        with contextlib.suppress(OSError, ValidationError), contextlib.closing(self._lines(request.line())) as lines:
            for line in lines:
                return ANSWER.validate_json(line)
        return _unreachable()

    def _lines(self, request: bytes) -> Generator[bytes, None, None]:
        with TimedSocket(socket.AF_UNIX, socket.SOCK_STREAM) as helper:
            with within(self.seconds):
                helper.connect(str(self.path))
                # A helper that refuses may close before it has read everything; its answer can be read all the same.
                with contextlib.suppress(BrokenPipeError):
                    helper.sendall(request)
            with helper.makefile("rb") as answers:
                # The first part may say that something began, the second how it ended.
                for _ in range(2):
                    with within(self.seconds, most_bytes=_MOST_BYTES):
                        line = answers.readline(_MOST_BYTES)
                    if not line:
                        return
                    yield line


def _unreachable() -> FailureAnswer:
    return failure_of(UnreachableError("the helper does not answer", hint="is zsnapdb-serve-helper running?"))

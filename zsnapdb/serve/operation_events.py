"""An operation as a stream of server-sent events: that it is running, and how it ended.

No state is kept here between two looks at the operation, which belongs to the helper. A client that reconnects after a
restart of the web process sends the number of its last event, and gets the remaining ones. Source: HTML Living
Standard, section 9.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from zsnapdb.base.errors import BusyError, ConsistencyError, UnreachableError
from zsnapdb.serve import helper_messages
from zsnapdb.serve.helper_messages import (
    FailureAnswer,
    HelperClient,
    ResultAnswer,
    WatchedOperation,
    failure_of,
    problem_of,
)
from zsnapdb.serve.verbs import HelperRequest

MEDIA_TYPE = "text/event-stream"
_BEGUN, _ENDED = "1", "2"
"""The numbers of the two events."""
_RETRY_MILLISECONDS = 2000
_COMMENT_SECONDS = 15.0
"""The interval of comments: proxies close connections that are silent for long."""
_PASSES = (BusyError.code, UnreachableError.code)
"""Errors that say nothing about the operation: the helper is busy, or restarts."""

IsGone = Callable[[float], Awaitable[bool]]
"""Waits that many seconds for the client to disconnect, and returns whether it did."""


@dataclass(frozen=True)
class OpenedEvents:
    """A stream that may start if a place is free. `seen` is the number of the last event that the client has."""

    request: HelperRequest
    first: WatchedOperation
    seen: str


@dataclass
class OperationEvents:
    """Streams by one helper, with a limit per subject and in all, each for at most that many seconds.

    A stream occupies no thread while it waits. A client that reads slowly delays only its own stream, and is closed at
    its end. `pause` returns the seconds until the next look, given the seconds that the stream has lasted.
    """

    helper: HelperClient
    most_of_subject: int = 8
    most: int = 80
    seconds: float = 300.0
    pause: Callable[[float], float] = lambda lasted: 0.5 if lasted < 10 else 1.0 if lasted < 60 else 3.0
    _open: Counter[str] = field(init=False, default_factory=Counter)

    async def open(self, request: HelperRequest, last_event: str) -> OpenedEvents | FailureAnswer | None:
        """Return the stream, or the failure. Return None if the client already has the last event."""
        first = await self._look(request)
        if isinstance(first, FailureAnswer):
            return first
        if last_event == _ENDED and first.ending is not None:
            return None
        return OpenedEvents(request, first, last_event)

    @contextlib.contextmanager
    def place(self, opened: OpenedEvents) -> Iterator[FailureAnswer | None]:
        """Reserve a place for the stream during the block. Yields the failure if no place is free."""
        subject = opened.first.subject.casefold()
        if self._open[subject] >= self.most_of_subject or self._open.total() >= self.most:
            who = f" of {opened.first.subject}" if self._open[subject] >= self.most_of_subject else ""
            yield helper_messages.too_busy(f"too many operations{who} are streamed").failure
            return
        self._open[subject] += 1
        try:
            yield None
        finally:
            self._open[subject] -= 1
            if not self._open[subject]:
                del self._open[subject]

    async def events(self, opened: OpenedEvents, is_gone: IsGone) -> AsyncIterator[bytes]:
        """Yield the events that the client has not seen, until the operation, the client or the time ends.

        A line with a leading colon is a comment. It only shows that the stream is alive.
        """
        began = told = time.monotonic()
        yield f"retry: {_RETRY_MILLISECONDS}\n\n".encode()
        if opened.seen not in (_BEGUN, _ENDED):
            yield _event("begun", {"operation": opened.first.operation}, _BEGUN)
        now: WatchedOperation | FailureAnswer = opened.first
        while True:
            if isinstance(now, WatchedOperation) and now.ending is not None:
                yield _event("ended", _end_document(now.ending), _ENDED)
                return
            if isinstance(now, FailureAnswer) and now.code not in _PASSES:
                # The token has ended, or the operation is forgotten. The status tells a client that reconnects.
                yield _event("problem", problem_of(now).model_dump(exclude_none=True))
                return
            lasted = time.monotonic() - began
            if lasted >= self.seconds or await is_gone(min(self.pause(lasted), self.seconds - lasted)):
                return
            if time.monotonic() - told >= _COMMENT_SECONDS:
                told = time.monotonic()
                yield b": it goes on\n\n"
            now = await self._look(opened.request)

    async def _look(self, request: HelperRequest) -> WatchedOperation | FailureAnswer:
        # In extra threads, so that streams delay no request.
        ending = await asyncio.to_thread(self.helper.ask, request)
        if not isinstance(ending, ResultAnswer):
            return ending if isinstance(ending, FailureAnswer) else _of_another_release()
        try:
            return WatchedOperation.model_validate(ending.document)
        except ValidationError:
            return _of_another_release()


def _of_another_release() -> FailureAnswer:
    return failure_of(ConsistencyError("the helper is of another release", hint="restart zsnapdb-serve"))


def _end_document(ending: ResultAnswer | FailureAnswer) -> dict[str, object]:
    """Return the answer that `GET` of the operation would have: its status and its body."""
    if isinstance(ending, FailureAnswer):
        problem = problem_of(ending)
        return {"status": problem.status, "body": problem.model_dump(exclude_none=True)}
    return {"status": 200, "body": dict(ending.document)}


def _event(name: str, data: dict[str, object], number: str = "") -> bytes:
    """Return an event. JSON in ASCII has no line break, whatever text of others it contains."""
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()

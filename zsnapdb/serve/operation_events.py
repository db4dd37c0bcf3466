"""An operation as a stream of server-sent events: that it is under way, and how it ended.

Nothing is kept here between two looks at the operation, which is the helper's: whoever comes back after a restart of
the web process, with the number of the last event that he has seen, gets those that are left. Source: HTML Living
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
from zsnapdb.serve import messages
from zsnapdb.serve.messages import FailureAnswer, HelperClient, ResultAnswer, WatchedOperation, failure_of, problem_of
from zsnapdb.serve.verbs import HelperRequest

MEDIA_TYPE = "text/event-stream"
_BEGUN, _ENDED = "1", "2"
"""The numbers of the two events."""
_RETRY_MILLISECONDS = 2000
_COMMENT_SECONDS = 15.0
"""Proxies close what is silent for long."""
_PASSES = (BusyError.code, UnreachableError.code)
"""What says nothing about the operation: the helper is busy, or starts anew."""

IsGone = Callable[[float], Awaitable[bool]]
"""Waits so many seconds for the client to go away; says whether it did."""


@dataclass(frozen=True)
class OpenedEvents:
    """A stream that may begin, unless there are too many. `seen` is the last event that the client has."""

    request: HelperRequest
    first: WatchedOperation
    seen: str


@dataclass
class OperationEvents:
    """Streams by one helper, at most so many of a subject and in all, each for so many seconds.

    A stream holds no thread while it waits. A client that reads slowly gets less often what there is, and is ended with
    the stream. `watch` returns when it is looked again, by how many seconds the stream has lasted.
    """

    helper: HelperClient
    most_of_subject: int = 8
    most: int = 80
    seconds: float = 300.0
    pause: Callable[[float], float] = lambda lasted: 0.5 if lasted < 10 else 1.0 if lasted < 60 else 3.0
    _open: Counter[str] = field(init=False, default_factory=Counter)

    async def open(self, request: HelperRequest, last_event: str) -> OpenedEvents | FailureAnswer | None:
        """Return the stream, why there is none, or None if the client has seen its end."""
        first = await self._look(request)
        if isinstance(first, FailureAnswer):
            return first
        if last_event == _ENDED and first.ending is not None:
            return None
        return OpenedEvents(request, first, last_event)

    @contextlib.contextmanager
    def place(self, opened: OpenedEvents) -> Iterator[FailureAnswer | None]:
        """Hold a place for the stream during the block. Yields why there is none, if there is none."""
        subject = opened.first.subject
        if self._open[subject] >= self.most_of_subject or self._open.total() >= self.most:
            who = f" of {subject}" if self._open[subject] >= self.most_of_subject else ""
            yield messages.too_busy(f"too many operations{who} are streamed").failure
            return
        self._open[subject] += 1
        try:
            yield None
        finally:
            self._open[subject] -= 1
            if not self._open[subject]:
                del self._open[subject]

    async def events(self, opened: OpenedEvents, is_gone: IsGone) -> AsyncIterator[bytes]:
        """Yield the events that the client has not seen, until the operation, the client or the time is over.

        What begins with a colon is a comment, which says only that the stream goes on.
        """
        began = told = time.monotonic()
        yield f"retry: {_RETRY_MILLISECONDS}\n\n".encode()
        if opened.seen not in (_BEGUN, _ENDED):
            yield _event("begun", {"operation": opened.first.operation}, _BEGUN)
        now: WatchedOperation | FailureAnswer = opened.first
        while True:
            if isinstance(now, WatchedOperation) and now.ending is not None:
                yield _event("ended", _ended(now.ending), _ENDED)
                return
            if isinstance(now, FailureAnswer) and now.code not in _PASSES:
                # The token has ended, or the operation is forgotten. Who comes back is told so by the status.
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
        # In threads of their own: streams keep no request waiting.
        ending = await asyncio.to_thread(self.helper.ask, request)
        if not isinstance(ending, ResultAnswer):
            return ending if isinstance(ending, FailureAnswer) else _of_another_release()
        try:
            return WatchedOperation.model_validate(ending.document)
        except ValidationError:
            return _of_another_release()


def _of_another_release() -> FailureAnswer:
    return failure_of(ConsistencyError("the helper is of another release", hint="restart zsnapdb-serve"))


def _ended(ending: ResultAnswer | FailureAnswer) -> dict[str, object]:
    """Return what `GET` of the operation would answer: its status and its body."""
    if isinstance(ending, FailureAnswer):
        problem = problem_of(ending)
        return {"status": problem.status, "body": problem.model_dump(exclude_none=True)}
    return {"status": 200, "body": dict(ending.document)}


def _event(name: str, data: dict[str, object], number: str = "") -> bytes:
    """Return an event. JSON in ASCII on one line has no end of a line in it, whatever text of others it has."""
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()

"""The API's answers (documents, problems, operations and their events), and the reader of request bodies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from zsnapdb.base.errors import BusyError, ConsistencyError, UnreachableError
from zsnapdb.serve import helper_messages
from zsnapdb.serve.helper_messages import (
    MEDIA_TYPE,
    MOST_BYTES,
    Ending,
    FailureAnswer,
    HelperClient,
    HelperRequest,
    PendingAnswer,
    ProblemDetails,
    ResultAnswer,
    WatchedOperation,
    failure_of,
    headers_of,
    problem_of,
)

EVENTS_TYPE = "text/event-stream"
_BEGUN, _ENDED = "1", "2"
"""The numbers of the events `begun` and `ended`."""
_RETRY_MILLISECONDS = 2000
_COMMENT_SECONDS = 15.0
"""Seconds between comments in a stream. Without comments, a proxy closes a connection that is idle for too long."""
_PASSES = (BusyError.code, UnreachableError.code)
"""Codes of errors that do not describe the operation, because the helper is busy or restarting."""

IsGone = Callable[[float], Awaitable[bool]]
"""Waits at most the given seconds for the client to disconnect, and returns whether the client disconnected."""


@dataclass(frozen=True)
class OpenedEvents:
    """A stream of events that starts only if fewer streams than the limit are open.

    `seen` is the number of the last event that the client received.
    """

    request: HelperRequest
    first: WatchedOperation
    seen: str


@dataclass
class OperationEvents:
    """Event streams about the operations of one helper.

    The number of streams per subject, their total number and their duration are limited.

    A stream occupies no thread while it waits. A client that reads slowly delays only its own stream, and is
    disconnected when the stream ends. `pause` takes the age of the stream, and returns the seconds until the next
    check.
    """

    helper: HelperClient
    most_of_subject: int = 8
    most: int = 80
    seconds: float = 300.0
    pause: Callable[[float], float] = lambda lasted: 0.5 if lasted < 10 else 1.0 if lasted < 60 else 3.0
    _open: Counter[str] = field(init=False, default_factory=Counter)

    async def open(self, request: HelperRequest, last_event: str) -> OpenedEvents | FailureAnswer | None:
        """Return the stream, or a failure; None if the client already has the last event."""
        first = await self._look(request)
        if isinstance(first, FailureAnswer):
            return first
        if last_event == _ENDED and first.ending is not None:
            return None
        return OpenedEvents(request, first, last_event)

    @contextlib.contextmanager
    def place(self, opened: OpenedEvents) -> Iterator[FailureAnswer | None]:
        """Count the stream as open during the block. If too many streams are open, yield the failure instead."""
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
        """Yield the events that the client has not seen.

        The stream lasts until the operation ends, the client disconnects or the stream's time limit is reached.

        A line that starts with a colon is a comment. Comments only show that the stream is alive.
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
                # The token has expired, or the operation's record was removed. A client that reconnects gets the reason
                # as an HTTP status.
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
        # Separate threads serve the streams, so that streams delay no request.
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
    """Return the status and the body that `GET` would return for the operation."""
    if isinstance(ending, FailureAnswer):
        problem = problem_of(ending)
        return {"status": problem.status, "body": problem.model_dump(exclude_none=True)}
    return {"status": 200, "body": dict(ending.document)}


def _event(name: str, data: dict[str, object], number: str = "") -> bytes:
    """Return an event. JSON in ASCII has no line break, even if it contains text of other subjects."""
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


ROOT = "/api/v1"
_TOO_LARGE, _TOO_SLOW = 413, 408
_BODY_SECONDS = 10.0
"""Seconds within which a client must send the whole body."""
CLOSES = {"Connection": "close"}
"""Headers of an answer that is sent before the whole request was received. They close the connection."""
_ACCEPTED = 202
_PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""An answer may contain the login of a clone, so it must not be stored."""
_NOT_KEPT_BACK = {"X-Accel-Buffering": "no"}
"""A proxy must forward each event immediately. nginx needs this header to do so."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyLimit:
    """Middleware that refuses a request body that is too slow or too large, before any part of it is parsed."""

    def __init__(self, app: AsgiApp, seconds: float = _BODY_SECONDS) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request with its whole body to the application. Answer 408 to a slow body, 413 to a large one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await _body(receive)
        except TimeoutError:
            why = "the body did not come in time"
            await refusal(_TOO_SLOW, BusyError.code, why, "send it again", CLOSES)(scope, receive, send)
            return
        if body is None:
            return
        if len(body) > MOST_BYTES:
            large = refusal(_TOO_LARGE, "too-large", f"the body is longer than {MOST_BYTES} bytes", "send less", CLOSES)
            await large(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send)


async def _body(receive: Receive) -> bytes | None:
    """Return the body, or None if the client disconnected. At most the maximum size of a request is read."""
    body, more = bytearray(), True
    while more and len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


class EventsResponse(Response):
    """Response that sends events until the operation ends, its time limit is reached, or the client disconnects.

    When the stream ends, a client that does not read the rest is disconnected.
    """

    media_type = EVENTS_TYPE

    def __init__(self, events: OperationEvents, opened: OpenedEvents) -> None:
        super().__init__(headers={**_PRIVATE, **_NOT_KEPT_BACK})
        del self.headers["content-length"]
        self._events, self._opened = events, opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def is_gone(seconds: float) -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    return True
            return False

        with self._events.place(self._opened) as refused, contextlib.suppress(TimeoutError):
            if refused is not None:
                await problem_answer(problem_of(refused))(scope, receive, send)
                return
            async with asyncio.timeout(self._events.seconds + _BODY_SECONDS):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for part in self._events.events(self._opened, is_gone):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def answer(ending: Ending, done: int) -> JSONResponse:
    """Return the helper's answer as HTTP. `done` is the HTTP status for a success."""
    if isinstance(ending, FailureAnswer):
        return problem_answer(problem_of(ending))
    if isinstance(ending, PendingAnswer):
        where = f"{ROOT}/operations/{ending.operation}"
        return JSONResponse({"operation": ending.operation}, _ACCEPTED, {"Location": where, **_PRIVATE})
    return JSONResponse(dict(ending.document), done, _PRIVATE)


def problem_answer(problem: ProblemDetails, more: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the HTTP answer for a problem, with the headers that its status requires."""
    headers = {**_PRIVATE, **headers_of(problem.status), **(more or {})}
    return JSONResponse(problem.model_dump(exclude_none=True), problem.status, headers, media_type=MEDIA_TYPE)


def refusal(
    status: int, code: str, detail: str, hint: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that is refused without asking the helper."""
    return problem_answer(ProblemDetails(title=code, status=status, detail=detail, code=code, hint=hint), headers)

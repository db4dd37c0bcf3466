"""The answers of the API, and its reading of a body: documents, problems, operations, streams of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

from zsnapdb.base.errors import BusyError
from zsnapdb.serve.helper_messages import (
    MEDIA_TYPE,
    Ending,
    FailureAnswer,
    PendingAnswer,
    ProblemDetails,
    headers_of,
    problem_of,
)
from zsnapdb.serve.operation_events import MEDIA_TYPE as EVENTS_TYPE
from zsnapdb.serve.operation_events import OpenedEvents, OperationEvents
from zsnapdb.serve.verbs import MOST_BYTES

ROOT = "/api/v1"
_TOO_LARGE, _TOO_SLOW = 413, 408
_BODY_SECONDS = 10.0
"""The time that a client has to send a body."""
CLOSES = {"Connection": "close"}
"""The headers of an answer before the end of its request: a client that keeps sending loses the connection."""
_ACCEPTED = 202
_PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""An answer can have the login of a clone."""
_NOT_KEPT_BACK = {"X-Accel-Buffering": "no"}
"""A proxy passes events on at once (nginx needs this header)."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyLimit:
    """Refuses a body that is slow, or larger than the helper accepts, before any of it is parsed."""

    def __init__(self, app: AsgiApp, seconds: float = _BODY_SECONDS) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or answer 408 or 413."""
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
    """Return the body, without reading more than a request may have. Return None if the client disconnected."""
    body, more = bytearray(), True
    while more and len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


class EventsResponse(Response):
    """Sends a stream of events until it, its time or the client ends.

    A client that does not read is then disconnected.
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
    """Return the helper's answer as HTTP. `done` is the status of success."""
    if isinstance(ending, FailureAnswer):
        return problem_answer(problem_of(ending))
    if isinstance(ending, PendingAnswer):
        where = f"{ROOT}/operations/{ending.operation}"
        return JSONResponse({"operation": ending.operation}, _ACCEPTED, {"Location": where, **_PRIVATE})
    return JSONResponse(dict(ending.document), done, _PRIVATE)


def problem_answer(problem: ProblemDetails, more: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer for a problem, with the headers that it needs."""
    headers = {**_PRIVATE, **headers_of(problem.status), **(more or {})}
    return JSONResponse(problem.model_dump(exclude_none=True), problem.status, headers, media_type=MEDIA_TYPE)


def refusal(
    status: int, code: str, detail: str, hint: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that is not passed on to the helper."""
    return problem_answer(ProblemDetails(title=code, status=status, detail=detail, code=code, hint=hint), headers)

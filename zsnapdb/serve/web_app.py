"""The API under /api/v1: it turns HTTP into requests of the helper, and its answers into HTTP. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from zsnapdb import __version__
from zsnapdb.base.errors import BusyError
from zsnapdb.base.printed import printed
from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.messages import UNAUTHENTICATED, Ending, FailureAnswer, PendingAnswer
from zsnapdb.serve.operation_events import MEDIA_TYPE as EVENTS_TYPE
from zsnapdb.serve.operation_events import OpenedEvents, OperationEvents
from zsnapdb.serve.problems import MEDIA_TYPE, ProblemDetails, headers_of, problem_of
from zsnapdb.serve.protection_documents import EvidenceDocument, ObjectivesDocument, PointsDocument, ToldDrills
from zsnapdb.serve.verbs import (
    MOST_BYTES,
    MOST_OF_BEARER,
    BeatCloneVerb,
    CancelOperationVerb,
    ChosenBranch,
    CloneLogsVerb,
    CommitCloneVerb,
    CreateBranchVerb,
    CreateCloneVerb,
    DeleteBranchVerb,
    DestroyCloneVerb,
    DiffBranchesVerb,
    ExtendCloneVerb,
    FleetQuery,
    GetCloneVerb,
    GetOperationVerb,
    HelperRequest,
    IdempotencyKey,
    InstancePointsVerb,
    InstanceWord,
    ListBranchesVerb,
    ListClonesVerb,
    ListDrillsVerb,
    ListEvidenceVerb,
    ListFleetVerb,
    ListInstancesVerb,
    ListObjectivesVerb,
    LogBranchVerb,
    Name,
    NewBranch,
    NewClone,
    NewCommit,
    NewLease,
    NewProtection,
    OperationId,
    ProtectCloneVerb,
    ResetCloneVerb,
    SwitchBranchVerb,
    TwoStates,
    UnprotectCloneVerb,
    Verb,
    WatchOperationVerb,
)
from zsnapdb.serve.web_models import (
    KINDS,
    BegunOperation,
    CancelledOperation,
    CommitsQuery,
    DrillsQuery,
    EvidenceQuery,
    HeartbeatDocument,
    LogsDocument,
    LogsQuery,
)

_ROOT = "/api/v1"
_TOO_LARGE, _TOO_SLOW = 413, 408
_BODY_SECONDS = 10.0
"""How long a client may take to send a body."""
CLOSES = {"Connection": "close"}
"""What an answer says that comes before the end of its request: whoever goes on sending keeps no connection."""
_ACCEPTED = 202
_UNREADABLE = 400
"""What FastAPI answers to a body that is no text, or is nested too deeply."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
CloneInPath = Annotated[Name, Path(alias="name")]
InstanceInPath = Annotated[InstanceWord, Path(alias="name")]
OperationInPath = Annotated[OperationId, Path(alias="id")]
Key = Annotated[IdempotencyKey | None, Header(alias="Idempotency-Key")]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]


class BodyLimit:
    """Refuses a request whose body is larger than the helper would take, or slow, before anything of it is parsed."""

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
            await _problem(_TOO_SLOW, BusyError.code, why, "send it again", CLOSES)(scope, receive, send)
            return
        if body is None:
            return
        if len(body) > MOST_BYTES:
            large = _problem(
                _TOO_LARGE, "too-large", f"the body is longer than {MOST_BYTES} bytes", "send less", CLOSES
            )
            await large(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send)


async def _body(receive: Receive) -> bytes | None:
    """Return the body, of which no more is read than a request may have; None if the client went away."""
    body, more = bytearray(), True
    while more and len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


class CloneApi:
    """The paths of the API. Each asks the helper once. FastAPI runs them in threads: the helper may take seconds."""

    def __init__(self, helper: HelperClient, events: OperationEvents) -> None:
        self._helper, self._events = helper, events

    def _ask(self, bearer: HTTPAuthorizationCredentials | None, verb: Verb, done: int = 200) -> JSONResponse:
        return _response(self._helper.ask(_request(bearer, verb)), done)

    def instances(self, bearer: Bearer = None) -> JSONResponse:
        """List the instances that clones can be made of."""
        return self._ask(bearer, ListInstancesVerb())

    def points(self, name: InstanceInPath, bearer: Bearer = None) -> JSONResponse:
        """Show of which states of an instance clones can be made: times for `at`, sets for `from`."""
        return self._ask(bearer, InstancePointsVerb(name=name))

    def objectives(self, bearer: Bearer = None) -> JSONResponse:
        """Show whether the objectives of each instance are met."""
        return self._ask(bearer, ListObjectivesVerb())

    def drills(self, asked: Annotated[DrillsQuery, Query()], bearer: Bearer = None) -> JSONResponse:
        """List the newest drills of an instance."""
        return self._ask(bearer, ListDrillsVerb(instance=asked.instance, limit=asked.limit))

    def evidence(self, asked: Annotated[EvidenceQuery, Query()], bearer: Bearer = None) -> JSONResponse:
        """List records of the evidence log of an instance by number, after the one that `after` names."""
        return self._ask(bearer, ListEvidenceVerb(instance=asked.instance, after=asked.after, limit=asked.limit))

    def fleet(self, asked: Annotated[FleetQuery, Query()], bearer: Bearer = None) -> JSONResponse:
        """List all instances of all hosts, red first, as they were read last."""
        return self._ask(bearer, ListFleetVerb(asked=asked))

    def clones(self, bearer: Bearer = None) -> JSONResponse:
        """List the clones that you may see."""
        return self._ask(bearer, ListClonesVerb())

    def clone(self, name: CloneInPath, bearer: Bearer = None) -> JSONResponse:
        """Show one clone."""
        return self._ask(bearer, GetCloneVerb(name=name))

    def create(self, wanted: NewClone, bearer: Bearer = None, key: Key = None) -> JSONResponse:
        """Make a clone. The answer has its login, once. 202 with an operation if it takes longer."""
        return self._ask(bearer, CreateCloneVerb(wanted=wanted, key=key), 201)

    def reset(self, name: CloneInPath, bearer: Bearer = None, key: Key = None) -> JSONResponse:
        """Give a clone its first data again."""
        return self._ask(bearer, ResetCloneVerb(name=name, key=key))

    def extend(
        self, name: CloneInPath, lease: Annotated[NewLease, Body()], bearer: Bearer = None, key: Key = None
    ) -> JSONResponse:
        """Extend the lease of a clone."""
        return self._ask(bearer, ExtendCloneVerb(name=name, lease=lease, key=key))

    def protect(
        self, name: CloneInPath, protection: Annotated[NewProtection, Body()], bearer: Bearer = None, key: Key = None
    ) -> JSONResponse:
        """Keep a clone from `zsnapdb reap` for some time."""
        return self._ask(bearer, ProtectCloneVerb(name=name, protection=protection, key=key))

    def unprotect(self, name: CloneInPath, bearer: Bearer = None, key: Key = None) -> JSONResponse:
        """End the protection of a clone."""
        return self._ask(bearer, UnprotectCloneVerb(name=name, key=key))

    def commit(
        self,
        name: CloneInPath,
        commit: Annotated[NewCommit | None, Body()] = None,
        bearer: Bearer = None,
        key: Key = None,
    ) -> JSONResponse:
        """Keep the present state of a clone. `from` of a new clone takes the `id` of the answer."""
        return self._ask(bearer, CommitCloneVerb(name=name, commit=commit or NewCommit(), key=key))

    def branches(self, name: CloneInPath, bearer: Bearer = None) -> JSONResponse:
        """List the branches of a clone, each with its newest commit."""
        return self._ask(bearer, ListBranchesVerb(name=name))

    def create_branch(
        self, name: CloneInPath, wanted: NewBranch, bearer: Bearer = None, key: Key = None
    ) -> JSONResponse:
        """Begin a branch of a clone: at `from`, else at the present state, which is committed if need be."""
        return self._ask(bearer, CreateBranchVerb(name=name, wanted=wanted, key=key), 201)

    def switch_branch(
        self, name: CloneInPath, chosen: ChosenBranch, bearer: Bearer = None, key: Key = None
    ) -> JSONResponse:
        """Give a clone the newest commit of another branch. What was written on the one that is left is committed."""
        return self._ask(bearer, SwitchBranchVerb(name=name, chosen=chosen, key=key))

    def delete_branch(
        self, name: CloneInPath, chosen: Annotated[ChosenBranch, Query()], bearer: Bearer = None, key: Key = None
    ) -> JSONResponse:
        """Forget a branch of a clone. Its commits stay as long as the clone."""
        return self._ask(bearer, DeleteBranchVerb(name=name, chosen=chosen, key=key))

    def commits(
        self, name: CloneInPath, asked: Annotated[CommitsQuery, Query()], bearer: Bearer = None
    ) -> JSONResponse:
        """List the commits that lead to a branch or a commit of a clone, newest first."""
        return self._ask(bearer, LogBranchVerb(name=name, state=asked.of))

    def diff(self, name: CloneInPath, states: TwoStates, bearer: Bearer = None, key: Key = None) -> JSONResponse:
        """Compare two branches or commits of a clone: definitions, and rows by table. It takes ten minutes at most."""
        return self._ask(bearer, DiffBranchesVerb(name=name, states=states, key=key))

    def logs(self, name: CloneInPath, asked: Annotated[LogsQuery, Query()], bearer: Bearer = None) -> JSONResponse:
        """Show the last lines of the error log of a clone's server, at most 64 KiB. Others chose their text."""
        return self._ask(bearer, CloneLogsVerb(name=name, lines=asked.lines))

    def beat(self, name: CloneInPath, bearer: Bearer = None) -> JSONResponse:
        """Say that the holder of a clone is there, which was made with `heartbeat`."""
        return self._ask(bearer, BeatCloneVerb(name=name))

    def destroy(self, name: CloneInPath, bearer: Bearer = None, key: Key = None) -> JSONResponse:
        """Destroy a clone."""
        return self._ask(bearer, DestroyCloneVerb(name=name, key=key))

    def operation(self, operation: OperationInPath, bearer: Bearer = None) -> JSONResponse:
        """Show what became of a request: 202 while it is under way, then the answer that the request would have had."""
        return self._ask(bearer, GetOperationVerb(id=operation))

    async def events(
        self,
        operation: OperationInPath,
        bearer: Bearer = None,
        last: Annotated[str, Header(alias="Last-Event-ID", max_length=100)] = "",
    ) -> Response:
        """Stream what becomes of a request, as server-sent events: `begun`, and `ended` with status and body.

        A stream ends after five minutes. Whoever comes back with the number of the last event gets what is left: 204 if
        nothing is.
        """
        request = _request(bearer, WatchOperationVerb(id=operation))
        opened = await self._events.open(request, last)
        if isinstance(opened, FailureAnswer):
            return _told(problem_of(opened))
        return _EventsResponse(self._events, opened) if opened is not None else Response(status_code=204)

    def cancel(self, operation: OperationInPath, bearer: Bearer = None) -> JSONResponse:
        """End a request that is under way: what it began is undone. 202 if that takes longer, 409 if it had ended."""
        return self._ask(bearer, CancelOperationVerb(id=operation))


def _request(bearer: HTTPAuthorizationCredentials | None, verb: Verb) -> HelperRequest:
    """Return what the helper is asked. It alone says whether a token is good, and that one is missing."""
    token = bearer.credentials if bearer is not None else ""
    is_sane = len(token) <= MOST_OF_BEARER and all("!" <= one <= "~" for one in token)
    return HelperRequest(token=token if is_sane else "", verb=verb)


class _EventsResponse(Response):
    """Sends a stream of events until it, its time or the client ends. A client that does not read is closed then."""

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
                await _told(problem_of(refused))(scope, receive, send)
                return
            async with asyncio.timeout(self._events.seconds + _BODY_SECONDS):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for part in self._events.events(self._opened, is_gone):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})


_DOCUMENTS: Mapping[str, type[BaseModel]] = {
    "points": PointsDocument,
    "objectives": ObjectivesDocument,
    "drills": ToldDrills,
    "evidence": EvidenceDocument,
    "logs": LogsDocument,
    "beat": HeartbeatDocument,
    "cancel": CancelledOperation,
}
"""The answers that are no documents of the command line."""
_STREAM: dict[str, Any] = {"description": "Events", "content": {EVENTS_TYPE: {"schema": {"type": "string"}}}}


def _paths(api: CloneApi) -> tuple[tuple[str, str, Callable[..., Response | Awaitable[Response]], int], ...]:
    """Return each path below the root with its method, what answers it, and the status of what is done."""
    clone, operation = "/clones/{name}", "/operations/{id}"
    return (
        ("/instances", "GET", api.instances, 200),
        ("/instances/{name}/points", "GET", api.points, 200),
        ("/clones", "GET", api.clones, 200),
        ("/clones", "POST", api.create, 201),
        (clone, "GET", api.clone, 200),
        (clone, "DELETE", api.destroy, 200),
        (f"{clone}/reset", "POST", api.reset, 200),
        (f"{clone}/extend", "POST", api.extend, 200),
        (f"{clone}/protect", "POST", api.protect, 200),
        (f"{clone}/unprotect", "POST", api.unprotect, 200),
        (f"{clone}/commit", "POST", api.commit, 200),
        (f"{clone}/branches", "GET", api.branches, 200),
        (f"{clone}/branches", "POST", api.create_branch, 201),
        (f"{clone}/branches", "DELETE", api.delete_branch, 200),
        (f"{clone}/switch", "POST", api.switch_branch, 200),
        (f"{clone}/commits", "GET", api.commits, 200),
        (f"{clone}/diff", "POST", api.diff, 200),
        (f"{clone}/logs", "GET", api.logs, 200),
        (f"{clone}/heartbeat", "POST", api.beat, 200),
        (operation, "GET", api.operation, 200),
        (f"{operation}/events", "GET", api.events, 200),
        (operation, "DELETE", api.cancel, 200),
        ("/objectives", "GET", api.objectives, 200),
        ("/drills", "GET", api.drills, 200),
        ("/evidence", "GET", api.evidence, 200),
        ("/fleet", "GET", api.fleet, 200),
    )


def _may_take_longer(endpoint: str, method: str) -> bool:
    """Whether the answer may be an operation."""
    return (endpoint in KINDS and method != "GET") or endpoint in ("operation", "cancel")


def create_app(helper: HelperClient, events: OperationEvents | None = None) -> FastAPI:
    """Return the application, with these streams of events (None: the usual ones).

    Its schema is at /api/v1/openapi.json; no page of it loads anything from elsewhere.
    """
    app = FastAPI(
        title="zsnapdb",
        version=__version__,
        openapi_url=f"{_ROOT}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api = CloneApi(helper, events or OperationEvents(helper))
    problems: dict[int | str, dict[str, Any]] = {"default": {"model": ProblemDetails}}
    begun: dict[int | str, dict[str, Any]] = {202: {"model": BegunOperation, "description": "It is under way"}}
    for path, method, endpoint, status in _paths(api):
        known, kind = _DOCUMENTS.get(endpoint.__name__), KINDS.get(endpoint.__name__)
        told: dict[int | str, dict[str, Any]] = {status: {"model": known}} if known is not None else {}
        told |= {status: _STREAM} if endpoint == api.events else {}
        told |= {status: {"description": f"The document `{kind}` of the command line"}} if kind is not None else {}
        app.add_api_route(
            f"{_ROOT}{path}",
            endpoint,
            methods=[method],
            status_code=status,
            response_model=None,
            response_class=Response if endpoint == api.events else JSONResponse,
            responses={**problems, **told, **(begun if _may_take_longer(endpoint.__name__, method) else {})},
        )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(BodyLimit)
    return app


def _response(ending: Ending, done: int) -> JSONResponse:
    if isinstance(ending, FailureAnswer):
        return _told(problem_of(ending))
    if isinstance(ending, PendingAnswer):
        where = f"{_ROOT}/operations/{ending.operation}"
        return JSONResponse({"operation": ending.operation}, _ACCEPTED, {"Location": where, **_PRIVATE})
    return JSONResponse(dict(ending.document), done, _PRIVATE)


_PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""An answer can have the login of a clone."""
_NOT_KEPT_BACK = {"X-Accel-Buffering": "no"}
"""A proxy passes events on as they come (nginx asks for this header)."""


def _told(problem: ProblemDetails, more: Mapping[str, str] | None = None) -> JSONResponse:
    headers = {**_PRIVATE, **headers_of(problem.status), **(more or {})}
    return JSONResponse(problem.model_dump(exclude_none=True), problem.status, headers, media_type=MEDIA_TYPE)


def _problem(
    status: int, code: str, detail: str, hint: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return _told(ProblemDetails(title=code, status=status, detail=detail, code=code, hint=hint), headers)


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer 422 with what is wrong where, and no value that was sent. No token is looked at for that."""
    assert isinstance(error, RequestValidationError)
    found = [
        f"{printed('.'.join(str(part)[:40] for part in one.get('loc', ())))}: {one.get('msg', '')}"
        for one in error.errors()[:5]
    ]
    return _problem(422, "usage", "; ".join(found), f"{_ROOT}/openapi.json says what is known")


def _no_route(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == _UNREADABLE:
        return _problem(422, "usage", "the body is no JSON in UTF-8", f"{_ROOT}/openapi.json says what is known")
    code = {401: UNAUTHENTICATED, 404: "unknown-path", 405: "method"}.get(error.status_code, "http")
    return _problem(error.status_code, code, error.detail, f"{_ROOT}/openapi.json lists the paths")

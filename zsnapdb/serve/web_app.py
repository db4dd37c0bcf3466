"""The API under /api/v1: it turns HTTP into requests of the helper, and its answers into HTTP. It decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from zsnapdb import __version__
from zsnapdb.base.foreign_text import printed
from zsnapdb.serve.messages import UNAUTHENTICATED, FailureAnswer, HelperClient
from zsnapdb.serve.operation_events import MEDIA_TYPE as EVENTS_TYPE
from zsnapdb.serve.operation_events import OperationEvents
from zsnapdb.serve.problems import ProblemDetails, problem_of
from zsnapdb.serve.protection_documents import EvidenceDocument, ObjectivesDocument, PointsDocument, ToldDrills
from zsnapdb.serve.verbs import (
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
from zsnapdb.serve.web_answers import (
    KINDS,
    ROOT,
    BegunOperation,
    BodyLimit,
    CancelledOperation,
    CommitsQuery,
    DrillsQuery,
    EventsResponse,
    EvidenceQuery,
    HeartbeatDocument,
    LogsDocument,
    LogsQuery,
    answer,
    problem_answer,
    refusal,
)

_UNREADABLE = 400
"""What FastAPI answers to a body that is no text, or is nested too deeply."""

CloneInPath = Annotated[Name, Path(alias="name")]
InstanceInPath = Annotated[InstanceWord, Path(alias="name")]
OperationInPath = Annotated[OperationId, Path(alias="id")]
Key = Annotated[IdempotencyKey | None, Header(alias="Idempotency-Key")]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]


class CloneApi:
    """The paths of the API. Each asks the helper once. FastAPI runs them in threads: the helper may take seconds."""

    def __init__(self, helper: HelperClient, events: OperationEvents) -> None:
        self._helper, self._events = helper, events

    def _ask(self, bearer: HTTPAuthorizationCredentials | None, verb: Verb, done: int = 200) -> JSONResponse:
        return answer(self._helper.ask(_request(bearer, verb)), done)

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
            return problem_answer(problem_of(opened))
        return EventsResponse(self._events, opened) if opened is not None else Response(status_code=204)

    def cancel(self, operation: OperationInPath, bearer: Bearer = None) -> JSONResponse:
        """End a request that is under way: what it began is undone. 202 if that takes longer, 409 if it had ended."""
        return self._ask(bearer, CancelOperationVerb(id=operation))


def _request(bearer: HTTPAuthorizationCredentials | None, verb: Verb) -> HelperRequest:
    """Return what the helper is asked. It alone says whether a token is good, and that one is missing."""
    token = bearer.credentials if bearer is not None else ""
    is_sane = len(token) <= MOST_OF_BEARER and all("!" <= one <= "~" for one in token)
    return HelperRequest(token=token if is_sane else "", verb=verb)


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
        openapi_url=f"{ROOT}/openapi.json",
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
            f"{ROOT}{path}",
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


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer 422 with what is wrong where, and no value that was sent. No token is looked at for that."""
    assert isinstance(error, RequestValidationError)
    found = [
        f"{printed('.'.join(str(part)[:40] for part in one.get('loc', ())))}: {one.get('msg', '')}"
        for one in error.errors()[:5]
    ]
    return refusal(422, "usage", "; ".join(found), f"{ROOT}/openapi.json says what is known")


def _no_route(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == _UNREADABLE:
        return refusal(422, "usage", "the body is no JSON in UTF-8", f"{ROOT}/openapi.json says what is known")
    code = {401: UNAUTHENTICATED, 404: "unknown-path", 405: "method"}.get(error.status_code, "http")
    return refusal(error.status_code, code, error.detail, f"{ROOT}/openapi.json lists the paths")

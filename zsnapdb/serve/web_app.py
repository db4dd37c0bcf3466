"""The API under /api/v1: it turns HTTP into requests of the helper, and its answers into HTTP. It decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Path, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from zsnapdb import __version__
from zsnapdb.base.printed import printed
from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.messages import UNAUTHENTICATED, Ending, FailureAnswer, PendingAnswer
from zsnapdb.serve.problems import MEDIA_TYPE, ProblemDetails, headers_of, problem_of
from zsnapdb.serve.verbs import (
    MOST_BYTES,
    MOST_OF_BEARER,
    CreateCloneVerb,
    DestroyCloneVerb,
    ExtendCloneVerb,
    GetCloneVerb,
    GetOperationVerb,
    HelperRequest,
    IdempotencyKey,
    ListClonesVerb,
    ListInstancesVerb,
    Name,
    NewClone,
    NewLease,
    OperationId,
    ResetCloneVerb,
    Verb,
)

_ROOT = "/api/v1"
_TOO_LARGE = 413
_ACCEPTED = 202
_UNREADABLE = 400
"""What FastAPI answers to a body that is no text, or is nested too deeply."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
CloneInPath = Annotated[Name, Path(alias="name")]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]


class BodyLimit:
    """Refuses a request whose body is larger than the helper would take, before anything of it is parsed."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MOST_BYTES:
                await _problem(_TOO_LARGE, "too-large", f"the body is longer than {MOST_BYTES} bytes")(
                    scope, receive, send
                )
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send)


class CloneApi:
    """The paths of the API. Each asks the helper once. FastAPI runs them in threads: the helper may take seconds."""

    def __init__(self, helper: HelperClient) -> None:
        self._helper = helper

    def _ask(self, bearer: HTTPAuthorizationCredentials | None, verb: Verb, done: int = 200) -> JSONResponse:
        token = bearer.credentials if bearer is not None else ""
        is_sane = len(token) <= MOST_OF_BEARER and all("!" <= one <= "~" for one in token)
        # The helper alone says whether a token is good, and that one is missing.
        return _response(self._helper.ask(HelperRequest(token=token if is_sane else "", verb=verb)), done)

    def instances(self, bearer: Bearer = None) -> JSONResponse:
        """List the instances that clones can be made of."""
        return self._ask(bearer, ListInstancesVerb())

    def clones(self, bearer: Bearer = None) -> JSONResponse:
        """List the clones that you may see."""
        return self._ask(bearer, ListClonesVerb())

    def clone(self, name: CloneInPath, bearer: Bearer = None) -> JSONResponse:
        """Show one clone."""
        return self._ask(bearer, GetCloneVerb(name=name))

    def create(
        self,
        wanted: NewClone,
        bearer: Bearer = None,
        key: Annotated[IdempotencyKey | None, Header(alias="Idempotency-Key")] = None,
    ) -> JSONResponse:
        """Make a clone. The answer has its login, once. 202 with an operation if it takes longer."""
        return self._ask(bearer, CreateCloneVerb(wanted=wanted, key=key), 201)

    def reset(self, name: CloneInPath, bearer: Bearer = None) -> JSONResponse:
        """Give a clone its first data again."""
        return self._ask(bearer, ResetCloneVerb(name=name))

    def extend(self, name: CloneInPath, lease: Annotated[NewLease, Body()], bearer: Bearer = None) -> JSONResponse:
        """Extend the lease of a clone."""
        return self._ask(bearer, ExtendCloneVerb(name=name, lease=lease))

    def destroy(self, name: CloneInPath, bearer: Bearer = None) -> JSONResponse:
        """Destroy a clone."""
        return self._ask(bearer, DestroyCloneVerb(name=name))

    def operation(self, id: Annotated[OperationId, Path()], bearer: Bearer = None) -> JSONResponse:  # noqa: A002
        """Show what became of a request: 202 while it is under way, then the answer that the request would have had."""
        return self._ask(bearer, GetOperationVerb(id=id))


def create_app(helper: HelperClient) -> FastAPI:
    """Return the application. Its schema is at /api/v1/openapi.json; no page of it loads anything from elsewhere."""
    app = FastAPI(
        title="zsnapdb",
        version=__version__,
        openapi_url=f"{_ROOT}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api = CloneApi(helper)
    problems: dict[int | str, dict[str, Any]] = {"default": {"model": ProblemDetails}}
    clone = f"{_ROOT}/clones/{{name}}"
    for path, method, endpoint, status in (
        (f"{_ROOT}/instances", "GET", api.instances, 200),
        (f"{_ROOT}/clones", "GET", api.clones, 200),
        (f"{_ROOT}/clones", "POST", api.create, 201),
        (clone, "GET", api.clone, 200),
        (clone, "DELETE", api.destroy, 200),
        (f"{clone}/reset", "POST", api.reset, 200),
        (f"{clone}/extend", "POST", api.extend, 200),
        (f"{_ROOT}/operations/{{id}}", "GET", api.operation, 200),
    ):
        app.add_api_route(path, endpoint, methods=[method], status_code=status, response_model=None, responses=problems)
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


def _told(problem: ProblemDetails) -> JSONResponse:
    headers = {**_PRIVATE, **headers_of(problem.status)}
    return JSONResponse(problem.model_dump(exclude_none=True), problem.status, headers, media_type=MEDIA_TYPE)


def _problem(status: int, code: str, detail: str, hint: str = "") -> JSONResponse:
    return _told(ProblemDetails(title=code, status=status, detail=detail, code=code, hint=hint))


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

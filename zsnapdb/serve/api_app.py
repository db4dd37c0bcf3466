"""The API under /api/v1. It translates between HTTP and requests to the helper, and makes no decisions."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints

from fastapi import Body, FastAPI, Header, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, create_model
from starlette.exceptions import HTTPException

from zsnapdb import __version__
from zsnapdb.base.pattern_words import problem_of_value
from zsnapdb.base.untrusted_text import printed
from zsnapdb.documents.api import BegunOperation
from zsnapdb.serve.api_answers import (
    EVENTS_TYPE,
    ROOT,
    BodyLimit,
    EventsResponse,
    OperationEvents,
    answer,
    problem_answer,
    refusal,
)
from zsnapdb.serve.helper_messages import (
    MOST_OF_BEARER,
    UNAUTHENTICATED,
    FailureAnswer,
    HelperClient,
    HelperRequest,
    ProblemDetails,
    Verb,
    problem_of,
)
from zsnapdb.verbs.argument_patterns import CloneGuid, IdempotencyKey, OperationId
from zsnapdb.verbs.requests import GUID_HEADER, VERBS, RoleVerb, VerbRoute, WatchOperationVerb

_UNREADABLE = 400
"""The HTTP status that FastAPI returns for a body that is not text, or is nested too deeply."""

Key = Annotated[IdempotencyKey | None, Header(alias="Idempotency-Key")]
Guid = Annotated[CloneGuid | None, Header(alias=GUID_HEADER)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]


class CloneApi:
    """The paths of the API. Each path sends one request to the helper.

    FastAPI runs the handlers in threads, because the helper can take seconds to answer.
    """

    def __init__(self, helper: HelperClient, events: OperationEvents) -> None:
        self._helper, self._events = helper, events

    def endpoint(self, verb: type[RoleVerb], route: VerbRoute) -> Callable[..., JSONResponse]:
        """Return the function that answers the verb's route. Its parameters are the verb's fields."""
        parts, loose = _parameters(verb, route)

        def asked(bearer: HTTPAuthorizationCredentials | None, **given: Any) -> JSONResponse:
            fields = given | (dict(given.pop("query")) if loose else {})
            named = {name: value for name, value in fields.items() if value is not None}
            return answer(self._helper.ask(_request(bearer, verb(**named))), route.status)

        asked.__name__, asked.__doc__ = route.name, verb.__doc__
        asked.__signature__ = Signature(parts)  # type: ignore[attr-defined]
        return asked

    async def events(
        self,
        operation: Annotated[OperationId, Path(alias="id")],
        bearer: Bearer = None,
        last: Annotated[str, Header(alias="Last-Event-ID", max_length=100)] = "",
    ) -> Response:
        """Stream the progress of an operation as server-sent events: `begun`, and `ended` with status and body.

        A stream ends after five minutes. A client that reconnects with the number of its last event gets the remaining
        events, or 204 if there are none.
        """
        request = _request(bearer, WatchOperationVerb(id=operation))
        opened = await self._events.open(request, last)
        if isinstance(opened, FailureAnswer):
            return problem_answer(problem_of(opened))
        return EventsResponse(self._events, opened) if opened is not None else Response(status_code=204)


def _parameters(verb: type[RoleVerb], route: VerbRoute) -> tuple[list[Parameter], bool]:
    """Return the parameters of a route, and whether the query string contains fields of the verb itself."""
    hints = get_type_hints(verb, include_extras=True)
    place: Any = Query() if route.method in ("GET", "DELETE") else Body()
    found: dict[str, tuple[Any, Any]] = {"bearer": (Bearer, None)}
    loose: dict[str, Any] = {}
    for name, field in verb.model_fields.items():
        if name == "key":
            found[name] = (Key, None)
        elif name == "guid":
            found[name] = (Guid, None)
        elif f"{{{name}}}" in route.path:
            found[name] = (Annotated[hints[name], Path()], Parameter.empty)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model: Any = field.annotation | None if route.can_be_empty else field.annotation
            found[name] = (Annotated[model, place], None if route.can_be_empty else Parameter.empty)
        elif name != "kind":
            loose[name] = (hints[name], ... if field.is_required() else field.default)
    if loose:
        model = create_model("Query", __config__=ConfigDict(extra="forbid", hide_input_in_errors=True), **loose)
        found["query"] = (Annotated[model, Query()], Parameter.empty)
    parts = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in found.items()
    ]
    return parts, bool(loose)


def _request(bearer: HTTPAuthorizationCredentials | None, verb: Verb) -> HelperRequest:
    """Return the request to the helper. Only the helper decides whether a token is valid or missing."""
    token = bearer.credentials if bearer is not None else ""
    is_sane = len(token) <= MOST_OF_BEARER and all("!" <= one <= "~" for one in token)
    return HelperRequest(token=token if is_sane else "", verb=verb)


_STREAM: dict[str, Any] = {"description": "Events", "content": {EVENTS_TYPE: {"schema": {"type": "string"}}}}


def _route_description(route: VerbRoute) -> dict[str, Any]:
    if isinstance(route.answers, str):
        return {"description": f"The document `{route.answers}` of the command line"}
    return {"model": route.answers} if route.answers is not None else {}


def create_app(helper: HelperClient, events: OperationEvents | None = None) -> FastAPI:
    """Return the HTTP application. `events` provides the streams of events (None means the default streams).

    The schema is at /api/v1/openapi.json. The pages that show the schema load nothing from other web sites.
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
    begun: dict[int | str, dict[str, Any]] = {202: {"model": BegunOperation, "description": "The operation is running"}}
    for verb in VERBS:
        if (route := verb.route) is not None:
            app.add_api_route(
                f"{ROOT}{route.path}",
                api.endpoint(verb, route),
                methods=[route.method],
                status_code=route.status,
                response_model=None,
                responses={
                    **problems,
                    **({route.status: told} if (told := _route_description(route)) else {}),
                    **(begun if verb.is_slow else {}),
                },
            )
    app.add_api_route(
        f"{ROOT}/operations/{{id}}/events",
        api.events,
        response_model=None,
        response_class=Response,
        responses={**problems, 200: _STREAM},
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(BodyLimit)
    return app


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer 422 with the names, but not the values, of the invalid fields. The token has not been checked yet."""
    assert isinstance(error, RequestValidationError)
    found = [
        f"{printed('.'.join(str(part)[:40] for part in one.get('loc', ())))}: {problem_of_value(one)}"
        for one in error.errors()[:5]
    ]
    return refusal(422, "usage", "; ".join(found), f"{ROOT}/openapi.json lists the valid requests")


def _no_route(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == _UNREADABLE:
        return refusal(422, "usage", "the body is no JSON in UTF-8", f"{ROOT}/openapi.json lists the valid requests")
    code = {401: UNAUTHENTICATED, 404: "unknown-path", 405: "method"}.get(error.status_code, "http")
    return refusal(error.status_code, code, error.detail, f"{ROOT}/openapi.json lists the paths")

"""HTTP application of the pages. It translates a browser's request into a page request, and the answer into HTML."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from zsnapdb.base.errors import BusyError, UnknownNameError, UsageError, ZsnapdbError
from zsnapdb.base.quantities import format_duration, size
from zsnapdb.base.untrusted_text import printed
from zsnapdb.serve.api_answers import CLOSES, AsgiApp, Message, Receive, Scope, Send
from zsnapdb.serve.api_app import create_app
from zsnapdb.serve.browser_pages import BrowserPages, ProtectionPages
from zsnapdb.serve.clone_pages import BranchPages, ClonePages, NewClonePages, OperationPages
from zsnapdb.serve.fleet_pages import FleetPages
from zsnapdb.serve.helper_messages import MOST_BYTES, HelperClient
from zsnapdb.serve.page_logins import LoginPages, PreLogins
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, address_of, came_by_https, form_of
from zsnapdb.serve.page_rows import clock_time
from zsnapdb.serve.page_visits import FileAnswer, PageHandler, Redirect, SiteAnswer
from zsnapdb.verbs import requests as verbs


class PageTemplates:
    """Renders pages. A missing value raises an error instead of being rendered as empty text."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("zsnapdb.serve", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalized,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "bytes": size,
            "clock": clock_time,
            "duration": format_duration,
            "words": _with_code,
            "lines": "\n".join,
        }

    def page(self, template: str, values: Mapping[str, object]) -> str:
        return self._environment.get_template(template).render(values)


def style_sheet() -> bytes:
    """Return the style sheet of all pages."""
    return resources.files("zsnapdb.serve").joinpath("templates/style.css").read_bytes()


def _finalized(value: object) -> object:
    # The output of a macro is already escaped. If it were escaped twice, the page would show the escape sequences.
    return printed(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _with_code(text: str) -> Markup:
    """Return a message as HTML, with text between backticks as code. Markup in the message is escaped."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printed(text)))))  # noqa: S704


_CODE = re.compile(r"`([^`\n]+)`")


_FORM_SECONDS = 10.0
"""Seconds within which a browser must send the whole form."""
_SEE_OTHER = 303
_UNREAD = (408, 413)
"""HTTP statuses of answers to requests whose form was not read completely."""
_API = "/api/"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of every answer. They forbid content from other web sites, scripts, frames and caching."""


def create_site(helper: HelperClient, pages: BrowserPages | None = None) -> AsgiApp:
    """Return the application of the whole web site, which consists of the API below /api and the pages."""
    api: AsgiApp = create_app(helper)
    browsers = create_pages(pages or BrowserPages(helper, lambda: datetime.now(UTC)))

    async def site(scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] != "http" or scope["path"].startswith(_API)
        await (api if is_api else browsers)(scope, receive, send)

    return site


def create_pages(pages: BrowserPages, pre_logins: PreLogins | None = None) -> AsgiApp:
    """Return the application of the pages. `pre_logins` contains the logins that browsers have started.

    Every answer has `_HEADERS`, even after an unexpected error.
    """
    http = _PagesHttp(pages)
    logins = LoginPages(pages.helper, pages.sessions, pre_logins or PreLogins())
    paths = (*_paths(pages), ("GET", "/login/{login}", logins.begin), ("GET", "/login/{login}/callback", logins.finish))
    routes = [
        Route("/style.css", _style, methods=["GET"]),
        *(Route(path, http.endpoint(handler), methods=[method]) for method, path, handler in paths),
    ]
    for route in routes:
        # Starlette also answers HEAD for GET routes. A HEAD request would count as the one time that a login is shown.
        route.methods = (route.methods or set()) - {"HEAD"}
    app = Starlette(routes=routes, exception_handlers={HTTPException: http.no_page, 500: http.unexpected})
    app.router.redirect_slashes = False

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        await app(scope, receive, send_with_headers)

    return guarded


def _paths(pages: BrowserPages) -> tuple[tuple[str, str, PageHandler], ...]:
    """Return method, path and handler of each page. A page that changes something requires POST."""
    clones, new, operations = ClonePages(pages.visits), NewClonePages(pages.visits), OperationPages(pages.visits)
    protection, fleet = ProtectionPages(pages.visits), FleetPages(pages.visits)
    branches = BranchPages(pages.visits)
    clone, operation = "/clones/{name}", "/operations/{id}"
    return (
        ("GET", "/", pages.overview),
        ("GET", "/login", pages.login_form),
        ("POST", "/login", pages.login),
        ("POST", "/logout", pages.logout),
        ("GET", "/new", new.new_form),
        ("POST", "/clones", new.create),
        ("GET", "/clones", clones.clones),
        ("GET", clone, clones.clone),
        ("GET", f"{clone}/reset", clones.confirm("reset")),
        ("POST", f"{clone}/reset", clones.begin(verbs.ResetCloneVerb, "Resetting")),
        ("POST", f"{clone}/start", clones.begin(verbs.StartCloneVerb, "Starting the server of")),
        ("POST", f"{clone}/stop", clones.begin(verbs.StopCloneVerb, "Stopping the server of")),
        ("POST", f"{clone}/extend", clones.begin(verbs.ExtendCloneVerb, "Extending", "lease")),
        ("POST", f"{clone}/protect", clones.begin(verbs.ProtectCloneVerb, "Protecting", "protection")),
        ("POST", f"{clone}/unprotect", clones.begin(verbs.UnprotectCloneVerb, "Ending the protection of")),
        ("POST", f"{clone}/commit", clones.begin(verbs.CommitCloneVerb, "Keeping the state of", "commit")),
        ("GET", f"{clone}/logs", clones.logs),
        ("POST", f"{clone}/login", clones.login(verbs.GetLoginVerb)),
        ("POST", f"{clone}/login/new", clones.login(verbs.NewLoginVerb)),
        ("GET", f"{clone}/branches", branches.branches),
        ("POST", f"{clone}/branches", clones.begin(verbs.CreateBranchVerb, "Creating a branch of", "wanted")),
        ("POST", f"{clone}/switch", clones.begin(verbs.SwitchBranchVerb, "Switching the branch of", "chosen")),
        ("GET", f"{clone}/destroy", clones.confirm("destroy")),
        ("POST", f"{clone}/destroy", clones.begin(verbs.DestroyCloneVerb, "Destroying")),
        ("GET", "/drills", protection.drills),
        ("GET", "/evidence", protection.evidence),
        ("GET", "/fleet", fleet.fleet),
        ("GET", "/fleet.csv", fleet.table),
        ("GET", "/fleet.json", fleet.document),
        ("GET", "/restore", protection.restore),
        ("GET", operation, operations.operation),
        ("POST", f"{operation}/cancel", operations.cancel),
    )


class _PagesHttp:
    """Translates between HTTP and page requests.

    Pages run in threads, because the helper can take seconds to answer.
    """

    def __init__(self, pages: BrowserPages) -> None:
        self._pages = pages
        self._templates = PageTemplates()

    def endpoint(self, handler: PageHandler) -> Callable[[Request], Awaitable[Response]]:
        """Return the function that answers requests for a page."""

        async def answer(request: Request) -> Response:
            try:
                form = await _form(request) if request.method == "POST" else {}
            except RefusedPage as refused:
                return self._response(self._pages.problem(refused, _page_request(request)))
            return await run_in_threadpool(self._answered, handler, _page_request(request, form))

        return answer

    def _answered(self, handler: PageHandler, request: PageRequest) -> Response:
        return self._response(self._pages.answer(handler, request))

    def _response(self, answer: SiteAnswer) -> Response:
        if isinstance(answer, FileAnswer):
            kept = {"Content-Disposition": f'attachment; filename="{answer.name}"'}
            return Response(answer.text, headers=kept, media_type=answer.media_type)
        headers = {"Set-Cookie": answer.cookie} if answer.cookie else {}
        if isinstance(answer, Redirect):
            return RedirectResponse(answer.path, _SEE_OTHER, headers)
        headers |= CLOSES if answer.status in _UNREAD else {}
        text = self._templates.page(answer.template, answer.values)
        return Response(text, answer.status, headers, media_type="text/html")

    async def no_page(self, request: Request, error: Exception) -> Response:
        """Answer a request for an unknown path, or with a method that the page does not accept."""
        assert isinstance(error, HTTPException)
        refused = RefusedPage.because(
            UnknownNameError("there is no such page", hint="the overview is at /"), error.status_code
        )
        return self._response(self._pages.problem(refused, _page_request(request)))

    async def unexpected(self, request: Request, _error: Exception) -> Response:
        """Answer a request that failed because of a bug in zsnapdb. uvicorn logs the error."""
        refused = RefusedPage.because(ZsnapdbError("an unexpected error", hint="the log of zsnapdb-serve has it"))
        return self._response(self._pages.problem(refused, _page_request(request)))


def _page_request(request: Request, form: Mapping[str, str] | None = None) -> PageRequest:
    headers = dict(request.headers)
    path: dict[str, Any] = request.path_params
    return PageRequest(
        is_https=came_by_https(request.url.scheme, headers),
        headers=headers,
        path=path,
        query=dict(request.query_params),
        form=form if form else {},
        address=address_of(request.client.host if request.client is not None else "", headers),
        target=f"{request.url.path}?{request.url.query}".rstrip("?") if request.method == "GET" else "",
    )


async def _form(request: Request) -> dict[str, str]:
    """Return the form in the body. At most the maximum size of a form is read."""
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    break
    except TimeoutError:
        raise RefusedPage.because(BusyError("the form did not arrive in time", hint="send it again"), 408) from None
    except ClientDisconnect:
        raise RefusedPage.because(UsageError("the form is incomplete", hint="send it again")) from None
    return form_of(request.headers.get("content-type", ""), bytes(body))


async def _style(_request: Request) -> Response:
    return Response(style_sheet(), media_type="text/css")

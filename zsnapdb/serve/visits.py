"""Who looks at a page, and what the helper answers to him. Every page begins here; nothing is decided.

What a page answers is a template with its values, or another place. `page_app.py` makes HTTP of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.errors import BusyError, NotAllowedError
from zsnapdb.serve import page_rows
from zsnapdb.serve.browser_sessions import BegunByBrowser, BrowserSession, BrowserSessions
from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.messages import UNAUTHENTICATED, BegunAnswer, Ending, FailureAnswer, PendingAnswer
from zsnapdb.serve.page_requests import CSRF_FIELD, PageRequest, RefusedPage, require_same_origin
from zsnapdb.serve.page_rows import Document, InstanceRow, Person
from zsnapdb.serve.verbs import GetSubjectVerb, HelperRequest, ListInstancesVerb, Verb


@dataclass(frozen=True)
class PageAnswer:
    """A page: its template, what it shows, its HTTP status, and a cookie to set ("": none)."""

    template: str
    values: Mapping[str, object]
    status: int = 200
    cookie: str = ""


@dataclass(frozen=True)
class FileAnswer:
    """A file that the browser keeps under this name."""

    text: str
    media_type: str
    name: str


@dataclass(frozen=True)
class OtherPlace:
    """Where the browser is sent, and a cookie to set ("": none)."""

    path: str
    cookie: str = ""


@dataclass(frozen=True)
class Visit:
    """A request of somebody whose token the helper has just accepted."""

    session: BrowserSession
    person: Person
    now: datetime

    def shows(self, template: str, status: int = 200, **values: object) -> PageAnswer:
        """Return a page for this person."""
        common = {"person": self.person, "csrf": self.session.csrf, "problem": None}
        return PageAnswer(template, {**common, **values}, status)


class NoSession(Exception):
    """The browser has no session, or none any more."""


class EndedSession(Exception):
    """The token of the session is not valid any more."""


SiteAnswer = PageAnswer | OtherPlace | FileAnswer
PageHandler = Callable[[PageRequest], SiteAnswer]


@dataclass(frozen=True)
class Visits:
    """Finds out who asks, and asks the helper for him. `now` is the time of day."""

    helper: HelperClient
    now: Callable[[], datetime]
    sessions: BrowserSessions

    def session(self, request: PageRequest) -> BrowserSession | None:
        """Return the session of the browser; None if it has none."""
        return self.sessions.find(request.session_id) if request.session_id else None

    def visit(self, request: PageRequest) -> Visit:
        """Return who asks. NoSession or EndedSession if nobody does whose token is valid now."""
        session = self.session(request)
        if session is None:
            raise NoSession
        return Visit(session, page_rows.person_of(self.ask(session, GetSubjectVerb())), self.now())

    def posted(self, request: PageRequest) -> BrowserSession:
        """Return the session whose own form this is. RefusedPage if another page or session made the form."""
        require_same_origin(request.is_https, request.headers)
        session = self.session(request)
        if session is None:
            raise NoSession
        if not session.is_csrf(request.form.get(CSRF_FIELD, "")):
            raise RefusedPage.because(
                NotAllowedError("the form is of no page of this session", hint="open the page anew and send its form")
            )
        return session

    def changing_visit(self, request: PageRequest) -> Visit:
        """Return who sent a form of his own session. Everything that changes something begins with this."""
        self.posted(request)
        return self.visit(request)

    def ending(self, session: BrowserSession, verb: Verb) -> Ending:
        """Return how the request ended. EndedSession if the token is not valid."""
        return _of_valid_token(self.helper.ask(_request(session, verb)))

    def ask(self, session: BrowserSession, verb: Verb) -> Document:
        """Return the document that answers the request. RefusedPage if there is none."""
        return document_of(self.ending(session, verb))

    def instances(self, session: BrowserSession) -> tuple[InstanceRow, ...]:
        """Return the instances that clones can be made of."""
        return page_rows.instances_of(self.ask(session, ListInstancesVerb()))

    def begun(self, visit: Visit, verb: Verb, doing: str) -> OtherPlace:
        """Begin it, and return where one sees what becomes of it."""
        answer = self.helper.begin(_request(visit.session, verb))
        if not isinstance(answer, BegunAnswer):
            document_of(_of_valid_token(answer))
            raise RefusedPage.because(BusyError("nothing was begun", hint="look at the clone, and ask again"))
        visit.session.began(answer.operation, BegunByBrowser(doing, self.sessions.now()))
        return OtherPlace(f"/operations/{answer.operation}")


def document_of(ending: Ending) -> Document:
    """Return the document of an answer. RefusedPage if it is a failure, or not there yet."""
    if isinstance(ending, FailureAnswer):
        raise RefusedPage(ending)
    if isinstance(ending, PendingAnswer):
        raise RefusedPage.because(BusyError("the helper takes longer", hint="try again in some seconds"))
    return ending.document


def _request(session: BrowserSession, verb: Verb) -> HelperRequest:
    return HelperRequest(token=session.token.get_secret_value(), verb=verb)


def _of_valid_token(ending: Ending) -> Ending:
    """Return the answer. EndedSession if it is that the token is not valid."""
    if isinstance(ending, FailureAnswer) and ending.code == UNAUTHENTICATED:
        raise EndedSession
    return ending

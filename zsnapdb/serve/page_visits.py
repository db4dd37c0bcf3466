"""The person who visits a page, and the helper's answers for that person.

Every page uses this module. The module makes no decisions.

The result of a page is a template with its values, or another address. `page_app.py` turns it into HTTP.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import SecretStr, ValidationError

from zsnapdb.base.errors import BusyError, ConsistencyError, NotAllowedError
from zsnapdb.base.patterns import is_same
from zsnapdb.serve import helper_messages, page_rows
from zsnapdb.serve.helper_messages import (
    UNAUTHENTICATED,
    BegunAnswer,
    Ending,
    FailureAnswer,
    HelperClient,
    HelperRequest,
    PendingAnswer,
    ProblemDetails,
    ResultAnswer,
    Verb,
    problem_of,
)
from zsnapdb.serve.page_requests import CSRF_FIELD, PageRequest, RefusedPage, hashed, require_same_origin
from zsnapdb.serve.page_rows import Document, InstanceRow, Person
from zsnapdb.serve.protection_rows import PointsCard, points_of
from zsnapdb.verbs.requests import GetSubjectVerb, InstancePointsVerb, ListInstancesVerb

SECONDS = 8 * 3600.0
"""Maximum duration of a session in seconds."""
_MOST = 1000
_MOST_OF_SUBJECT = 20
_MOST_OPERATIONS = 100
_RANDOM_BYTES = 32


@dataclass(frozen=True)
class SessionOperations:
    """An operation that a session started, with a description for people and the start time on the sessions' clock.

    `clone` is the address of the clone's page; "" for a new clone.
    """

    doing: str
    started: float
    clone: str = ""


@dataclass
class BrowserSession:
    """A logged-in browser. Each form of the session contains `csrf`, a text that pages of other sites cannot know.

    `person` is the person at the last request; None if not known yet.
    """

    token: SecretStr
    subject: str
    ends: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_RANDOM_BYTES), repr=False)
    person: Person | None = None
    _begun: dict[str, SessionOperations] = field(default_factory=dict)
    _to_show: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_csrf(self, given: str) -> bool:
        """Return whether a form belongs to this session. The comparison takes constant time."""
        return hmac.compare_digest(self.csrf.encode(), given.encode())

    def began(self, operation: str, what: SessionOperations) -> None:
        """Record a started operation, unless it is already recorded.

        If the session has too many operations, the oldest are forgotten.
        """
        with self._lock:
            if operation in self._begun:
                return
            self._begun[operation] = what
            self._to_show.add(operation)
            for old in list(self._begun)[:-_MOST_OPERATIONS]:
                del self._begun[old]
                self._to_show.discard(old)

    def begun(self, operation: str) -> SessionOperations | None:
        """Return the operation with this id if this session started it; else None."""
        with self._lock:
            return self._begun.get(operation)

    def shows_login(self, operation: str) -> bool:
        """Return whether to show the login in the result now.

        A login is shown only once, and only to the session that started the operation.
        """
        with self._lock:
            shows = operation in self._to_show
            self._to_show.discard(operation)
            return shows


@dataclass(frozen=True)
class OpenedSession:
    """A session that was just opened. This process stores only a digest of `id`.

    `evicted` contains the tokens of the subject's older sessions that ended because of this session.
    """

    id: SecretStr
    session: BrowserSession
    evicted: tuple[SecretStr, ...] = ()


@dataclass
class BrowserSessions:
    """All sessions of this process, with a maximum number. `now` is a monotonic clock in seconds."""

    now: Callable[[], float] = time.monotonic
    most: int = _MOST
    _open: dict[str, BrowserSession] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, token: str, subject: str, seconds: float) -> OpenedSession | None:
        """Open a session with a new id for at most `seconds`. Return None if there are too many sessions.

        If a subject has too many sessions, its oldest session ends. Otherwise one subject could use up all sessions,
        because a person can get any number of tokens from an issuer.
        """
        session_id = secrets.token_urlsafe(_RANDOM_BYTES)
        with self._lock:
            self._forget_ended()
            mine = [key for key, one in self._open.items() if is_same(one.subject, subject)]
            over = mine[: max(0, len(mine) + 1 - _MOST_OF_SUBJECT)]
            evicted = tuple(self._open.pop(key).token for key in over)
            if len(self._open) >= self.most:
                return None
            session = BrowserSession(SecretStr(token), subject, self.now() + min(seconds, SECONDS))
            self._open[hashed(session_id)] = session
        return OpenedSession(SecretStr(session_id), session, evicted)

    def find(self, session_id: str) -> BrowserSession | None:
        """Return the session with this id; None if it does not exist or has ended."""
        with self._lock:
            self._forget_ended()
            return self._open.get(hashed(session_id))

    def close(self, session_id: str) -> None:
        """End the session with this id, if it exists."""
        with self._lock:
            self._open.pop(hashed(session_id), None)

    def _forget_ended(self) -> None:
        now = self.now()
        for key in [key for key, one in self._open.items() if one.ends <= now]:
            del self._open[key]


@dataclass(frozen=True)
class PageAnswer:
    """A page: its template, its values, its HTTP status, and a cookie to set ("" if there is none)."""

    template: str
    values: Mapping[str, object]
    status: int = 200
    cookie: str = ""


@dataclass(frozen=True)
class FileAnswer:
    """A file that the browser saves under this name."""

    text: str
    media_type: str
    name: str


@dataclass(frozen=True)
class Redirect:
    """The address to which the browser is sent, and a cookie to set ("" if there is none)."""

    path: str
    cookie: str = ""


@dataclass(frozen=True)
class Visit:
    """A request of a person whose token the helper has just accepted."""

    session: BrowserSession
    person: Person
    now: datetime

    def shows(self, template: str, status: int = 200, **values: object) -> PageAnswer:
        """Return a page for this person."""
        common = {"person": self.person, "csrf": self.session.csrf, "problem": None}
        return PageAnswer(template, {**common, **values}, status)


class MissingSession(Exception):
    """The browser has no session, or its session has ended."""


class EndedSession(Exception):
    """The token of the session is no longer valid."""


@dataclass(frozen=True)
class StatesPart:
    """The states that clones of an instance can have, or the problem with reading them.

    The page is useful even without the states.
    """

    card: PointsCard | None
    problem: ProblemDetails | None


SiteAnswer = PageAnswer | Redirect | FileAnswer
PageHandler = Callable[[PageRequest], SiteAnswer]


@dataclass(frozen=True)
class Visits:
    """Finds out who sends a request, and asks the helper on behalf of that person. `now` returns the current time."""

    helper: HelperClient
    now: Callable[[], datetime]
    sessions: BrowserSessions

    def session(self, request: PageRequest) -> BrowserSession | None:
        """Return the session of the browser; None if the browser has none."""
        return self.sessions.find(request.session_id) if request.session_id else None

    def visit(self, request: PageRequest) -> Visit:
        """Return the visit of the person who sent the request.

        Raises MissingSession if the browser has no session, and EndedSession if the session's token is not valid.
        """
        session = self.session(request)
        if session is None:
            raise MissingSession
        session.person = page_rows.person_of(self.ask(session, GetSubjectVerb()))
        return Visit(session, session.person, self.now())

    def posted(self, request: PageRequest) -> BrowserSession:
        """Return the session to which this form belongs.

        Raises RefusedPage if the form comes from another web site or another session.
        """
        require_same_origin(request.is_https, request.headers)
        session = self.session(request)
        if session is None:
            raise MissingSession
        if not session.is_csrf(request.form.get(CSRF_FIELD, "")):
            raise RefusedPage.because(
                NotAllowedError(
                    "the form does not belong to a page of this session", hint="open the page again and send its form"
                )
            )
        return session

    def changing_visit(self, request: PageRequest) -> Visit:
        """Return the visit of a person who sent a form that belongs to the person's session.

        Every page that changes something calls this first.
        """
        self.posted(request)
        return self.visit(request)

    def ending(self, session: BrowserSession, verb: Verb) -> Ending:
        """Return the final answer to the request. Raises EndedSession if the session's token is no longer valid."""
        return _of_valid_token(self.helper.ask(_request(session, verb)))

    def ask(self, session: BrowserSession, verb: Verb) -> Document:
        """Return the document in the answer to the request. Raises RefusedPage if the answer contains no document."""
        return document_of(self.ending(session, verb))

    def instances(self, session: BrowserSession) -> tuple[InstanceRow, ...]:
        return page_rows.instances_of(self.ask(session, ListInstancesVerb()))

    def states(self, visit: Visit, instance: str) -> StatesPart:
        """Return the states that clones of an instance can have."""
        ending = self.ending(visit.session, InstancePointsVerb(name=instance))
        if isinstance(ending, FailureAnswer):
            return StatesPart(None, problem_of(ending))
        return StatesPart(points_of(document_of(ending), visit.now), None)

    def begun(self, visit: Visit, verb: Verb, doing: str, clone: str = "") -> Redirect:
        """Start an operation, and return the address of its page. `clone` is the address of the clone's page.

        Raises RefusedPage if the operation was not started.
        """
        answer = self.helper.begin(_request(visit.session, verb))
        if not isinstance(answer, BegunAnswer):
            document_of(_of_valid_token(answer))
            raise RefusedPage.because(BusyError("nothing was started", hint="check the clone, then try again"))
        visit.session.began(answer.operation, SessionOperations(doing, self.sessions.now(), clone))
        return Redirect(f"/operations/{answer.operation}")


def document_of(ending: Ending) -> Document:
    """Return the document in an answer. Raises RefusedPage if the answer is a failure, or still pending."""
    if isinstance(ending, FailureAnswer):
        raise RefusedPage(ending)
    if isinstance(ending, PendingAnswer):
        raise RefusedPage.because(BusyError("the helper did not answer in time", hint="try again in some seconds"))
    return ending.document


def _request(session: BrowserSession, verb: Verb) -> HelperRequest:
    return HelperRequest(token=session.token.get_secret_value(), verb=verb)


def _of_valid_token(ending: Ending) -> Ending:
    """Return the answer unchanged. Raises EndedSession if the answer reports an invalid token."""
    if isinstance(ending, FailureAnswer) and ending.code == UNAUTHENTICATED:
        raise EndedSession
    return ending


def known_logins(helper: HelperClient) -> tuple[helper_messages.KnownLogin, ...]:
    """Return the issuers through which people log in; empty if the helper does not answer."""
    ending = helper.ask(HelperRequest(token="", verb=helper_messages.ListLoginsVerb()))
    if not isinstance(ending, ResultAnswer):
        return ()
    try:
        return helper_messages.KnownLogins.model_validate(ending.document).logins
    except ValidationError:
        return ()


def opened_login(helper: HelperClient, verb: helper_messages.OpenSessionVerb) -> helper_messages.OpenedLogin:
    """Return the session that the helper opened. If the helper opened none, raises RefusedPage with the reason."""
    ending = helper.ask(HelperRequest(token="", verb=verb))
    if isinstance(ending, FailureAnswer):
        raise RefusedPage(ending)
    if not isinstance(ending, ResultAnswer):
        raise RefusedPage.because(BusyError("the helper did not answer in time", hint="log in again at /login"))
    try:
        return helper_messages.OpenedLogin.model_validate(ending.document)
    except ValidationError:
        error = ConsistencyError("the helper is of another release", hint="restart zsnapdb-serve")
        raise RefusedPage.because(error) from None


def end_evicted(helper: HelperClient, opened: OpenedSession) -> None:
    """Revoke the tokens of the older sessions that ended because this session was opened."""
    for token in opened.evicted:
        end_credential(helper, token.get_secret_value())


def end_credential(helper: HelperClient, token: str) -> None:
    """Revoke the token of a session that a login created. A token that an administrator created is not changed."""
    helper.ask(HelperRequest(token=token, verb=helper_messages.CloseSessionVerb()))

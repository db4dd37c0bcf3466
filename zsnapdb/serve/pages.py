"""The pages for browsers: each asks the helper what the API would ask, and shows its answer. It decides nothing.

What a page answers is a template with its values, or another place. `page_app.py` makes HTTP of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from zsnapdb.base.errors import BusyError, NotAllowedError
from zsnapdb.serve import messages, page_rows
from zsnapdb.serve.browser_sessions import SECONDS, BegunByBrowser, BrowserSession, BrowserSessions
from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.login_client import end_credential, known_logins
from zsnapdb.serve.messages import UNAUTHENTICATED, BegunAnswer, Ending, FailureAnswer, PendingAnswer
from zsnapdb.serve.page_requests import (
    CSRF_FIELD,
    PageRequest,
    RefusedPage,
    filled,
    parsed,
    require_same_origin,
    set_cookie,
)
from zsnapdb.serve.page_rows import CloneRow, Document, Person
from zsnapdb.serve.problems import ProblemDetails, problem_of
from zsnapdb.serve.verbs import (
    CreateCloneVerb,
    DestroyCloneVerb,
    ExtendCloneVerb,
    GetCloneVerb,
    GetOperationVerb,
    GetSubjectVerb,
    HelperRequest,
    ListClonesVerb,
    ListInstancesVerb,
    NewClone,
    ResetCloneVerb,
    Verb,
)

_KEY_BYTES = 18
_LOGIN_HINT = "an administrator of the host makes a token: `zsnapdb token create`"


@dataclass(frozen=True)
class PageAnswer:
    """A page: its template, what it shows, its HTTP status, and a cookie to set ("": none)."""

    template: str
    values: Mapping[str, object]
    status: int = 200
    cookie: str = ""


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


PageHandler = Callable[[PageRequest], PageAnswer | OtherPlace]


@dataclass(frozen=True)
class BrowserPages:
    """Every page. `now` is the time of day."""

    helper: HelperClient
    now: Callable[[], datetime]
    sessions: BrowserSessions = field(default_factory=BrowserSessions)

    def answer(self, handler: PageHandler, request: PageRequest) -> PageAnswer | OtherPlace:
        """Return what the handler answers, or the page that says why it does not."""
        try:
            return handler(request)
        except NoSession:
            return OtherPlace("/login")
        except EndedSession:
            self.sessions.close(request.session_id)
            failure = messages.unauthenticated().failure.model_copy(
                update={"message": "your token is not valid any more: it expired or was revoked", "hint": _LOGIN_HINT}
            )
            return self._login_page(request, problem_of(failure))
        except RefusedPage as refused:
            return self.problem(refused, request)

    def problem(self, refused: RefusedPage, request: PageRequest) -> PageAnswer:
        """Return the page that tells of a failure, with its message, hint and code."""
        problem = problem_of(refused.failure)
        session = self.sessions.find(request.session_id)
        values = {"person": None, "csrf": session.csrf if session is not None else "", "problem": problem}
        return PageAnswer("problem.html", values, refused.status or problem.status)

    def login_form(self, request: PageRequest) -> PageAnswer | OtherPlace:
        """Ask for a token, unless there is a session."""
        return self._login_page(request, None) if self._session(request) is None else OtherPlace("/")

    def login(self, request: PageRequest) -> PageAnswer | OtherPlace:
        """Open a session with a new id for a token that the helper accepts. A session of before ends."""
        require_same_origin(request.is_https, request.headers)
        token = request.form.get("token", "").strip()
        try:
            asked = HelperRequest(token=token, verb=GetSubjectVerb())
        except ValidationError:
            asked = HelperRequest(token="", verb=GetSubjectVerb())
        ending = self.helper.ask(asked)
        if isinstance(ending, FailureAnswer) and ending.code == UNAUTHENTICATED:
            return self._login_page(request, problem_of(ending.model_copy(update={"hint": _LOGIN_HINT})))
        person = page_rows.person_of(_document(ending))
        left = (person.expires - self.now()).total_seconds() if person.expires is not None else SECONDS
        opened = self.sessions.open(asked.token, person.subject, left)
        if opened is None:
            raise RefusedPage.because(BusyError("too many people are logged in", hint="try again later"))
        self.sessions.close(request.session_id)
        seconds = max(1, int(opened.session.ends - self.sessions.now()))
        return OtherPlace("/", set_cookie(opened.id.get_secret_value(), seconds, is_https=request.is_https))

    def logout(self, request: PageRequest) -> PageAnswer | OtherPlace:
        """End the session, here and in the browser."""
        end_credential(self.helper, self._posted(request).token.get_secret_value())
        self.sessions.close(request.session_id)
        return OtherPlace("/login", set_cookie("", 0, is_https=request.is_https))

    def overview(self, request: PageRequest) -> PageAnswer:
        """Show whether all is well, and of what clones can be made."""
        visit = self._visit(request)
        clones = self._clones(visit)
        return visit.shows(
            "overview.html",
            clones=clones,
            mine=[one for one in clones if one.is_mine],
            concerns=page_rows.concerns_of(clones),
            instances=page_rows.instances_of(self._ask(visit.session, ListInstancesVerb())),
        )

    def clones(self, request: PageRequest) -> PageAnswer:
        """List the clones that the person sees."""
        visit = self._visit(request)
        return visit.shows("clones.html", clones=self._clones(visit))

    def clone(self, request: PageRequest) -> PageAnswer:
        """Show one clone."""
        visit = self._visit(request)
        return visit.shows("clone.html", clone=self._one_clone(visit, request))

    def new_form(self, request: PageRequest) -> PageAnswer:
        """Ask of what a clone is to be made, as of when, and for how long."""
        return self._new_page(self._visit(request), request.query, None)

    def create(self, request: PageRequest) -> PageAnswer | OtherPlace:
        """Begin a clone. A form that is sent twice begins one: its key is the same."""
        visit = self._changing_visit(request)
        fields: dict[str, object] = {**filled(request.form)}
        key = fields.pop("key", None)
        if "mask" in fields:
            fields["mask"] = fields["mask"] == "on"
        try:
            wanted = parsed(NewClone, fields)
            verb = parsed(CreateCloneVerb, {"wanted": wanted, "key": key})
            return self._begun(visit, verb, f"Making a clone of {wanted.instance}")
        except RefusedPage as refused:
            return self._new_page(visit, request.form, problem_of(refused.failure))

    def confirm_reset(self, request: PageRequest) -> PageAnswer:
        """Ask whether a clone is to be reset."""
        visit = self._visit(request)
        return visit.shows("confirm.html", clone=self._one_clone(visit, request), doing="reset")

    def confirm_destroy(self, request: PageRequest) -> PageAnswer:
        """Ask whether a clone is to be destroyed."""
        visit = self._visit(request)
        return visit.shows("confirm.html", clone=self._one_clone(visit, request), doing="destroy")

    def reset(self, request: PageRequest) -> OtherPlace:
        """Begin to give a clone its first data again."""
        visit = self._changing_visit(request)
        clone = self._confirmed(visit, request)
        return self._begun(visit, ResetCloneVerb(name=clone.facts.id), f"Resetting {clone.facts.name}")

    def destroy(self, request: PageRequest) -> OtherPlace:
        """Begin to destroy a clone."""
        visit = self._changing_visit(request)
        clone = self._confirmed(visit, request)
        return self._begun(visit, DestroyCloneVerb(name=clone.facts.id), f"Destroying {clone.facts.name}")

    def extend(self, request: PageRequest) -> OtherPlace:
        """Begin to extend the lease of a clone."""
        visit = self._changing_visit(request)
        name = _clone_name(request)
        verb = parsed(ExtendCloneVerb, {"name": name, "lease": filled(request.form)})
        return self._begun(visit, verb, f"Extending {name}")

    def operation(self, request: PageRequest) -> PageAnswer:
        """Show how far an operation is: a page that asks again by itself, and in the end shows the result."""
        visit = self._visit(request)
        asked = request.path.get("id", "")
        try:
            verb = parsed(GetOperationVerb, {"id": asked})
        except RefusedPage:
            raise RefusedPage(messages.no_such("operation", asked[:40]).failure) from None
        ending = self._ending(visit.session, verb)
        begun = visit.session.begun(asked)
        doing = begun.doing if begun is not None else "An operation of yours"
        if isinstance(ending, PendingAnswer):
            seconds = self.sessions.now() - begun.started if begun is not None else _PATIENT
            return visit.shows(
                "operation.html", id=asked, doing=doing, result=None, login=None, seconds=seconds, again=_again(seconds)
            )
        if isinstance(ending, FailureAnswer):
            if begun is None:
                raise RefusedPage(ending)
            problem = problem_of(ending)
            return visit.shows("failed.html", problem.status, doing=doing, problem=problem)
        result = page_rows.result_of(ending.document, visit.person, visit.now)
        login = result.login if result.login is not None and visit.session.shows_login(asked) else None
        return visit.shows("operation.html", id=asked, doing=doing, result=result, login=login, seconds=0.0, again=0)

    def _login_page(self, request: PageRequest, problem: ProblemDetails | None) -> PageAnswer:
        gone = set_cookie("", 0, is_https=request.is_https) if request.session_id else ""
        values = {"person": None, "csrf": "", "problem": problem, "logins": known_logins(self.helper)}
        return PageAnswer("login.html", values, problem.status if problem is not None else 200, gone)

    def _new_page(self, visit: Visit, fields: Mapping[str, str], problem: ProblemDetails | None) -> PageAnswer:
        if not visit.person.may_change:
            reason = f"your role {visit.person.role} makes no clones: it reads"
            raise RefusedPage.because(NotAllowedError(reason, hint="ask for a token of another role"))
        instances = page_rows.instances_of(self._ask(visit.session, ListInstancesVerb()))
        chosen = fields.get("instance", instances[0].name if len(instances) == 1 else "")
        return visit.shows(
            "new_clone.html",
            problem.status if problem is not None else 200,
            instances=instances,
            chosen=chosen,
            fields=fields,
            problem=problem,
            key=secrets.token_urlsafe(_KEY_BYTES),
        )

    def _session(self, request: PageRequest) -> BrowserSession | None:
        return self.sessions.find(request.session_id) if request.session_id else None

    def _visit(self, request: PageRequest) -> Visit:
        """Return who asks. NoSession or EndedSession if nobody does whose token is valid now."""
        session = self._session(request)
        if session is None:
            raise NoSession
        return Visit(session, page_rows.person_of(self._ask(session, GetSubjectVerb())), self.now())

    def _posted(self, request: PageRequest) -> BrowserSession:
        """Return the session whose own form this is. RefusedPage if another page or session made the form."""
        require_same_origin(request.is_https, request.headers)
        session = self._session(request)
        if session is None:
            raise NoSession
        if not session.is_csrf(request.form.get(CSRF_FIELD, "")):
            raise RefusedPage.because(
                NotAllowedError("the form is of no page of this session", hint="open the page anew and send its form")
            )
        return session

    def _changing_visit(self, request: PageRequest) -> Visit:
        self._posted(request)
        return self._visit(request)

    def _clones(self, visit: Visit) -> tuple[CloneRow, ...]:
        return page_rows.clones_of(self._ask(visit.session, ListClonesVerb()), visit.person, visit.now)

    def _one_clone(self, visit: Visit, request: PageRequest) -> CloneRow:
        document = self._ask(visit.session, GetCloneVerb(name=_clone_name(request)))
        return page_rows.clone_of(document, visit.person, visit.now)

    def _confirmed(self, visit: Visit, request: PageRequest) -> CloneRow:
        """Return the clone that the person saw when he confirmed. A later one can have its name."""
        clone = self._one_clone(visit, request)
        if request.form.get("created") != clone.facts.created:
            raise RefusedPage(messages.no_such("clone", f"{clone.facts.name} of that time").failure)
        return clone

    def _ending(self, session: BrowserSession, verb: Verb) -> Ending:
        return _of_valid_token(self.helper.ask(_request(session, verb)))

    def _ask(self, session: BrowserSession, verb: Verb) -> Document:
        return _document(self._ending(session, verb))

    def _begun(self, visit: Visit, verb: Verb, doing: str) -> OtherPlace:
        """Begin it, and return where one sees what becomes of it."""
        answer = self.helper.begin(_request(visit.session, verb))
        if not isinstance(answer, BegunAnswer):
            _document(_of_valid_token(answer))
            raise RefusedPage.because(BusyError("nothing was begun", hint="look at the clone, and ask again"))
        visit.session.began(answer.operation, BegunByBrowser(doing, self.sessions.now()))
        return OtherPlace(f"/operations/{answer.operation}")


_PATIENT = 60.0


def _again(seconds: float) -> int:
    """Return in how many seconds a page asks again: seldom if it takes long."""
    return 1 if seconds < 10 else 3 if seconds < _PATIENT else 10


def _request(session: BrowserSession, verb: Verb) -> HelperRequest:
    return HelperRequest(token=session.token.get_secret_value(), verb=verb)


def _of_valid_token(ending: Ending) -> Ending:
    """Return the answer. EndedSession if it is that the token is not valid."""
    if isinstance(ending, FailureAnswer) and ending.code == UNAUTHENTICATED:
        raise EndedSession
    return ending


def _document(ending: Ending) -> Document:
    if isinstance(ending, FailureAnswer):
        raise RefusedPage(ending)
    if isinstance(ending, PendingAnswer):
        raise RefusedPage.because(BusyError("the helper takes longer", hint="try again in some seconds"))
    return ending.document


def _clone_name(request: PageRequest) -> str:
    """Return the name of the clone in the path. What is no name has the answer of one that nothing has."""
    name = request.path.get("name", "")
    try:
        return parsed(GetCloneVerb, {"name": name}).name
    except RefusedPage:
        raise RefusedPage(messages.no_such("clone", name[:40]).failure) from None

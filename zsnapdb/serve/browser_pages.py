"""The browser pages, except those of clones and fleets. The helper that answers the API also answers the pages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import quote

from pydantic import ValidationError

from zsnapdb.base.errors import BusyError
from zsnapdb.serve import helper_messages, page_rows, protection_rows
from zsnapdb.serve.helper_messages import (
    UNAUTHENTICATED,
    FailureAnswer,
    HelperClient,
    HelperRequest,
    ProblemDetails,
    problem_of,
)
from zsnapdb.serve.page_requests import (
    PageRequest,
    RefusedPage,
    filled,
    login_address,
    parsed,
    require_same_origin,
    set_cookie,
)
from zsnapdb.serve.page_rows import Facts
from zsnapdb.serve.page_visits import (
    SECONDS,
    BrowserSessions,
    EndedSession,
    MissingSession,
    PageAnswer,
    PageHandler,
    Redirect,
    SiteAnswer,
    Visit,
    Visits,
    document_of,
    end_credential,
    end_evicted,
    known_logins,
)
from zsnapdb.verbs.argument_patterns import InstanceWord, Point
from zsnapdb.verbs.requests import GetSubjectVerb, ListClonesVerb, ListDrillsVerb, ListEvidenceVerb, ListObjectivesVerb

_NOT_FOUND = 404
_LOGIN_HINT = "an administrator of the host makes a token: `zsnapdb token create`"


@dataclass(frozen=True)
class BrowserPages:
    """The browser pages, except those of clones and fleets. `now` returns the current time."""

    helper: HelperClient
    now: Callable[[], datetime]
    sessions: BrowserSessions = field(default_factory=BrowserSessions)

    @property
    def visits(self) -> Visits:
        return Visits(self.helper, self.now, self.sessions)

    def answer(self, handler: PageHandler, request: PageRequest) -> SiteAnswer:
        """Return the answer of the handler, or the page that explains its refusal."""
        try:
            return handler(request)
        except MissingSession:
            return Redirect(login_address(request.page_after_login))
        except EndedSession:
            self.sessions.close(request.session_id)
            return self._login_page(request, _ended("your token is not valid any more: it expired or was revoked"))
        except RefusedPage as refused:
            return self.problem(refused, request)

    def problem(self, refused: RefusedPage, request: PageRequest) -> PageAnswer:
        """Return the page that shows a failure with its message, hint and code."""
        problem = problem_of(refused.failure)
        session = self.sessions.find(request.session_id)
        # A page of a clone leads back to the clone, unless there is no such clone.
        name = request.path.get("name", "") if problem.status != _NOT_FOUND else ""
        values = {
            "person": session.person if session is not None else None,
            "csrf": session.csrf if session is not None else "",
            "problem": problem,
            "back": f"/clones/{quote(name, safe='')}" if name else "",
        }
        return PageAnswer("problem.html", values, refused.status or problem.status)

    def login_form(self, request: PageRequest) -> PageAnswer | Redirect:
        """Ask for a token. If the browser has a session, redirect to the requested page."""
        if self.visits.session(request) is not None:
            return Redirect(request.page_after_login)
        if not request.session_id:
            return self._login_page(request, None)
        ended = _ended("your session has ended: it expired, or the service was restarted")
        return replace(self._login_page(request, ended), status=200)

    def login(self, request: PageRequest) -> PageAnswer | Redirect:
        """If the helper accepts the token, open a session with a new id. The browser's previous session ends."""
        require_same_origin(request.is_https, request.headers)
        token = request.form.get("token", "").strip()
        try:
            asked = HelperRequest(token=token, verb=GetSubjectVerb())
        except ValidationError:
            asked = HelperRequest(token="", verb=GetSubjectVerb())
        ending = self.helper.ask(asked)
        if isinstance(ending, FailureAnswer) and ending.code == UNAUTHENTICATED:
            return self._login_page(request, problem_of(ending.model_copy(update={"hint": _LOGIN_HINT})))
        person = page_rows.person_of(document_of(ending))
        left = (person.expires - self.now()).total_seconds() if person.expires is not None else SECONDS
        opened = self.sessions.open(asked.token, person.subject, left)
        if opened is None:
            raise RefusedPage.because(BusyError("too many people are logged in", hint="try again later"))
        end_evicted(self.helper, opened)
        before = self.visits.session(request)
        if before is not None:
            end_credential(self.helper, before.token.get_secret_value())
        self.sessions.close(request.session_id)
        seconds = max(1, int(opened.session.ends - self.sessions.now()))
        return Redirect(
            request.page_after_login, set_cookie(opened.id.get_secret_value(), seconds, is_https=request.is_https)
        )

    def logout(self, request: PageRequest) -> PageAnswer | Redirect:
        """End the session in this process, and delete the cookie in the browser."""
        end_credential(self.helper, self.visits.posted(request).token.get_secret_value())
        self.sessions.close(request.session_id)
        return Redirect("/login", set_cookie("", 0, is_https=request.is_https))

    def overview(self, request: PageRequest) -> PageAnswer:
        """Show the objectives, the clones that need attention, and the instances that can have clones."""
        visit = self.visits.visit(request)
        clones = page_rows.clones_of(self.visits.ask(visit.session, ListClonesVerb()), visit.person, visit.now)
        told = self.visits.ending(visit.session, ListObjectivesVerb())
        return visit.shows(
            "overview.html",
            clones=clones,
            mine=[one for one in clones if one.is_mine],
            limit=page_rows.reached_limit(clones, visit.person),
            concerns=page_rows.concerns_of(clones),
            instances=self.visits.instances(visit.session),
            objectives=protection_rows.objectives_of(document_of(told), visit.now)
            if not isinstance(told, FailureAnswer)
            else None,
            no_objectives=problem_of(told) if isinstance(told, FailureAnswer) else None,
        )

    def _login_page(self, request: PageRequest, problem: ProblemDetails | None) -> PageAnswer:
        gone = set_cookie("", 0, is_https=request.is_https) if request.session_id else ""
        values = {
            "person": None,
            "csrf": "",
            "problem": problem,
            "logins": known_logins(self.helper),
            "page": request.page_after_login,
        }
        return PageAnswer("login.html", values, problem.status if problem is not None else 200, gone)


def _ended(reason: str) -> ProblemDetails:
    failure = helper_messages.unauthenticated().failure
    return problem_of(failure.model_copy(update={"message": reason, "hint": _LOGIN_HINT}))


_DRILLS = 30
_RECORDS = 50


class RestoreQuery(Facts):
    """The instance to restore, and the point in time."""

    instance: InstanceWord
    at: Point = "latest"

    @property
    def runbook(self) -> str:
        """The command that prints the restore as steps for a person."""
        return shlex.join(("zsnapdb", "runbook", self.instance, "--to", self.at))

    @property
    def plan(self) -> str:
        """The command that prints the plan of a restore and changes nothing."""
        return shlex.join(("zsnapdb", "restore", self.instance, "--to", self.at, "--plan"))


@dataclass(frozen=True)
class ProtectionPages:
    """The pages about the protection of instances. They are read-only."""

    visits: Visits

    def drills(self, request: PageRequest) -> PageAnswer:
        """Show the newest drills of an instance, and the durations of their steps."""
        visit = self.visits.visit(request)
        instances, chosen = self._chosen(visit, request)
        card = None
        if chosen:
            verb = parsed(ListDrillsVerb, {"instance": chosen, "limit": _DRILLS})
            card = protection_rows.drills_of(self.visits.ask(visit.session, verb))
        return visit.shows("drills.html", instances=instances, chosen=chosen, card=card)

    def evidence(self, request: PageRequest) -> PageAnswer:
        """Show the records after the given number in an instance's evidence log."""
        visit = self.visits.visit(request)
        instances, chosen = self._chosen(visit, request)
        card, after = None, 0
        if chosen:
            given = {"instance": chosen, "after": request.query.get("after") or 0, "limit": _RECORDS}
            verb = parsed(ListEvidenceVerb, given)
            after = verb.after
            card = protection_rows.evidence_of(self.visits.ask(visit.session, verb))
        return visit.shows("evidence.html", instances=instances, chosen=chosen, card=card, after=after)

    def restore(self, request: PageRequest) -> PageAnswer:
        """Show the commands for a restore. A person with root access must run them; the page runs no command."""
        visit = self.visits.visit(request)
        instances, chosen = self._chosen(visit, request)
        fields = {"at": "latest", **filled(request.query), "instance": chosen}
        asked, problem = None, None
        try:
            if chosen and chosen not in instances:
                raise RefusedPage(helper_messages.no_such("instance", chosen[:40]).failure)
            asked = parsed(RestoreQuery, fields) if chosen else None
        except RefusedPage as refused:
            problem = problem_of(refused.failure)
        return visit.shows(
            "restore.html",
            problem.status if problem is not None else 200,
            instances=instances,
            fields=fields,
            asked=asked,
            states=self.visits.states(visit, asked.instance) if asked is not None else None,
            problem=problem,
        )

    def _chosen(self, visit: Visit, request: PageRequest) -> tuple[Sequence[str], str]:
        """Return the names of the instances, and the requested instance (the first one if none is requested)."""
        names = [one.name for one in self.visits.instances(visit.session)]
        return names, request.query.get("instance") or next(iter(names), "")

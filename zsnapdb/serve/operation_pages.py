"""The page of an operation: how far it is, how it ended, and its cancelling."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError
from zsnapdb.serve import messages, page_rows
from zsnapdb.serve.messages import CANCELLED, FailureAnswer, PendingAnswer
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, parsed
from zsnapdb.serve.problems import problem_of
from zsnapdb.serve.verbs import CancelOperationVerb, GetOperationVerb
from zsnapdb.serve.visits import OtherPlace, PageAnswer, Visits

_PATIENT = 60.0


@dataclass(frozen=True)
class OperationPages:
    """Shows what became of a request, and ends one that is under way."""

    visits: Visits

    def operation(self, request: PageRequest) -> PageAnswer:
        """Show how far an operation is: a page that asks again by itself, and in the end shows the result."""
        visit = self.visits.visit(request)
        asked = _operation_id(request)
        ending = self.visits.ending(visit.session, GetOperationVerb(id=asked))
        begun = visit.session.begun(asked)
        doing = begun.doing if begun is not None else "An operation of yours"
        if isinstance(ending, PendingAnswer):
            seconds = self.visits.sessions.now() - begun.started if begun is not None else _PATIENT
            return visit.shows(
                "operation.html", id=asked, doing=doing, result=None, login=None, seconds=seconds, again=_again(seconds)
            )
        if isinstance(ending, FailureAnswer):
            if begun is None:
                raise RefusedPage(ending)
            problem = problem_of(ending)
            is_cancelled = ending.code == CANCELLED
            return visit.shows("failed.html", problem.status, doing=doing, problem=problem, is_cancelled=is_cancelled)
        result = page_rows.result_of(ending.document, visit.person, visit.now)
        login = result.login if result.login is not None and visit.session.shows_login(asked) else None
        return visit.shows("operation.html", id=asked, doing=doing, result=result, login=login, seconds=0.0, again=0)

    def cancel(self, request: PageRequest) -> OtherPlace:
        """End an operation that is under way. Its page then says how it ended, also if it had ended before."""
        visit = self.visits.changing_visit(request)
        asked = _operation_id(request)
        ending = self.visits.ending(visit.session, CancelOperationVerb(id=asked))
        if isinstance(ending, FailureAnswer) and ending.code != PreflightError.code:
            raise RefusedPage(ending)
        return OtherPlace(f"/operations/{asked}")


def _again(seconds: float) -> int:
    """Return in how many seconds a page asks again: seldom if it takes long."""
    return 1 if seconds < 10 else 3 if seconds < _PATIENT else 10


def _operation_id(request: PageRequest) -> str:
    """Return the id in the path. What is none has the answer of one that nothing has."""
    asked = request.path.get("id", "")
    try:
        return parsed(GetOperationVerb, {"id": asked}).id
    except RefusedPage:
        raise RefusedPage(messages.no_such("operation", asked[:40]).failure) from None

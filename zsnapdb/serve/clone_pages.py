"""The web pages of clones: the list, a single clone, its actions and branches, a new clone, and operations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import NotAllowedError, PreflightError
from zsnapdb.serve import helper_messages, page_rows
from zsnapdb.serve.helper_messages import CANCELLED, FailureAnswer, PendingAnswer, ProblemDetails, problem_of
from zsnapdb.serve.page_requests import Model, PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.page_rows import CloneRow, ClonesQuery, Facts, clones_page, read
from zsnapdb.serve.page_visits import PageAnswer, Redirect, Visit, Visits, document_of
from zsnapdb.verbs import requests as verbs


@dataclass(frozen=True)
class ClonePages:
    """The web pages of clones."""

    visits: Visits

    def clones(self, request: PageRequest) -> PageAnswer:
        """Show one page of the list of clones that the person may see and that match the search."""
        visit = self.visits.visit(request)
        asked = parsed(ClonesQuery, filled(request.query))
        clones = _clones_of(self.visits, visit)
        limit = page_rows.reached_limit(clones, visit.person)
        return visit.shows("clones.html", card=clones_page(clones, asked), limit=limit)

    def clone(self, request: PageRequest) -> PageAnswer:
        visit = self.visits.visit(request)
        return visit.shows("clone.html", clone=self._one_clone(visit, request))

    def confirm(self, doing: str) -> Callable[[PageRequest], PageAnswer | Redirect]:
        """Return the handler of the page that asks for confirmation of this action on a clone.

        An expired clone is not reset. Its page says so.
        """

        def page(request: PageRequest) -> PageAnswer | Redirect:
            visit = self.visits.visit(request)
            clone = self._one_clone(visit, request)
            if doing == "reset" and clone.is_expired:
                return Redirect(f"/clones/{clone.facts.id}")
            return visit.shows("confirm.html", clone=clone, doing=doing)

        return page

    def begin(self, verb: type[verbs.CloneAction], doing: str, sends: str = "") -> Callable[[PageRequest], Redirect]:
        """Return the handler that starts an action on exactly the clone that the person confirmed.

        `sends` is the field of the verb that receives the other fields of the form.
        """

        def page(request: PageRequest) -> Redirect:
            visit = self.visits.changing_visit(request)
            clone = self._confirmed(visit, request)
            sent = {name: text for name, text in filled(request.form).items() if name != "guid"}
            asked = parsed(verb, {**named(clone), **({sends: sent} if sends else {})})
            return self.visits.begun(visit, asked, f"{doing} {clone.facts.name}", f"/clones/{clone.facts.id}")

        return page

    def logs(self, request: PageRequest) -> PageAnswer:
        """Show the end of the log of a clone's server.

        The log has a separate page, because only a command can read the log.
        """
        visit = self.visits.visit(request)
        clone = self._one_clone(visit, request)
        lines = page_rows.log_lines_of(self.visits.ask(visit.session, verbs.CloneLogsVerb(name=clone.facts.id)))
        return visit.shows("logs.html", clone=clone, lines=lines)

    def login(self, verb: type[verbs.LoginOfClone]) -> Callable[[PageRequest], PageAnswer]:
        """Return the handler of the page that shows a clone's login.

        The page answers only a submitted form, so no link can show a login.
        """

        def page(request: PageRequest) -> PageAnswer:
            visit = self.visits.changing_visit(request)
            clone = self._confirmed(visit, request)
            shown = self.visits.ask(visit.session, parsed(verb, named(clone)))
            is_new = verb is verbs.NewLoginVerb
            return visit.shows("clone_login.html", clone=clone, login=page_rows.login_of(shown, clone), is_new=is_new)

        return page

    def _one_clone(self, visit: Visit, request: PageRequest) -> CloneRow:
        document = self.visits.ask(visit.session, in_path(request, "name", verbs.GetCloneVerb, "clone"))
        return page_rows.clone_of(document, visit.person, visit.now)

    def _confirmed(self, visit: Visit, request: PageRequest) -> CloneRow:
        """Return the clone that the person confirmed. Raises RefusedPage if another clone now has that name."""
        clone = self._one_clone(visit, request)
        if request.form.get("guid") != clone.facts.guid:
            raise RefusedPage(helper_messages.no_such("clone", f"{clone.facts.name} of the page").failure)
        return clone


def _clones_of(visits: Visits, visit: Visit) -> tuple[CloneRow, ...]:
    return page_rows.clones_of(visits.ask(visit.session, verbs.ListClonesVerb()), visit.person, visit.now)


def named(clone: CloneRow) -> Mapping[str, object]:
    """Return the fields of a verb that identify exactly this clone."""
    return {"name": clone.facts.id, "guid": clone.facts.guid}


def in_path(request: PageRequest, part: str, verb: type[Model], what: str) -> Model:
    """Return the verb for the name or id in the path. An invalid name raises RefusedPage as for an unknown object."""
    given = request.path.get(part, "")
    try:
        return parsed(verb, {part: given})
    except RefusedPage:
        raise RefusedPage(helper_messages.no_such(what, given[:40]).failure) from None


_KEY_BYTES = 18


@dataclass(frozen=True)
class NewClonePages:
    """The form for a new clone, and the start of its creation."""

    visits: Visits

    def new_form(self, request: PageRequest) -> PageAnswer:
        """Show the form: the instance, the state and the lease of the clone."""
        return self._new_page(self.visits.visit(request), request.query, None)

    def create(self, request: PageRequest) -> PageAnswer | Redirect:
        """Create a clone.

        If a form is sent twice, only one clone is created, because both requests have the same idempotency key.
        """
        visit = self.visits.changing_visit(request)
        fields: dict[str, object] = {**filled(request.form)}
        key = fields.pop("key", None)
        fields |= {name: fields[name] == "on" for name in ("mask", "fresh") if name in fields}
        try:
            wanted = parsed(verbs.NewClone, fields)
            verb = parsed(verbs.CreateCloneVerb, {"wanted": wanted, "key": key})
            return self.visits.begun(visit, verb, f"Making a clone of {wanted.instance}")
        except RefusedPage as refused:
            return self._new_page(visit, request.form, problem_of(refused.failure))

    def _new_page(self, visit: Visit, fields: Mapping[str, str], problem: ProblemDetails | None) -> PageAnswer:
        if not visit.person.may_change:
            reason = f"your role {visit.person.role} makes no clones: it reads"
            raise RefusedPage.because(NotAllowedError(reason, hint="ask for a token of another role"))
        instances = self.visits.instances(visit.session)
        chosen = fields.get("instance", instances[0].name if len(instances) == 1 else "")
        is_known = chosen in {one.name for one in instances}
        return visit.shows(
            "new_clone.html",
            problem.status if problem is not None else 200,
            instances=instances,
            chosen=chosen,
            limit=page_rows.reached_limit(_clones_of(self.visits, visit), visit.person),
            states=self.visits.states(visit, chosen) if is_known else None,
            fields=fields,
            problem=problem,
            key=secrets.token_urlsafe(_KEY_BYTES),
        )


_PATIENT = 60.0


@dataclass(frozen=True)
class OperationPages:
    """The web pages that show the result of a request, and cancel a running request."""

    visits: Visits

    def operation(self, request: PageRequest) -> PageAnswer:
        """Show the result of an operation, or that the operation is running.

        A person reloads the page to see the result.
        """
        visit = self.visits.visit(request)
        operation_id = in_path(request, "id", verbs.GetOperationVerb, "operation").id
        ending = self.visits.ending(visit.session, verbs.GetOperationVerb(id=operation_id))
        begun = visit.session.begun(operation_id)
        doing = begun.doing if begun is not None else "An operation of yours"
        if isinstance(ending, PendingAnswer):
            seconds = self.visits.sessions.now() - begun.started if begun is not None else _PATIENT
            return visit.shows("operation.html", id=operation_id, doing=doing, result=None, login=None, seconds=seconds)
        if isinstance(ending, FailureAnswer):
            if begun is None:
                raise RefusedPage(ending)
            problem = problem_of(ending)
            shown = {"doing": doing, "problem": problem, "is_cancelled": ending.code == CANCELLED, "clone": begun.clone}
            return visit.shows("failed.html", problem.status, **shown)
        result = page_rows.result_of(ending.document, visit.person, visit.now)
        login = result.login if result.login is not None and visit.session.shows_login(operation_id) else None
        return visit.shows("operation.html", id=operation_id, doing=doing, result=result, login=login, seconds=0.0)

    def cancel(self, request: PageRequest) -> Redirect:
        """Cancel a running operation.

        The operation's page then shows how the operation ended, even if it ended before this request.
        """
        visit = self.visits.changing_visit(request)
        operation_id = in_path(request, "id", verbs.GetOperationVerb, "operation").id
        ending = self.visits.ending(visit.session, verbs.CancelOperationVerb(id=operation_id))
        if isinstance(ending, FailureAnswer) and ending.code != PreflightError.code:
            raise RefusedPage(ending)
        return Redirect(f"/operations/{operation_id}")


class BranchRow(Facts):
    """A branch with its newest commit (None if there is no commit yet)."""

    name: str
    head: str | None = None
    created: str | None = None
    message: str | None = None
    current: bool = False


class CommitRow(Facts):
    """A commit of a clone."""

    id: str
    created: str
    message: str = ""


class BranchCard(Facts):
    """The branches of a clone, and the commits that lead to the selected branch, newest first."""

    current: str
    branches: tuple[BranchRow, ...]
    commits: tuple[CommitRow, ...]


@dataclass(frozen=True)
class BranchPages:
    """The web pages of branches."""

    visits: Visits

    def branches(self, request: PageRequest) -> PageAnswer:
        """Show the branches of a clone, and the commits of its current branch.

        One command reads the branches, and another reads the commits.
        """
        visit = self.visits.visit(request)
        document = self.visits.ask(visit.session, in_path(request, "name", verbs.GetCloneVerb, "clone"))
        clone = page_rows.clone_of(document, visit.person, visit.now)
        told = self.visits.ask(visit.session, verbs.ListBranchesVerb(name=clone.facts.id))
        ending = self.visits.ending(visit.session, verbs.LogBranchVerb(name=clone.facts.id))
        log: Mapping[str, object] = {"commits": ()} if isinstance(ending, FailureAnswer) else document_of(ending)
        return visit.shows("branches.html", clone=clone, card=read(BranchCard, {**log, **told}), asked=request.query)

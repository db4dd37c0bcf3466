"""The page that asks for a new clone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import NotAllowedError
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.page_states import states
from zsnapdb.serve.problems import ProblemDetails, problem_of
from zsnapdb.serve.verbs import CreateCloneVerb, NewClone
from zsnapdb.serve.visits import OtherPlace, PageAnswer, Visit, Visits

_KEY_BYTES = 18


@dataclass(frozen=True)
class NewClonePages:
    """Asks what is wanted of a new clone, and begins it."""

    visits: Visits

    def new_form(self, request: PageRequest) -> PageAnswer:
        """Ask of what a clone is to be made, as of when, and for how long."""
        return self._new_page(self.visits.visit(request), request.query, None)

    def create(self, request: PageRequest) -> PageAnswer | OtherPlace:
        """Begin a clone. A form that is sent twice begins one: its key is the same."""
        visit = self.visits.changing_visit(request)
        fields: dict[str, object] = {**filled(request.form)}
        key = fields.pop("key", None)
        if "mask" in fields:
            fields["mask"] = fields["mask"] == "on"
        try:
            wanted = parsed(NewClone, fields)
            verb = parsed(CreateCloneVerb, {"wanted": wanted, "key": key})
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
            states=states(self.visits, visit, chosen) if is_known else None,
            fields=fields,
            problem=problem,
            key=secrets.token_urlsafe(_KEY_BYTES),
        )

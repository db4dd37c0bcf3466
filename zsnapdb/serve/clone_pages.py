"""The pages of clones: what there is, one of them, and what is done with it."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.serve import messages, page_rows
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.page_rows import CloneRow
from zsnapdb.serve.verbs import (
    CloneLogsVerb,
    CommitCloneVerb,
    DestroyCloneVerb,
    ExtendCloneVerb,
    GetCloneVerb,
    ListClonesVerb,
    ProtectCloneVerb,
    ResetCloneVerb,
    UnprotectCloneVerb,
)
from zsnapdb.serve.visits import OtherPlace, PageAnswer, Visit, Visits


@dataclass(frozen=True)
class ClonePages:
    """The pages of clones."""

    visits: Visits

    def clones(self, request: PageRequest) -> PageAnswer:
        """List the clones that the person sees."""
        visit = self.visits.visit(request)
        return visit.shows("clones.html", clones=self._clones(visit))

    def clone(self, request: PageRequest) -> PageAnswer:
        """Show one clone."""
        visit = self.visits.visit(request)
        return visit.shows("clone.html", clone=self._one_clone(visit, request))

    def confirm_reset(self, request: PageRequest) -> PageAnswer:
        """Ask whether a clone is to be reset."""
        visit = self.visits.visit(request)
        return visit.shows("confirm.html", clone=self._one_clone(visit, request), doing="reset")

    def confirm_destroy(self, request: PageRequest) -> PageAnswer:
        """Ask whether a clone is to be destroyed."""
        visit = self.visits.visit(request)
        return visit.shows("confirm.html", clone=self._one_clone(visit, request), doing="destroy")

    def reset(self, request: PageRequest) -> OtherPlace:
        """Begin to give a clone its first data again."""
        visit = self.visits.changing_visit(request)
        clone = self._confirmed(visit, request)
        return self.visits.begun(visit, ResetCloneVerb(name=clone.facts.id), f"Resetting {clone.facts.name}")

    def destroy(self, request: PageRequest) -> OtherPlace:
        """Begin to destroy a clone."""
        visit = self.visits.changing_visit(request)
        clone = self._confirmed(visit, request)
        return self.visits.begun(visit, DestroyCloneVerb(name=clone.facts.id), f"Destroying {clone.facts.name}")

    def extend(self, request: PageRequest) -> OtherPlace:
        """Begin to extend the lease of a clone."""
        visit = self.visits.changing_visit(request)
        name = _clone_name(request)
        verb = parsed(ExtendCloneVerb, {"name": name, "lease": filled(request.form)})
        return self.visits.begun(visit, verb, f"Extending {name}")

    def protect(self, request: PageRequest) -> OtherPlace:
        """Begin to keep a clone from `zsnapdb reap` for some time."""
        visit = self.visits.changing_visit(request)
        name = _clone_name(request)
        verb = parsed(ProtectCloneVerb, {"name": name, "protection": filled(request.form)})
        return self.visits.begun(visit, verb, f"Protecting {name}")

    def unprotect(self, request: PageRequest) -> OtherPlace:
        """Begin to end the protection of a clone."""
        visit = self.visits.changing_visit(request)
        name = _clone_name(request)
        return self.visits.begun(visit, UnprotectCloneVerb(name=name), f"Ending the protection of {name}")

    def commit(self, request: PageRequest) -> OtherPlace:
        """Begin to keep the present state of a clone."""
        visit = self.visits.changing_visit(request)
        name = _clone_name(request)
        verb = parsed(CommitCloneVerb, {"name": name, "commit": filled(request.form)})
        return self.visits.begun(visit, verb, f"Keeping the state of {name}")

    def logs(self, request: PageRequest) -> PageAnswer:
        """Show the end of the log of a clone's server. A page of its own: a command reads it."""
        visit = self.visits.visit(request)
        clone = self._one_clone(visit, request)
        lines = page_rows.log_lines_of(self.visits.ask(visit.session, CloneLogsVerb(name=clone.facts.id)))
        return visit.shows("logs.html", clone=clone, lines=lines)

    def _clones(self, visit: Visit) -> tuple[CloneRow, ...]:
        return page_rows.clones_of(self.visits.ask(visit.session, ListClonesVerb()), visit.person, visit.now)

    def _one_clone(self, visit: Visit, request: PageRequest) -> CloneRow:
        document = self.visits.ask(visit.session, GetCloneVerb(name=_clone_name(request)))
        return page_rows.clone_of(document, visit.person, visit.now)

    def _confirmed(self, visit: Visit, request: PageRequest) -> CloneRow:
        """Return the clone that the person saw when he confirmed. A later one can have its name."""
        clone = self._one_clone(visit, request)
        if request.form.get("created") != clone.facts.created:
            raise RefusedPage(messages.no_such("clone", f"{clone.facts.name} of that time").failure)
        return clone


def _clone_name(request: PageRequest) -> str:
    """Return the name of the clone in the path. What is no name has the answer of one that nothing has."""
    name = request.path.get("name", "")
    try:
        return parsed(GetCloneVerb, {"name": name}).name
    except RefusedPage:
        raise RefusedPage(messages.no_such("clone", name[:40]).failure) from None

"""The pages about the protection of instances: drills, the evidence log, and the commands of a restore."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.serve import helper_messages, protection_rows
from zsnapdb.serve.helper_messages import problem_of
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.page_rows import Facts
from zsnapdb.serve.page_views import PageAnswer, Visit, Visits
from zsnapdb.verbs.argument_patterns import InstanceWord, Point
from zsnapdb.verbs.requests import ListDrillsVerb, ListEvidenceVerb

_DRILLS = 30
_RECORDS = 50


class RestoreQuery(Facts):
    """The instance to restore, and the point."""

    instance: InstanceWord
    at: Point = "latest"

    @property
    def runbook(self) -> str:
        """The command that prints the restore as steps for a person."""
        return shlex.join(("zsnapdb", "runbook", self.instance, "--to", self.at))

    @property
    def plan(self) -> str:
        """The command that prints the plan of a restore and executes nothing."""
        return shlex.join(("zsnapdb", "restore", self.instance, "--to", self.at, "--plan"))


@dataclass(frozen=True)
class ProtectionPages:
    """The pages of protection. They change nothing."""

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
        """Show records of an instance's evidence log, from the number after the given one."""
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
        """Show the commands that a person with root runs. The page runs none of them."""
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
        """Return the names of the instances, and the requested one, or the first if none is requested."""
        names = [one.name for one in self.visits.instances(visit.session)]
        return names, request.query.get("instance") or next(iter(names), "")

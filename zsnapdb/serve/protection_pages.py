"""The pages about the protection of instances: drills, the evidence log, and how a person restores."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.serve import messages, protection_rows
from zsnapdb.serve.messages import problem_of
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.page_rows import Facts
from zsnapdb.serve.visits import PageAnswer, Visit, Visits
from zsnapdb.verbs.requests import ListDrillsVerb, ListEvidenceVerb
from zsnapdb.verbs.values import InstanceWord, Point

_DRILLS = 30
_RECORDS = 50


class RestoreQuery(Facts):
    """What is to be restored, and to which state."""

    instance: InstanceWord
    at: Point = "latest"

    @property
    def runbook(self) -> str:
        """The line that prints the restore as steps for a person."""
        return shlex.join(("zsnapdb", "runbook", self.instance, "--to", self.at))

    @property
    def plan(self) -> str:
        """The line that shows what a restore would do, and does nothing."""
        return shlex.join(("zsnapdb", "restore", self.instance, "--to", self.at, "--plan"))


@dataclass(frozen=True)
class ProtectionPages:
    """Pages that change nothing."""

    visits: Visits

    def drills(self, request: PageRequest) -> PageAnswer:
        """Show the newest drills of an instance, and how long their steps took."""
        visit = self.visits.visit(request)
        instances, chosen = self._chosen(visit, request)
        card = None
        if chosen:
            verb = parsed(ListDrillsVerb, {"instance": chosen, "limit": _DRILLS})
            card = protection_rows.drills_of(self.visits.ask(visit.session, verb))
        return visit.shows("drills.html", instances=instances, chosen=chosen, card=card)

    def evidence(self, request: PageRequest) -> PageAnswer:
        """Show records of the evidence log of an instance, after one of them."""
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
        """Show the lines that somebody with root runs. The page runs none of them."""
        visit = self.visits.visit(request)
        instances, chosen = self._chosen(visit, request)
        fields = {"at": "latest", **filled(request.query), "instance": chosen}
        asked, problem = None, None
        try:
            if chosen and chosen not in instances:
                raise RefusedPage(messages.no_such("instance", chosen[:40]).failure)
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
        """Return the names of the instances, and the one that is asked for: the first of them if none is."""
        names = [one.name for one in self.visits.instances(visit.session)]
        return names, request.query.get("instance") or next(iter(names), "")

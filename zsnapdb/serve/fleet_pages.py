"""The page of all instances of all hosts, and its exports. The helper answers from what was read last."""

from __future__ import annotations

import json
from dataclasses import dataclass

from zsnapdb.serve import fleet_rows
from zsnapdb.serve.messages import FailureAnswer
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.problems import problem_of
from zsnapdb.serve.verbs import FleetQuery, ListFleetVerb
from zsnapdb.serve.visits import FileAnswer, PageAnswer, Visits, document_of

_ROWS = 200
"""Rows of a page."""
_NO_FLEET = "unknown-name"
"""The code of the error that no fleet is configured on the host."""


@dataclass(frozen=True)
class FleetPages:
    """Pages that change nothing."""

    visits: Visits

    def fleet(self, request: PageRequest) -> PageAnswer:
        """Show the instances that are asked for, red first, and what is true of the whole fleet."""
        visit = self.visits.visit(request)
        try:
            asked = parsed(FleetQuery, {**filled(request.query), "most": _ROWS})
        except RefusedPage as refused:
            problem = problem_of(refused.failure)
            return visit.shows("fleet.html", problem.status, card=None, problem=problem)
        ending = self.visits.ending(visit.session, ListFleetVerb(asked=asked))
        if isinstance(ending, FailureAnswer) and ending.code == _NO_FLEET:
            return visit.shows("fleet.html", card=None, problem=problem_of(ending))
        card = fleet_rows.fleet_of(document_of(ending), asked, visit.now)
        return visit.shows("fleet.html", card=card)

    def table(self, request: PageRequest) -> FileAnswer:
        """Return all instances that are asked for as a table for spreadsheets."""
        visit = self.visits.visit(request)
        asked = parsed(FleetQuery, filled(request.query))
        document = self.visits.ask(visit.session, ListFleetVerb(asked=asked))
        text = fleet_rows.csv_of(fleet_rows.fleet_of(document, asked, visit.now))
        return FileAnswer(text, "text/csv; charset=utf-8", "fleet.csv")

    def document(self, request: PageRequest) -> FileAnswer:
        """Return all instances that are asked for as the API does."""
        visit = self.visits.visit(request)
        asked = parsed(FleetQuery, filled(request.query))
        document = self.visits.ask(visit.session, ListFleetVerb(asked=asked))
        return FileAnswer(json.dumps(document), "application/json", "fleet.json")

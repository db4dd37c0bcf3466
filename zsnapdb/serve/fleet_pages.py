"""The page of all instances of all hosts, and its exports. They show the helper's last reading of the fleet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from zsnapdb.base.quantities import format_duration
from zsnapdb.documents import fleet as documents
from zsnapdb.serve.helper_messages import FailureAnswer, problem_of
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, filled, parsed
from zsnapdb.serve.page_rows import Document, moment, read
from zsnapdb.serve.page_visits import FileAnswer, PageAnswer, Visits, document_of
from zsnapdb.verbs.requests import FleetQuery, ListFleetVerb

_STALE_SECONDS = 3600.0
"""Age in seconds from which the page shows a reading as stale."""
_FORMULA = re.compile(r"(^|;)(?=\s*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r\n])")
"""The beginnings of a cell's text that make a spreadsheet treat the text as a formula (OWASP, CSV injection).

Some spreadsheets also split lines at semicolons.
"""
COLUMNS = (
    *("verdict", "instance", "host", "repository", "since", "why", "newest_point", "oldest_point", "drill"),
    *("drill_passed", "drill_due", "heard", "backups", "backup_bytes", "binlog_bytes", "tool_version", "server"),
)
"""The columns of the exported table."""


@dataclass(frozen=True)
class FleetInstanceRow:
    """An instance of the fleet at a given time."""

    told: documents.FleetInstanceFields
    now: datetime

    @property
    def state(self) -> str:
        """The verdict in one word. An instance that cannot be read is unknown."""
        return "unknown" if self.told.problem else self.told.verdict

    @property
    def why(self) -> str:
        told = self.told
        texts = [f"could not be read: {told.problem}"] if told.problem else []
        return "; ".join([*texts, *(f"{one.what}: {one.reason}" for one in told.reasons)])

    @property
    def is_red(self) -> bool:
        return self.state in ("unknown", "broken")

    @property
    def stored_bytes(self) -> int:
        return self.told.backup_bytes + self.told.binlog_bytes

    def age(self, time: str | None) -> str:
        """Return how long ago `time` was; "none" if `time` is missing or invalid."""
        at = moment(time) if time is not None else None
        return format_duration(max(0, round((self.now - at).total_seconds()))) if at is not None else "none"

    @property
    def link(self) -> str:
        return "/fleet?" + urlencode({"instance": self.told.instance, "repository": self.told.repository})


@dataclass(frozen=True)
class FleetCard:
    """The fleet at a given time: the rows to show, and the counts of all rows."""

    rows: tuple[FleetInstanceRow, ...]
    silent: tuple[documents.FleetHostFields, ...]
    repositories: tuple[documents.FleetRepositoryFields, ...]
    counts: documents.FleetCountsFields
    chosen: int
    total: int
    asked: FleetQuery
    now: datetime

    @property
    def is_red(self) -> bool:
        return bool(self.counts.broken or self.silent or any(one.error is not None for one in self.repositories))

    @property
    def fields(self) -> Mapping[str, str]:
        asked = self.asked
        named = {"instance": asked.instance, "host": asked.host, "repository": asked.repository}
        return {**{name: text for name, text in named.items() if text}, **({"red": "true"} if asked.red else {})}

    def path(self, name: str = "/fleet", after: int = 0) -> str:
        """Return the address of a page or of an export with the same filter and order."""
        fields = {**self.fields, "sort": self.asked.sort, **({"after": str(after)} if after else {})}
        return f"{name}?{urlencode(fields)}"

    @property
    def before(self) -> str | None:
        """The address of the page with the previous rows; None for the first page."""
        return self.path(after=max(0, self.asked.after - self.asked.most)) if self.asked.after else None

    @property
    def following(self) -> str | None:
        """The address of the page with the next rows; None for the last page."""
        end = self.asked.after + len(self.rows)
        return self.path(after=end) if self.rows and end < self.chosen else None

    def is_stale(self, repository: documents.FleetRepositoryFields) -> bool:
        """Return whether the last reading of the repository is missing or older than an hour."""
        at = moment(repository.read) if repository.read is not None else None
        return at is None or (self.now - at).total_seconds() > _STALE_SECONDS


def fleet_of(document: Document, asked: FleetQuery, now: datetime) -> FleetCard:
    """Return the fleet in an answer."""
    told = read(documents.FleetDocument, document)
    return FleetCard(
        tuple(FleetInstanceRow(one, now) for one in told.instances),
        tuple(one for one in told.hosts if one.silent),
        told.repositories,
        told.counts,
        told.chosen,
        told.total,
        asked,
        now,
    )


def csv_of(card: FleetCard) -> str:
    """Return the rows as a table for spreadsheets (RFC 4180). No text in the table can be treated as a formula."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for row in card.rows:
        told = row.told
        drill = told.drill
        writer.writerow(
            _cell(value)
            for value in (
                *(row.state, told.instance, told.host, told.repository, told.since, row.why, told.newest_point),
                *(told.oldest_point, drill.finished if drill else None, drill.passed if drill else None),
                *(told.drill_due, told.heard, told.backups, told.backup_bytes, told.binlog_bytes),
                *(told.tool_version, told.server),
            )
        )
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _FORMULA.sub(r"\1'", str(value))


_ROWS = 200
"""Number of rows on a page."""
_NO_FLEET = "unknown-name"
"""Error code of a host without a configured fleet."""


@dataclass(frozen=True)
class FleetPages:
    """The web pages of the fleet. They are read-only."""

    visits: Visits

    def fleet(self, request: PageRequest) -> PageAnswer:
        """Show the selected instances, with red instances first, and the counts of the whole fleet."""
        visit = self.visits.visit(request)
        try:
            asked = parsed(FleetQuery, {**filled(request.query), "most": _ROWS})
        except RefusedPage as refused:
            problem = problem_of(refused.failure)
            return visit.shows("fleet.html", problem.status, card=None, problem=problem)
        ending = self.visits.ending(visit.session, ListFleetVerb(asked=asked))
        if isinstance(ending, FailureAnswer) and ending.code == _NO_FLEET:
            return visit.shows("fleet.html", card=None, problem=problem_of(ending))
        card = fleet_of(document_of(ending), asked, visit.now)
        return visit.shows("fleet.html", card=card)

    def table(self, request: PageRequest) -> FileAnswer:
        """Return all selected instances as a table for spreadsheets."""
        visit = self.visits.visit(request)
        asked = parsed(FleetQuery, filled(request.query))
        document = self.visits.ask(visit.session, ListFleetVerb(asked=asked))
        text = csv_of(fleet_of(document, asked, visit.now))
        return FileAnswer(text, "text/csv; charset=utf-8", "fleet.csv")

    def document(self, request: PageRequest) -> FileAnswer:
        """Return all selected instances as JSON, as the API does."""
        visit = self.visits.visit(request)
        asked = parsed(FleetQuery, filled(request.query))
        document = self.visits.ask(visit.session, ListFleetVerb(asked=asked))
        return FileAnswer(json.dumps(document), "application/json", "fleet.json")

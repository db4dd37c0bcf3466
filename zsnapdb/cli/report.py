"""`zsnapdb report`."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, RepositoryName, flag, option
from zsnapdb.cli.output import show, show_errors

if TYPE_CHECKING:
    from zsnapdb.jobs.health.evidence_records import EvidenceLog


class ReportFormat(StrEnum):
    """Text, JSON, or a printable HTML page."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


def report_show(
    instance: InstanceName = None,
    begin: Annotated[
        str | None, option("--from", "DAY", "First day (UTC).", show_default="30 days before the last")
    ] = None,
    end: Annotated[str | None, option("--to", "DAY", "Last day (UTC).", show_default="today")] = None,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    format: Annotated[  # noqa: A002
        ReportFormat, flag("--format", "Output format: text, json, or html (a page for a browser).")
    ] = ReportFormat.TEXT,
    json: AsJson = False,
) -> None:
    """Show the facts for an audit: objectives, days, drills, retention, keys, exceptions and runs.

    Exit codes: 0 the log is complete, 7 it was changed.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import evidence_report as job
    from zsnapdb.report.repository.evidence import EvidenceReportView

    first = _day(begin) if begin is not None else None
    last = _day(end) if end is not None else None
    made = job.report(Instance.at(configuration(config), instance, repository), first, last)
    view = EvidenceReportView(made)
    if format is ReportFormat.HTML and not json:
        print(view.html())
    else:
        show(view, json or format is ReportFormat.JSON)
    _end(made.log)


def report_records(
    instance: InstanceName = None,
    after: Annotated[
        int, option("--after", "NUMBER", "Show the records after this number.", min=0, max=99_999_999)
    ] = 0,
    most: Annotated[int, option("--most", "N", "Highest number of shown records.", min=1, max=1000)] = 100,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show records of the evidence log by number. `zsnapdb report verify` checks that the log is complete."""
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.health import evidence_records as job
    from zsnapdb.report.repository.evidence import EvidencePageView

    show(EvidencePageView(job.read_page(Instance.at(configuration(config), instance, repository), after, most)), json)


def report_verify(
    instance: InstanceName = None, repository: RepositoryName = None, config: ConfigFile = None, json: AsJson = False
) -> None:
    """Check that no record of the evidence log was altered, removed or moved.

    Exit codes: 0 the log is complete, 7 it was changed.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.health import evidence_records as job
    from zsnapdb.report.repository.evidence import EvidenceCheckView

    log = job.read(Instance.at(configuration(config), instance, repository))
    show(EvidenceCheckView(log), json)
    _end(log)


def _day(text: str) -> date:
    from zsnapdb.base.errors import UsageError
    from zsnapdb.planning.restore.point_forms import FIRST_YEAR, LAST_YEAR

    try:
        found = date.fromisoformat(text)
        if not FIRST_YEAR <= found.year <= LAST_YEAR:
            raise ValueError
        return found
    except ValueError as error:
        raise UsageError(f"{text!r} is not a date", hint="write it as 2026-11-01") from error


def _end(log: EvidenceLog) -> None:
    alarm = log.alarm()
    if alarm is not None:
        show_errors([alarm])
        raise typer.Exit(alarm.exit_code)

"""`zsnapdb query` and `zsnapdb diff`."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance

_MOMENT = "latest, a backup id, GTIDs, or a time with its zone, such as 2026-11-20T10:00:00Z"


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    instance: NamedInstance,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.", show_default=False)],
    at: Annotated[str, typer.Option("--at", metavar="MOMENT", help=f"Of when: {_MOMENT}.")] = "latest",
    form: Annotated[Format, typer.Option("--format", help="How the rows are printed.")] = Format.TABLE,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Answer a question of the past: run one reading statement on a throwaway clone.

    Which moment it is of is told on stderr.
    """
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import query as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report.clone import query as report

    settings = load(config)
    form = Format.JSON if json else form
    write = sys.stdout.write
    writer = {Format.TABLE: report.table_rows, Format.CSV: report.csv_rows, Format.JSON: report.json_rows}[form]
    answer = job.query(settings, Instance.of(settings, instance), at, sql, partial(writer, write=write))
    if form is Format.JSON:
        report.json_answer_end(answer, write)
    print(answer.moment.describe(), file=sys.stderr)


def diff(
    instance: NamedInstance,
    table: Annotated[str, typer.Option("--table", metavar="SCHEMA.TABLE", help="Which table.", show_default=False)],
    begin: Annotated[
        str, typer.Option("--from", metavar="MOMENT", help=f"The earlier state: {_MOMENT}.", show_default=False)
    ],
    end: Annotated[str, typer.Option("--to", metavar="MOMENT", help="The later state.")] = "latest",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print which rows of a table were added, removed or changed between two moments, by primary key."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import query as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report.clone import query as report

    settings = load(config)
    write = sys.stdout.write
    writer = report.json_changes if json else report.changes
    result = job.diff(settings, Instance.of(settings, instance), table, begin, end, partial(writer, write=write))
    if json:
        report.json_difference_end(result, write)
    else:
        print(report.difference(result))

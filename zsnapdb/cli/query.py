"""`zsnapdb query` and `zsnapdb diff`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance
from zsnapdb.cli.output import writer

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
    writers = {Format.TABLE: report.TableAnswer, Format.CSV: report.CsvAnswer, Format.JSON: report.JsonAnswer}
    output = writer(json, text=writers[form], document=report.JsonAnswer)(sys.stdout.write)
    answer = job.query(settings, Instance.of(settings, instance), at, sql, output.rows)
    output.end(answer)
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
    output = writer(json, text=report.TextDifference, document=report.JsonDifference)(sys.stdout.write)
    output.end(job.diff(settings, Instance.of(settings, instance), table, begin, end, output.rows))

"""`zsnapdb query` and `zsnapdb diff`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli import completion, options
from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.options import argument, flag, option
from zsnapdb.cli.output import writer

EndHistory = Annotated[
    str | None, option("--to-history", "ID", "Binlog history of the later state, if it differs from --history.")
]


class Format(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    instance: options.NamedInstance,
    sql: Annotated[str, argument("SQL", "One SQL statement that only reads.")],
    at: Annotated[str, option("--at", "MOMENT", f"State: {options.POINT}.")] = "latest-backup",
    form: Annotated[Format, flag("--format", "Output format of the rows.")] = Format.TABLE,
    repository: options.RepositoryName = None,
    history: options.History = None,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Query a past state with one SQL statement that only reads.

    The statement runs on an ephemeral clone. The snapshot time is printed to stderr.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone import query as job
    from zsnapdb.report.clone import query as report

    settings = configuration(config).with_binary(instance, binary)
    writers = {Format.TABLE: report.TableAnswer, Format.CSV: report.CsvAnswer, Format.JSON: report.JsonAnswer}
    output = writer(json, text=writers[form], document=report.JsonAnswer)(sys.stdout.write)
    answer = job.query(settings, Instance.at(settings, instance, repository), at, sql, output.rows, history)
    output.end(answer)
    print(printed(answer.moment.describe()), file=sys.stderr)


def diff(
    table: Annotated[str, option("--table", "SCHEMA.TABLE", "Table to compare.", autocompletion=completion.tables)],
    begin: Annotated[str, option("--from", "MOMENT", f"Earlier state: {options.POINT}.")],
    instance: options.InstanceName = None,
    end: Annotated[str, option("--to", "MOMENT", "Later state.")] = "latest",
    repository: options.RepositoryName = None,
    history: options.History = None,
    end_history: EndHistory = None,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Compare a table between two moments.

    Print the rows that were added, removed or changed, by primary key.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone import query as job
    from zsnapdb.report.clone import query as report

    settings = configuration(config).with_binary(instance, binary)
    output = writer(json, text=report.TextDifference, document=report.JsonDifference)(sys.stdout.write)
    difference = job.diff(
        settings,
        Instance.at(settings, instance, repository),
        table,
        begin,
        end,
        output.rows,
        history=history,
        end_history=end_history,
    )
    output.end(difference)

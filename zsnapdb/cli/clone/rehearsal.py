"""`zsnapdb clone upgrade-test` and `zsnapdb migration-check`: rehearsals on ephemeral clones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AcceptOlder, AsJson, ConfigFile, InstanceName, NamedInstance
from zsnapdb.cli.output import show


def upgrade_test(
    binary: Annotated[
        Path, typer.Option("--binary", metavar="FILE", help="The new server program.", show_default=False)
    ],
    instance: InstanceName = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="BACKUP",
            help="latest, or the id of a backup whose snapshots are on this host.",
            autocompletion=completion.backups,
        ),
    ] = "latest",
    query: Annotated[
        list[str] | None,
        typer.Option(
            "--query",
            metavar="SQL",
            help="A query whose result must stay the same. May be repeated.",
            show_default=False,
        ),
    ] = None,
    accepts_older: AcceptOlder = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Rehearse an upgrade on an ephemeral clone.

    The clone is recovered, shut down, started with the new version, upgraded and checked.
    Exit code 11 means that the upgrade has problems.
    """
    from zsnapdb.base.errors import ConsistencyError
    from zsnapdb.jobs.clone import upgrade as job
    from zsnapdb.report.clone import migration as report

    settings, chosen = of_instance(config, instance)
    queries = (*chosen.settings.upgrade_queries, *(query or ()))
    result = job.rehearse(settings, chosen, source, binary, queries, accepts_older=accepts_older)
    show(report.RehearsalView(result), json)
    if result.problems:
        raise typer.Exit(ConsistencyError.exit_code)


def migration_check(
    instance: NamedInstance,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="The migration and its arguments; migration.command if none is given.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="BACKUP",
            help="latest, or the id of a backup whose snapshots are on this host.",
            autocompletion=completion.backups,
        ),
    ] = "latest",
    load_of: Annotated[
        str | None,
        typer.Option(
            "--load",
            metavar="DURATION",
            help="Run it beside so much of the recorded load, such as 1h: what was committed after the set, from the"
            " binlogs, at its pace. The clones are then of the newest set that is so old.",
            show_default=False,
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a comment on a request.")] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a migration on ephemeral clones, and say how long it keeps readers and writers of its tables waiting.

    The command finds its clone by DATABASE_URL, or by MYSQL_HOST, MYSQL_TCP_PORT and MYSQL_PWD, and runs in the current
    folder as the account that runs zsnapdb. Exit code 11 means that it fails, or is beyond the limits of the
    configuration.
    """
    from zsnapdb.base.errors import ConsistencyError
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.clone import migration as job
    from zsnapdb.report.clone import migration as report

    settings, chosen = of_instance(config, instance)
    seconds = None if load_of is None else parse_duration(load_of)
    checked = job.check(settings, chosen, job.MigrationRequest(command or (), Path.cwd(), source, seconds))
    show(report.MigrationView(checked, as_markdown=markdown), json)
    if checked.problems:
        raise typer.Exit(ConsistencyError.exit_code)

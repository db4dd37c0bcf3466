"""`zsnapdb clone upgrade-test`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AcceptOlder, AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show


def upgrade_test(
    binary: Annotated[
        Path, typer.Option("--binary", metavar="FILE", help="The new server program.", show_default=False)
    ],
    instance: InstanceName = None,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="BACKUP", help="latest, or the id of a backup whose snapshots are on this host."
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

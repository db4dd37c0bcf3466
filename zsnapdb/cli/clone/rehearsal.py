"""`zsnapdb clone upgrade-test` and `zsnapdb migration-check`: rehearsals on ephemeral clones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.command_context import instance_context
from zsnapdb.cli.options import AcceptOlder, AsJson, ConfigFile, InstanceName, NamedInstance, argument, flag, option
from zsnapdb.cli.output import show

SourceBackup = Annotated[
    str,
    option(
        "--from",
        "BACKUP",
        "Backup: latest, or an id whose snapshots are on this host.",
        autocompletion=completion.backups,
    ),
]


def upgrade_test(
    binary: Annotated[Path, option("--binary", "FILE", "New server program.")],
    instance: InstanceName = None,
    source: SourceBackup = "latest",
    query: Annotated[
        list[str] | None, option("--query", "SQL", "Query whose result must stay the same. Repeatable.")
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

    settings, chosen = instance_context(config, instance)
    queries = (*chosen.settings.upgrade_queries, *(query or ()))
    result = job.rehearse(settings, chosen, source, binary, queries, accepts_older=accepts_older)
    show(report.RehearsalView(result), json)
    if result.problems:
        raise typer.Exit(ConsistencyError.exit_code)


def migration_check(
    instance: NamedInstance,
    command: Annotated[
        list[str] | None, argument("-- COMMAND", "Migration and its arguments. Default: migration.command.")
    ] = None,
    source: SourceBackup = "latest",
    load_of: Annotated[
        str | None,
        option(
            "--load", "DURATION", "Replay this much recorded load during the migration, such as 1h, from the binlogs."
        ),
    ] = None,
    markdown: Annotated[bool, flag("--markdown", "Print Markdown, for a comment on a request.")] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a migration on ephemeral clones, and measure how long it blocks readers and writers of tables.

    The migration command finds the address of its clone in DATABASE_URL, or in MYSQL_HOST, MYSQL_TCP_PORT and
    MYSQL_PWD. It runs in the current folder as the account that runs zsnapdb. With --load, the clones are created from
    the newest set after which enough transactions were recorded. The recorded transactions are replayed at their
    original pace. Exit code 11 means that the migration fails or exceeds the limits of the configuration.
    """
    from zsnapdb.base.errors import ConsistencyError
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.clone import migration as job
    from zsnapdb.report.clone import migration as report

    settings, chosen = instance_context(config, instance)
    seconds = None if load_of is None else parse_duration(load_of)
    checked = job.check(settings, chosen, job.MigrationRequest(command or (), Path.cwd(), source, seconds))
    show(report.MigrationView(checked, as_markdown=markdown), json)
    if checked.problems:
        raise typer.Exit(ConsistencyError.exit_code)

"""`zsnapdb binlog archive`, `status`, `purge` and `find`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, WaitTime, flag, option
from zsnapdb.cli.output import show, show_at_once

if TYPE_CHECKING:
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.binlog.find import FindRequest


ChangedTable = Annotated[
    str | None,
    option("--table", "[SCHEMA.]TABLE", "Transactions that change this table.", autocompletion=completion.tables),
]
ChangeKinds = Annotated[
    str | None,
    option("--kind", "KINDS", "Transactions of these kinds: insert, update, delete, ddl, separated by commas."),
]
LeastRows = Annotated[int, option("--rows-at-least", "N", "Transactions that change at least N rows.", min=0)]
CommittedBetween = Annotated[
    tuple[str, str] | None,
    option(
        "--between",
        "TIME TIME",
        "Committed between two times, such as 2026-11-20T10:00:00Z. Archived binlogs are read too.",
    ),
]
BegunBetween = Annotated[
    tuple[str, str] | None,
    option("--user-time", "TIME TIME", "Started between two times, by the first statement of the session."),
]
LargestFirst = Annotated[bool, flag("--largest", "Order by rows, then by bytes, largest first.")]
MostListed = Annotated[int, option("--limit", "N", "List at most N transactions.", min=1)]
FollowServer = Annotated[
    bool, typer.Option("--follow", "-f", help="List each transaction when the server commits it, until Ctrl-C.")
]


def archive(
    instance: InstanceName = None,
    config: ConfigFile = None,
    once: Annotated[bool, flag("--once", "Archive the binlogs that exist now, then end.")] = False,
    wait: WaitTime = "0s",
    json: AsJson = False,
) -> None:
    """Archive binlogs while the server writes them.

    SIGTERM, Ctrl-C or the end of the session ends the command.
    """
    import signal

    from zsnapdb.cli.main_process import stop_on_signals
    from zsnapdb.jobs.binlog import archive_run
    from zsnapdb.jobs.binlog import archive_run as job
    from zsnapdb.report import binlog as report

    _, chosen = instance_context(config, instance, wait=wait)
    if once:
        outcome = job.archive_once(chosen)
    else:
        # This command normally ends by a signal. Before it ends, it finishes the upload and archives the rest of the
        # binlog.
        stop = stop_on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        command = archive_run.command_of(chosen.name, config)
        outcome = job.archive_continuously(chosen, stop, lambda: archive_run.start_command(command))
    show(report.ArchivingView(chosen.name, outcome), json)


def status(instance: InstanceName = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """List the archived binlogs by incarnation, and the gaps in the archive."""
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import protection_status as job
    from zsnapdb.report import binlog as report

    archived = job.archived(Instance.of(configuration(config), instance))
    show(report.BinlogArchiveView(archived), json)
    if archived.damaged:
        raise typer.Exit(archived.damaged[0].exit_code)


def purge(
    instance: InstanceName = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Remove archived binlogs from the server.

    A binlog is removed if it is archived, older than the configured minimum age, and read by all replicas.
    """
    from zsnapdb.jobs.binlog import purge as job
    from zsnapdb.report import binlog as report

    _, chosen = instance_context(config, instance, wait=wait)
    show(report.PurgePlanView(job.plan_now(chosen)) if plan else report.PurgeView(job.purge(chosen)), json)


def find(
    instance: InstanceName = None,
    table: ChangedTable = None,
    kind: ChangeKinds = None,
    rows_at_least: LeastRows = 0,
    between: CommittedBetween = None,
    user_time: BegunBetween = None,
    largest: LargestFirst = False,
    limit: MostListed = 100,
    follow: FollowServer = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Find transactions by their changes.

    For each transaction, print its GTID, commit time, size, kinds of change, rows and tables, and the command that
    undoes it.
    """
    from zsnapdb.jobs.binlog import find as job
    from zsnapdb.report import binlog as report

    request = job.FindRequest(table, kind, rows_at_least, between, user_time, largest, limit)
    _, chosen = instance_context(config, instance)
    if follow:
        _follow(chosen, request, json=json)
        return
    search = job.find(chosen, request)
    show(report.SearchView(chosen.name, search), json)
    if search.problems:
        raise typer.Exit(search.problems[0].exit_code)


def _follow(instance: Instance, request: FindRequest, *, json: bool) -> None:
    import signal

    from zsnapdb.cli.main_process import stop_on_signals
    from zsnapdb.jobs.binlog import find as job
    from zsnapdb.report import binlog as report

    stop = stop_on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    job.follow(instance, request, stop, lambda listed: show_at_once(report.FollowedView(listed), json))

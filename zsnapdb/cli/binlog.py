"""`zsnapdb binlog archive`, `status` and `purge`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, WaitTime
from zsnapdb.cli.output import show

app = typer.Typer(cls=CommandGroup, help="Archive binlogs for restores to any point in time.", no_args_is_help=True)


@app.command("archive")
def archive(
    instance: InstanceName = None,
    config: ConfigFile = None,
    once: Annotated[bool, typer.Option("--once", help="Archive the binlogs that exist now, then end.")] = False,
    wait: WaitTime = "0s",
    json: AsJson = False,
) -> None:
    """Archive binlogs while the server writes them.

    SIGTERM, Ctrl-C or the end of the session ends the command.
    """
    import signal

    from zsnapdb.cli.ending import stop_on_signals
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.binlog import archive as job
    from zsnapdb.jobs.binlog import new_history
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.quantities import duration
    from zsnapdb.report import binlog as report

    chosen = Instance.of(load(config), instance, Terminal()).waiting(duration(wait))
    if once:
        outcome = job.archive_once(chosen)
    else:
        # A signal is the usual end of this command: the upload is finished, and the rest of the binlog archived.
        stop = stop_on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        command = new_history.command_of(chosen.name, config)
        outcome = job.archive_continuously(chosen, stop, lambda: new_history.start_command(command))
    show(report.ArchivingView(chosen.name, outcome), json)


@app.command("status")
def status(instance: InstanceName = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """List the archived binlogs by incarnation, and the gaps."""
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import status as job
    from zsnapdb.report import binlog as report

    archived = job.archived(Instance.of(load(config), instance))
    show(report.ArchiveView(archived), json)
    if archived.damaged:
        raise typer.Exit(archived.damaged[0].exit_code)


@app.command("purge")
def purge(
    instance: InstanceName = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Remove archived binlogs from the server.

    A binlog is removed if it is archived, old enough, and fetched by all replicas.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.binlog import purge as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.quantities import duration
    from zsnapdb.report import binlog as report

    chosen = Instance.of(load(config), instance, Terminal()).waiting(duration(wait))
    if plan:
        show(report.PurgePlanView(job.plan_now(chosen)), json)
        return
    show(report.PurgeView(job.purge(chosen)), json)

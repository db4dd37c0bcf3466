"""`zsnapdb binlog archive`, `status` and `purge`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly
from zsnapdb.cli.output import show

app = typer.Typer(help="Archive binlogs, for restores to any point in time.", no_args_is_help=True)


@app.command("archive")
def archive(
    instance: InstanceName = None,
    config: ConfigFile = None,
    once: Annotated[bool, typer.Option("--once", help="Archive what there is now, and end.")] = False,
    json: AsJson = False,
) -> None:
    """Archive the binlogs of an instance as they are written, until told to end (SIGTERM, Ctrl-C)."""
    import signal
    from threading import Event

    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.binlog import archive as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report import binlog as report

    chosen = Instance.of(load(config), instance, Terminal())
    if once:
        outcome = job.archive_once(chosen)
    else:
        stop = Event()
        # A stop is the usual end of this command: what is under way is finished, and the rest of the binlog archived.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        outcome = job.archive_continuously(chosen, stop)
    show(report.ArchivingView(chosen.name, outcome), json)


@app.command("status")
def status(instance: InstanceName = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show what is archived: the histories, their files, and what is missing."""
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
    instance: InstanceName = None, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False
) -> None:
    """Remove binlogs from the server that are archived, old enough, and fetched by its replicas."""
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.binlog import purge as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report import binlog as report

    chosen = Instance.of(load(config), instance, Terminal())
    if plan:
        show(report.PurgePlanView(job.plan_now(chosen)), json)
        return
    show(report.PurgeView(job.purge(chosen)), json)

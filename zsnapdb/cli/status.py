"""`zsnapdb status`."""

from __future__ import annotations

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show, show_errors


def status(instance: InstanceName = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show the points in time to which an instance can be restored.

    Also show the age of the last backup and of the last archived transaction, and the last drill.

    Exit codes: 0 good; 6 nothing can be restored; 7 something in the repository is damaged, or it lacks something that
    this host stored.
    """
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import status as job
    from zsnapdb.report.repository import status as report

    state = job.status(Instance.of(load(config), instance))
    show(report.StatusView(state), json)
    error = job.alarm(state)
    if error is not None:
        show_errors([error])
        raise typer.Exit(error.exit_code)

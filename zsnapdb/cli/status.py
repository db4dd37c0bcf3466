"""`zsnapdb status`."""

from __future__ import annotations

import traceback
from typing import Annotated

import typer

from zsnapdb.cli.ending import of_the_system
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, RepositoryName
from zsnapdb.cli.output import show, show_errors
from zsnapdb.errors import UsageError, ZsnapdbError

_BROKEN = 2
"""The exit code of a broken objective. An unexpected error has the same: 1 would mean a warning to a monitor."""


def status(
    instance: InstanceName = None,
    every: Annotated[bool, typer.Option("--all", help="Show every configured instance.")] = False,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the points in time to which an instance can be restored, and whether its objectives are met.

    Also show the age of the last backup and of the last archived transaction, and the last drill.

    Exit codes: 0 every objective is met; 1 there is a warning; 2 an objective is broken; 6 nothing can be restored, or
    the repository cannot be read; 7 something in the repository is damaged, or it lacks something that this host
    stored. With --all: the greatest of all instances.
    """
    if every and instance is not None:
        raise UsageError("INSTANCE and --all are given", hint="leave out one of them")
    try:
        code = _show(instance, every, repository, config, json)
    except (ZsnapdbError, typer.Exit, BrokenPipeError):
        raise
    except OSError as error:
        show_errors([of_the_system(error)])
        code = _BROKEN
    except Exception:
        traceback.print_exc()
        code = _BROKEN
    if code:
        raise typer.Exit(code)


def _show(instance: str | None, every: bool, repository: str | None, config: ConfigFile, json: bool) -> int:
    """Print the state and return the exit code."""
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import status as job
    from zsnapdb.report.repository import status as report

    settings = load(config)
    if every:
        states = job.statuses(settings, repository)
        show(report.AllStatusView(states), json)
    else:
        state = job.observed(Instance.at(settings, instance, repository))
        if state.error is not None:
            raise state.error
        assert state.status is not None
        states = [state]
        show(report.StatusView(state.status), json)
    alarms = (job.alarm(state.status) for state in states if state.status is not None)
    show_errors([alarm for alarm in alarms if alarm is not None])
    return max((state.exit_code for state in states), default=0)

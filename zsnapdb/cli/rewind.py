"""`zsnapdb rewind`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import options
from zsnapdb.cli.command_context import instance_metrics
from zsnapdb.cli.options import flag, option
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.restore.rewind import Outage, RewindPlan

RewindPoint = Annotated[str | None, option("--to", "POINT", f"Point: {options.POINT}, or local set.")]
RewindFrom = Annotated[
    str,
    typer.Option(
        "--origin",
        "--from",
        metavar="ORIGIN",
        help="Origin of the volumes: auto (prefers this host), local (only this host) or repository.",
    ),
]
RewoundServerId = Annotated[
    int | None,
    option(
        "--server-id",
        "NUMBER",
        "With MariaDB: new server_id of the server.",
        min=1,
        max=options.GREATEST_SERVER_ID,
        show_default="random",
    ),
]

ReplicasRebuilt = Annotated[
    bool, flag("--replicas-rebuilt", "Only confirm that the replicas named by doctor were rebuilt.")
]


def rewind(
    instance: options.InstanceName = None,
    to: RewindPoint = None,
    origin: RewindFrom = "auto",
    history: options.History = None,
    server_id: RewoundServerId = None,
    resume: Annotated[bool, flag("--resume", "Resume an interrupted rewind.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Stop the server without a confirmation.")] = False,
    no_backup: Annotated[bool, flag("--no-backup", "Skip the backup at the end. The next one is urgent.")] = False,
    replicas_will_be_rebuilt: options.ReplicasWillBeRebuilt = False,
    replicas_rebuilt: ReplicasRebuilt = False,
    wait: options.WaitTime = "0s",
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Rewind the server of an instance to a point, in place. With --plan: 4 if it would be refused.

    The state is prepared and checked next to the running server, from the snapshots and binlogs on this host. Then the
    server is stopped, its datasets are replaced and kept, and it is started again. A backup of the new history follows.
    """
    from zsnapdb.jobs.restore import rewind as job
    from zsnapdb.jobs.restore import rewind as plans
    from zsnapdb.jobs.restore.plan import origin_of
    from zsnapdb.report.restore import result as report

    if [to is not None, resume, replicas_rebuilt].count(True) != 1:
        raise UsageError("a rewind needs one of --to, --resume and --replicas-rebuilt", hint="for example --to 10m")
    settings, chosen = instance_metrics(config, instance, binary=binary, wait=wait)
    if replicas_rebuilt:
        _forget_readers(chosen, json)
        return
    chosen = chosen.rebuilding_replicas(replicas_will_be_rebuilt)
    ask = _always if yes else _ask_on_terminal
    if not yes and not plan and not sys.stdin.isatty():
        raise UsageError("a rewind stops the server; the confirmation needs a terminal", hint="add --yes")
    if resume:
        if plan:
            raise UsageError("--plan and --resume exclude each other", hint="see `zsnapdb rewind --help`")
        result = job.resume(settings, chosen, ask, backs_up=not no_backup)
    else:
        request = plans.RewindRequest(to or "", origin_of(origin), server_id, history)
        planned = plans.plan(settings, chosen, request)
        if plan:
            _show_plan(settings, chosen, planned, json)
            return
        result = job.rewind(settings, chosen, planned, ask, backs_up=not no_backup)
    show(report.RewindView(result), json)
    if result.backup_error is not None:
        raise typer.Exit(result.backup_error.exit_code)


def _show_plan(settings: Settings, instance: Instance, planned: RewindPlan, json: bool) -> None:
    """Show the plan and the findings of its preflight. Exit as the rewind would if it were refused."""
    from zsnapdb.jobs.restore import rewind as plans
    from zsnapdb.jobs.restore.preflight import expected_error
    from zsnapdb.report.restore import result as report

    findings = plans.examine(settings, instance, planned)
    show(report.RewindPlanView(planned, findings), json)
    expected = expected_error(findings)
    if expected is not None:
        raise typer.Exit(expected.exit_code)


def _forget_readers(instance: Instance, json: bool) -> None:
    from zsnapdb.jobs.host import affected_replicas
    from zsnapdb.report.restore.result import ReplicasRebuiltView

    show(ReplicasRebuiltView(instance.name, affected_replicas.forget(instance)), json)


def _always(_outage: Outage) -> bool:
    return True


def _ask_on_terminal(outage: Outage) -> bool:
    from zsnapdb.report.restore.result import question

    return typer.confirm(question(outage), default=False, err=True)

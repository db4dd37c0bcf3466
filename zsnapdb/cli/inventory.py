"""`zsnapdb list`, `show` and `status`."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.base.errors import DamagedError, UsageError, ZsnapdbError
from zsnapdb.cli import completion, log_writer
from zsnapdb.cli.command_context import configuration, host_context, instance_context
from zsnapdb.cli.main_process import unexpected_system_error
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, NamedInstance, RepositoryName, argument, flag, option
from zsnapdb.cli.output import show, show_errors, show_missing


def list_backups(
    instance: InstanceName = None,
    repository: RepositoryName = None,
    local: Annotated[bool, flag("--local", "List the snapshot sets on this host without a repository.")] = False,
    instances: Annotated[
        bool, flag("--instances", "List the instances in each repository. No name is needed.")
    ] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """List the backups of an instance, oldest first.

    Exit code 7: a manifest cannot be read, or the repository lacks a backup that this host stored. With --instances,
    exit code 6: a repository cannot be reached, or is empty.
    """
    if instances:
        if instance is not None or local:
            raise UsageError("--instances takes no INSTANCE and no --local", hint="leave them out")
        _list_instances(repository, config, json)
        return
    if local:
        if repository is not None:
            raise UsageError("--local does not read a repository", hint="leave out --repository")
        from zsnapdb.jobs.backup import local_snapshot
        from zsnapdb.jobs.base.instance import Instance
        from zsnapdb.report.backup import LocalSetsView

        show(LocalSetsView(local_snapshot.complete_sets(Instance.of(configuration(config), instance))), json)
        return
    from zsnapdb.jobs.repository import inventory
    from zsnapdb.report.repository.list import InventoryView

    backups = inventory.inventory(instance_context(config, instance, repository)[1])
    show(InventoryView(backups), json)
    show_errors(backups.damaged)
    is_lacking = show_missing(backups.missing)
    if backups.damaged:
        raise typer.Exit(backups.damaged[0].exit_code)
    if is_lacking:
        raise typer.Exit(DamagedError.exit_code)


def _list_instances(repository: str | None, config: Path | None, json: bool) -> None:
    from zsnapdb.jobs.repository import inventory as job
    from zsnapdb.report.repository.list import StoredInstancesView

    settings, host = host_context(config)
    found = job.list_instances(settings, host, repository)
    errors = [one.error for one in found if one.error is not None]
    if json or len(errors) < len(found):
        show(StoredInstancesView(found), json)
    show_errors(errors)
    if errors:
        raise typer.Exit(max(error.exit_code for error in errors))


def show_backup(
    instance: NamedInstance,
    backup: Annotated[str, argument("BACKUP", "Backup id, or latest.", autocompletion=completion.backups)] = "latest",
    settings: Annotated[
        bool, flag("--settings", "Print the recorded settings of the server as an option file.")
    ] = False,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the position, lock, volumes and chain of one backup, or the recorded settings of its server."""
    from zsnapdb.jobs.repository import inventory
    from zsnapdb.report.repository.list import BackupDetailView, BackupSettingsView

    chosen = instance_context(config, instance, repository)[1]
    if settings:
        show(BackupSettingsView(inventory.backup_settings(chosen, backup)), json)
        return
    detail = inventory.detail(chosen, backup)
    show(BackupDetailView(detail), json)
    show_missing(detail.missing)


_BROKEN = 2
"""The exit code for a broken objective, unwritable metrics, and unexpected errors.

Monitors would interpret exit code 1 as a warning.
"""


def status(
    instance: InstanceName = None,
    every: Annotated[bool, flag("--all", "Show every configured instance.")] = False,
    repository: RepositoryName = None,
    metrics: Annotated[
        Path | None, option("--metrics", "FILE.prom", "Also write metrics for the textfile collector of node_exporter.")
    ] = None,
    notify: Annotated[bool, flag("--notify", "Also notify about objectives that broke or are met again.")] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the points in time to which an instance can be restored, and whether its objectives are met.

    Also show the age of the last backup and of the last archived transaction, and the last drill.

    Exit codes: 0 every objective is met; 1 a warning or undelivered notification; 2 broken objective or unwritable
    metrics; 6 nothing restorable or repository unreadable; 7 damage or missing backups.

    With --all, the exit code is the highest of all instances.
    """
    if every and instance is not None:
        raise UsageError("INSTANCE and --all are given", hint="leave out one of them")
    if notify and repository is not None:
        raise UsageError(
            "--notify applies only to the configured repositories of the instances", hint="leave out --repository"
        )
    try:
        code = _show(instance, every, repository, metrics, notify, config, json)
    except (ZsnapdbError, typer.Exit, BrokenPipeError):
        raise
    except OSError as error:
        show_errors([unexpected_system_error(error)])
        code = _BROKEN
    except Exception:
        traceback.print_exc()
        code = _BROKEN
    if code:
        raise typer.Exit(code)


def _show(
    instance: str | None,
    every: bool,
    repository: str | None,
    metrics: Path | None,
    notify: bool,
    config: Path | None,
    json: bool,
) -> int:
    """Print the state, write the metrics, and return the exit code."""
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.health import health
    from zsnapdb.jobs.repository import protection_status as job
    from zsnapdb.notify.sent_notifications import failed_deliveries
    from zsnapdb.report.repository import protection as report

    if metrics is not None:
        health.check_name(metrics)
    settings, host = host_context(config)
    states = (
        job.statuses(settings, repository) if every else [job.observed(Instance.at(settings, instance, repository))]
    )
    errors: list[ZsnapdbError] = []
    if metrics is not None:
        from zsnapdb.report.metrics import text as metrics_text

        try:
            health.write(metrics, metrics_text(states, host.now()))
        except ZsnapdbError as error:
            # Notifications are sent even if the metrics cannot be written because the disk is full.
            errors.append(error)
    if notify:
        from zsnapdb.notify.occasions import notify_of

        notify_of(settings, states, host.now(), log_writer.warn)
    failed = failed_deliveries(settings)
    if every:
        show(report.AllStatusView(states, failed), json)
    else:
        (state,) = states
        if state.status is None:
            raise state.error or ZsnapdbError(f"instance {state.instance} has no state")
        show(report.StatusView(state.status, failed), json)
    alarms = (job.alarm(state.status) for state in states if state.status is not None)
    show_errors([*(alarm for alarm in alarms if alarm is not None), *errors])
    # An unreachable target would also miss the notification of the next problem.
    return max((*(state.exit_code for state in states), int(bool(failed)), _BROKEN if errors else 0))

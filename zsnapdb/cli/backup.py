"""`zsnapdb backup`."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.base.errors import UsageError
from zsnapdb.cli.command_context import instance_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, Once, PlanOnly, WaitTime, flag, option
from zsnapdb.cli.output import show


def backup(
    instance: InstanceName = None,
    full: Annotated[bool, flag("--full", "Make a full backup, which starts a new chain.")] = False,
    fresh: Annotated[bool, flag("--fresh", "Abandon an interrupted backup instead of finishing it first.")] = False,
    local_set: Annotated[
        str | None, option("--set", "ID", "Store this set of `zsnapdb snapshot` (or latest) without the server.")
    ] = None,
    once: Once = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot an instance and store the backup in the repository.

    The snapshot is consistent over all volumes. The backup is incremental if an earlier backup can be its base,
    otherwise full. An interrupted backup is finished first, from its own snapshots.

    With --once the command can be repeated: it finishes the backup of that run, or shows the backup if the repository
    already has it. No second backup is made.
    """
    from zsnapdb.jobs.backup.low_priority import at_low_priority, lower_permanently

    # The start of zsnapdb takes as long as the remaining work. With few processors, it would delay the server's
    # commits.
    with at_low_priority():
        from zsnapdb.cli import log_writer
        from zsnapdb.jobs.backup import plan as backup_plan
        from zsnapdb.jobs.backup import run as job
        from zsnapdb.report import backup as report

        _, chosen = instance_context(config, instance, wait=wait)

    if plan and local_set is not None:
        raise UsageError("--plan does not apply to --set", hint="see the set with `zsnapdb list --local`")
    if plan:
        show(report.BackupPlanView(backup_plan.plan_now(chosen, full=full, fresh=fresh)), json)
        return
    if local_set is not None:
        result = job.backup_local_set(chosen, local_set, full=full, fresh=fresh, once=once is not None)
    else:
        result = job.backup(chosen, full=full, fresh=fresh, once=once is not None)
    lower_permanently()
    log_writer.add_log_fields(backup_id=result.manifest.backup_id)
    show(report.BackupView(result), json)


def snapshot(
    instance: InstanceName = None,
    once: Once = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot an instance on this host only, without a backup or repository.

    The set is as consistent as a backup and can be cloned. Sets expire by the rules of [instance.NAME.local]; `zsnapdb
    list --local` shows them.
    """
    from zsnapdb.jobs.backup.low_priority import at_low_priority, lower_permanently

    # As in `zsnapdb backup`, the start of the program takes longer than the snapshot.
    with at_low_priority():
        from zsnapdb.jobs.backup import local_snapshot as job
        from zsnapdb.report import backup as report

        _, chosen = instance_context(config, instance, wait=wait)

    if plan:
        show(report.LocalSnapshotPlanView(job.plan(chosen)), json)
        return

    def make() -> CommandAnswer:
        result = job.snapshot(chosen, once=once is not None)
        lower_permanently()
        return CommandAnswer(report.LocalSnapshotView(result))

    command = Repeatable("snapshot", chosen.name, patience=chosen.wait, tell=chosen.events.tell)
    show_once(chosen.host, once, command, make, json)

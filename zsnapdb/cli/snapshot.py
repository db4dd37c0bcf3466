"""`zsnapdb snapshot`."""

from __future__ import annotations

from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, Once, PlanOnly, WaitTime
from zsnapdb.cli.output import show


def snapshot(
    instance: InstanceName = None,
    once: Once = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot an instance on this host alone: no backup, no repository.

    The set is as consistent as that of a backup, and clones can be made of it. Sets expire by the rules of
    [instance.NAME.local]; `zsnapdb list --local` shows them.
    """
    from zsnapdb.jobs.backup.low_priority import at_low_priority, lower_for_good

    # As in `zsnapdb backup`: the start takes longer than the snapshot.
    with at_low_priority():
        from zsnapdb.jobs.backup import local_snapshot as job
        from zsnapdb.report import local_snapshot as report

        _, chosen = of_instance(config, instance, wait=wait)

    if plan:
        show(report.LocalSnapshotPlanView(job.plan(chosen)), json)
        return

    def make() -> CommandAnswer:
        result = job.snapshot(chosen, once=once is not None)
        lower_for_good()
        return CommandAnswer(report.LocalSnapshotView(result))

    command = Repeatable("snapshot", chosen.name, patience=chosen.wait, tell=chosen.events.tell)
    show_once(chosen.host, once, command, make, json)

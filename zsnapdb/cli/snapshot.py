"""`zsnapdb snapshot`."""

from __future__ import annotations

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, WaitTime
from zsnapdb.cli.output import show


def snapshot(
    instance: InstanceName = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot an instance on this host alone: no backup, no repository.

    The set is as consistent as that of a backup, and clones can be made of it. Sets expire by the rules of
    [instance.NAME.local]; `zsnapdb list --local` shows them.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.backup import local_snapshot as job
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.report import local_snapshot as report

    terminal = Terminal()
    chosen = Instance.of(load(config), instance, terminal).waiting(parse_duration(wait))
    if plan:
        show(report.LocalSnapshotPlanView(job.plan(chosen)), json)
        return
    result = job.snapshot(chosen)
    terminal.end()
    show(report.LocalSnapshotView(result), json)

"""`zsnapdb clone detach`."""

from __future__ import annotations

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show


def detach(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Make a clone an independent copy.

    The clone then needs no snapshot of its source. --plan shows the cost.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import detach as job
    from zsnapdb.report.clone import change as report

    settings = load(config)
    if plan:
        show(report.DetachPlanView(job.detach_plan(settings, THIS_HOST, name)), json)
        return
    terminal = Terminal()
    done = job.detach(settings, THIS_HOST, name, terminal)
    terminal.end()
    show(report.DetachedView(done), json)

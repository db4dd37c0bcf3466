"""`zsnapdb clone start` and `zsnapdb clone stop`."""

from __future__ import annotations

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, ServerBinary
from zsnapdb.cli.output import show


def start(
    name: CloneName,
    binary: ServerBinary = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Start the server of a stopped clone and check it again."""
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, lifecycle, plans
    from zsnapdb.report.clone import change as report

    settings = catalogue.with_binary(load(config), THIS_HOST, name, binary)
    if plan:
        show(report.IntentionView(plans.start(settings, THIS_HOST, name), "start"), json)
        return
    started = lifecycle.start(settings, THIS_HOST, name, Terminal())
    show(report.ChangedView(started, "started"), json)


def stop(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Shut the server of a clone down cleanly. The data stays."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import change as report

    if plan:
        show(report.IntentionView(plans.stop(load(config), THIS_HOST, name), "stop"), json)
        return
    show(report.ChangedView(lifecycle.stop(load(config), THIS_HOST, name), "stopped"), json)

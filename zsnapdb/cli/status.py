"""`zsnapdb status`."""

from __future__ import annotations

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show


def status(instance: InstanceName = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show to which points in time an instance can be restored, and how old what that needs is."""
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import status as job
    from zsnapdb.report.repository import status as report

    show(report.StatusView(job.status(Instance.of(load(config), instance))), json)

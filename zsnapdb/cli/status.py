"""`zsnapdb status`."""

from __future__ import annotations

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show


def status(instance: InstanceName = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show the points in time to which an instance can be restored.

    Also show the age of the last backup and of the last archived transaction, and the last drill.
    """
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import status as job
    from zsnapdb.report.repository import status as report

    show(report.StatusView(job.status(Instance.of(load(config), instance))), json)

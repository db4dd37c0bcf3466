"""`zsnapdb advise`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show


def advise(
    instance: InstanceName = None,
    period: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Watch the load for this long, for example 10m.")
    ] = "60s",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Say what a change of memory, pool or records would bring for the present load; change nothing.

    Reads counters of the server, the ARC, the intent log and the disks at the beginning and the end of a while. Shows
    the figures behind each line, and what no counter knows.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.doctor import load as job
    from zsnapdb.report.load import LoadView

    _, chosen = of_instance(config, instance)
    show(LoadView(job.watch(chosen, parse_duration(period))), json)

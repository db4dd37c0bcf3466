"""`zsnapdb clone logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show


def logs(
    name: CloneName,
    lines: Annotated[
        int, typer.Option("--lines", metavar="N", min=1, max=1000, help="How many lines, of at most 64 KiB.")
    ] = 100,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the end of the error log of a clone's server."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import server_log
    from zsnapdb.report.clone.server_log import ServerLogView

    show(ServerLogView(server_log.tail(load(config), THIS_HOST, name, lines)), json)

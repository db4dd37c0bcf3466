"""`zsnapdb clone addresses`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show


def addresses(
    follow: Annotated[
        bool, typer.Option("--follow", help="First let HAProxy lead every port where it must now.")
    ] = False,
    haproxy: Annotated[
        Path | None,
        typer.Option("--haproxy", metavar="FILE", help="First write the configuration of HAProxy to this file."),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """List the ports that clones keep through resets, and where HAProxy leads them."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import address as job
    from zsnapdb.report.clone.addresses import AddressesView

    settings = load(config)
    if haproxy is not None:
        job.write_configuration(settings, THIS_HOST, haproxy)
    if follow:
        job.follow(settings, THIS_HOST)
    show(AddressesView(job.look(settings, THIS_HOST)), json)

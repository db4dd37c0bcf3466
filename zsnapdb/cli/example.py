"""`zsnapdb example` and `zsnapdb grants`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show


class FlavourOption(Enum):
    """The flavour of a server."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


def example(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The example to print. Without it, list all examples.", show_default=False),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print an example file: a configuration, a unit, a policy, a hook. Needs no configuration."""
    from zsnapdb.jobs.shell import examples as job
    from zsnapdb.report import setup as report

    show(report.ExampleView(job.find(name)) if name is not None else report.ExamplesView(job.examples()), json)


def grants(
    instance: InstanceName = None,
    flavour: Annotated[
        FlavourOption | None,
        typer.Option("--flavour", help="The flavour of the server.", show_default="what the running server says"),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print the statements that make the account of zsnapdb on a server, with its grants.

    With --flavour alone, no configuration is needed.
    """
    from zsnapdb.base.model import Flavour
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.shell import examples as job
    from zsnapdb.report import setup as report

    if flavour is not None and instance is None:
        chosen, user = Flavour(flavour.value), job.DEFAULT_USER
    else:
        server = Instance.of(load(config), instance)
        chosen, user = Flavour(flavour.value) if flavour else job.flavour_of(server), server.settings.user
    show(report.GrantsView(chosen, job.grants(chosen, user)), json)

"""`zsnapdb clone connect`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.evidencing import evidence_of_clone
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show


def connect(
    context: typer.Context,
    name: CloneName,
    dsn: Annotated[bool, typer.Option("--dsn", help="Print a URL with the password; start no client.")] = False,
    env: Annotated[
        bool,
        typer.Option(
            "--env",
            help=(
                "Print shell exports with the password, by which the clients mysql and mariadb reach the clone; start"
                " no client. What ~/.my.cnf says comes first."
            ),
        ),
    ] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Connect to a clone with the server's own client. The words after NAME are passed to the client."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import client, lifecycle
    from zsnapdb.report.clone import connect as report

    settings = load(config)
    with evidence_of_clone(settings, name):
        login = lifecycle.login(settings, THIS_HOST, name)
    if dsn or env or json:
        show(report.LoginView(login, as_environment=env), json)
        return
    client.open_client(settings, THIS_HOST, name, login, context.args)

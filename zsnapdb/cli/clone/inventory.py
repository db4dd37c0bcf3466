"""`zsnapdb clone list`, `show`, `connect`, `logs` and `addresses`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.base import audience
from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.evidencing import evidence_of_clone
from zsnapdb.cli.opened import on_host
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show


def list_clones(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the clones, oldest first."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, elsewhere
    from zsnapdb.report.clone import list as report

    known, reader = catalogue.known(*on_host(config)), audience.current_audience()
    seen = tuple(elsewhere.with_servers_elsewhere([info for info in known.copies if reader.sees(info.owner)]))
    show(report.ClonesView(seen, THIS_HOST.now(), known.unreadable if reader.sees_all else ()), json)


def show_clone(name: CloneName, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show one clone and its commits."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, elsewhere, sources
    from zsnapdb.report.clone import list as report

    (info,) = elsewhere.with_servers_elsewhere([catalogue.find(*on_host(config), name)])
    show(report.CloneDetailView(info, sources.commits(info.top), THIS_HOST.now()), json)


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
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import list as report

    settings, host = on_host(config)
    with evidence_of_clone(settings, name):
        login = lifecycle.login(settings, host, name)
    if dsn or env or json:
        show(report.LoginView(login, as_environment=env), json)
        return
    lifecycle.open_client(settings, host, name, login, context.args)


def logs(
    name: CloneName,
    lines: Annotated[
        int, typer.Option("--lines", metavar="N", min=1, max=1000, help="How many lines, of at most 64 KiB.")
    ] = 100,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the end of the error log of a clone's server."""
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone.list import ServerLogView

    show(ServerLogView(lifecycle.tail(*on_host(config), name, lines)), json)


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
    from zsnapdb.jobs.clone import address as job
    from zsnapdb.report.clone.list import AddressesView

    settings, host = on_host(config)
    if haproxy is not None:
        job.write_configuration(settings, host, haproxy)
    if follow:
        job.follow(settings, host)
    show(AddressesView(job.look(settings, host)), json)

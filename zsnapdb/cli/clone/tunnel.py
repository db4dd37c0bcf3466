"""`zsnapdb clone tunnel`. The command also runs on computers without clones and without a configuration."""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path
from typing import Annotated

import typer

_NUMBER = {"min": 1, "max": 65535, "show_default": False}


def tunnel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the clone.")],
    via: Annotated[
        str | None, typer.Option("--via", metavar="HOST", help="The host for ssh. (default: that of ZSNAPDB_URL)")
    ] = None,
    local_port: Annotated[
        int | None,
        typer.Option(
            "--local-port",
            metavar="PORT",
            help="The port of this computer. (default: the port of the clone, or a free port)",
            **_NUMBER,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", help="The port of the clone. (default: ask ZSNAPDB_URL)", **_NUMBER),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="The authority of the service's certificate. (default: those of this host)",
            readable=False,
        ),
    ] = None,
) -> None:
    """Forward a port of this computer to a clone on another host, by ssh, until Ctrl-C.

    The command starts ssh with the user's ssh configuration and keys. It needs neither the clone's password nor root
    rights.
    """
    from zsnapdb.base import program_start
    from zsnapdb.base.errors import PreflightError, UsageError
    from zsnapdb.base.untrusted_text import printed
    from zsnapdb.planning.clone.client_commands import LOCAL_HOST, tunnel_to
    from zsnapdb.planning.clone.isolation import ACCOUNT

    if port is not None and via is None:
        raise UsageError("--port is given without a host", hint="give --via HOST, too")
    host, address = via or "", LOCAL_HOST
    if port is None:
        host, address, port = _request_address(name, via, tls_ca)
    made = tunnel_to(host, local_port or _free_port(port), address, port)
    program = shutil.which("ssh", path=program_start.search_path())
    if program is None:
        raise PreflightError("the program ssh is not installed", hint="install the OpenSSH client")
    print(
        f"{LOCAL_HOST}:{made.local_port} leads to clone {printed(name)} by ssh to {made.via}; Ctrl-C ends it\n"
        f"  mysql --host={LOCAL_HOST} --port={made.local_port} --user={ACCOUNT} --password",
        flush=True,
    )
    program_start.become_user(made.arguments(program), program_start.for_site())


def _request_address(name: str, via: str | None, authority: Path | None) -> tuple[str, str, int]:
    """Ask the service for the ssh host of the clone, and for the address and port of the clone's server there."""
    from zsnapdb.base.errors import ConfigError, PreflightError, ZsnapdbError, missing_library
    from zsnapdb.client.connection import connection
    from zsnapdb.client.errors import CloneCommandError

    try:
        from zsnapdb.client.http import Client
    except ImportError as error:
        raise missing_library("client", error) from error
    try:
        host = connection(ca_file=authority).host
    except CloneCommandError as error:
        raise ConfigError(error.message, hint=f"{error.hint}; or give --via HOST and --port PORT") from error
    try:
        with Client(ca_file=authority) as service:
            clone = service.get(name)
    except CloneCommandError as error:
        refused = ZsnapdbError(error.message, hint=error.hint)
        refused.code, refused.exit_code = error.code or refused.code, error.exit_code
        raise refused from error
    if clone.pid is None and not clone.elsewhere:
        raise PreflightError(f"the server of clone {clone.name} does not run", hint="start or reset the clone")
    return via or host, clone.bind_address, clone.port


def _free_port(wanted: int) -> int:
    """Return the port `wanted` if this computer does not use it, and a free port otherwise."""
    for number in (wanted, 0):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", number))
            return int(tried.getsockname()[1])
    return wanted

"""`zsnapdb mcp`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import INTERRUPTED

if TYPE_CHECKING:
    from zsnapdb.mcp.toolbox import Toolbox

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class CloneTls(Enum):
    """How servers of clones are reached by TCP."""

    REQUIRED = "required"
    PREFERRED = "preferred"


def mcp(
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Destroy at the end what was made, and give it a lease of --ttl.")
    ] = False,
    writes: Annotated[bool, typer.Option("--writes", help="Let the agent change data in its clones.")] = False,
    show_logins: Annotated[
        bool, typer.Option("--show-logins", help="Tell the agent user and password of each clone that it makes.")
    ] = False,
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl", metavar="DURATION", help="The lease of a clone, if the agent names none.", show_default=False
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="The authority of the service's certificate. (default: those of this host)",
            readable=False,
            show_default=False,
        ),
    ] = None,
    clone_host: Annotated[
        str | None,
        typer.Option(
            "--clone-host",
            metavar="HOST",
            help="Where servers of clones are reached. (default: where they listen, as the service says)",
            show_default=False,
        ),
    ] = None,
    clone_tls: Annotated[
        CloneTls | None,
        typer.Option(
            "--clone-tls",
            help="TLS to servers of clones. (default: required, preferred on this host)",
            show_default=False,
        ),
    ] = None,
    clone_tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--clone-tls-ca",
            metavar="FILE",
            help="The authority of their certificates. (default: those of this host)",
            readable=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Give the agent of a developer clones, by the Model Context Protocol on stdin and stdout, until stdin ends.

    It asks the service that ZSNAPDB_URL names, with the rights of ZSNAPDB_TOKEN. Needs the extra zsnapdb[mcp].
    """
    from zsnapdb.base.errors import missing_library
    from zsnapdb.base.quantities import parse_duration

    if ttl is not None:
        parse_duration(ttl)
    try:
        from zsnapdb.mcp.server import server_of
        from zsnapdb.mcp.toolbox import Toolbox, ToolRights, client_of, tls_of
    except ImportError as error:
        raise missing_library("mcp", error) from error
    lease = ttl if ttl is not None or not ephemeral else "2h"
    tls = tls_of(clone_tls.value if clone_tls is not None else None, clone_tls_ca)
    api = client_of(tls_ca)
    tools = Toolbox(api, ToolRights(writes, show_logins, lease, clone_host, tls))
    _end_on_signals(lambda: _end(tools, is_ephemeral=ephemeral))
    try:
        server_of(tools).run("stdio")
    finally:
        _end(tools, is_ephemeral=ephemeral)
        api.close()


def _end(tools: Toolbox, *, is_ephemeral: bool) -> None:
    for left in tools.end() if is_ephemeral else ():
        print(f"not destroyed: {left}; it goes when its lease ends", file=sys.stderr, flush=True)


def _end_on_signals(end: Callable[[], None]) -> None:
    """Let a signal end the process after that. A second one ends it at once.

    An exception would wait for the thread that reads stdin, which ends with the next line alone.
    """

    def ended(*_: object) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        end()
        os._exit(INTERRUPTED)

    for one in _SIGNALS:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, ended)

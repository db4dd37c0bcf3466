"""`zsnapdb mcp`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from zsnapdb.base.errors import INTERRUPTED
from zsnapdb.cli.options import flag, option

if TYPE_CHECKING:
    from zsnapdb.mcp.tools import Toolbox

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class CloneTls(Enum):
    """How connections to the servers of clones use TLS."""

    REQUIRED = "required"
    PREFERRED = "preferred"


AuthorityFile = Annotated[
    Path | None,
    option("--tls-ca", "FILE", "CA file of the service's certificate. (default: CAs of this host)", readable=False),
]
CloneHost = Annotated[
    str | None, option("--clone-host", "HOST", "Host of the clones' servers. (default: the address from the service)")
]
CloneAuthorityFile = Annotated[
    Path | None,
    option(
        "--clone-tls-ca", "FILE", "CA file of the clones' certificates. (default: CAs of this host)", readable=False
    ),
]


def mcp(
    ephemeral: Annotated[
        bool, flag("--ephemeral", "Give new clones a lease of --ttl and destroy them at the end.")
    ] = False,
    writes: Annotated[bool, flag("--writes", "Let the agent change data in its clones.")] = False,
    show_logins: Annotated[
        bool, flag("--show-logins", "Show the agent user and password of each clone that it creates.")
    ] = False,
    ttl: Annotated[str | None, option("--ttl", "DURATION", "Lease of a clone if the agent gives none.")] = None,
    tls_ca: AuthorityFile = None,
    clone_host: CloneHost = None,
    clone_tls: Annotated[
        CloneTls | None, flag("--clone-tls", "TLS to servers of clones. (default: required; on this host preferred)")
    ] = None,
    clone_tls_ca: CloneAuthorityFile = None,
) -> None:
    """Offer clones to a developer's AI agent, by the Model Context Protocol on stdin and stdout, until stdin ends.

    The command uses the service at ZSNAPDB_URL with the rights of the token ZSNAPDB_TOKEN. Needs the extra
    zsnapdb[mcp].
    """
    from zsnapdb.base.errors import missing_library
    from zsnapdb.base.quantities import parse_duration

    if ttl is not None:
        parse_duration(ttl)
    try:
        from zsnapdb.mcp.server import server_of
        from zsnapdb.mcp.tools import Toolbox, ToolRights, client_of, tls_of
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
    """Make each signal call `end` and then end the process. A second signal ends the process immediately.

    An exception from the handler would not end the process until the thread that reads stdin gets its next line.
    """

    def ended(*_: object) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        end()
        os._exit(INTERRUPTED)

    for one in _SIGNALS:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, ended)

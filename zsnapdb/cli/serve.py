"""`zsnapdb serve` and `zsnapdb serve-helper`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.exit_codes import stop_on_signals
from zsnapdb.cli.options import ConfigFile

_LOOPBACK = ("127.0.0.1", "::1")
_PATIENCE = 70.0
"""How many seconds commands have to undo what they began; the unit gives the helper 90."""


def serve(
    socket: Annotated[
        Path, typer.Option("--socket", metavar="PATH", help="The socket of the helper.", readable=False)
    ] = Path("/run/zsnapdb-serve/helper.sock"),
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="Where to listen: 127.0.0.1 or ::1.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="NUMBER", min=1, max=65535, help="On which port.")] = 9808,
) -> None:
    """Serve clones by HTTP to holders of tokens. Runs under an account of its own and reads no configuration.

    It passes requests to `zsnapdb serve-helper`, which decides about them. Needs the extra zsnapdb[serve].
    """
    from zsnapdb.base.errors import ConfigError
    from zsnapdb.serve.helper_client import HelperClient

    if address not in _LOOPBACK:
        raise ConfigError(
            f"{address} is beyond loopback, and this speaks no TLS",
            hint="listen on 127.0.0.1, with a reverse proxy that speaks TLS before it",
        )
    try:
        from zsnapdb.serve.web_server import serve_web
    except ImportError as error:
        raise ConfigError(
            f"the library {error.name} is missing", hint="install it: `pip install 'zsnapdb[serve]'`"
        ) from error
    serve_web(HelperClient(socket), address, port)


def serve_helper(config: ConfigFile = None) -> None:
    """Answer `zsnapdb serve` on a socket, as root, until SIGTERM: check tokens, roles and limits, run commands.

    The limits stand in [serve]. systemd may hand over the socket.
    """
    import os

    from zsnapdb.agent.service_manager import notify
    from zsnapdb.base.foreign_json import fields_of
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.exclusion import exclusive
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, sources
    from zsnapdb.report.clone.list import ClonesView
    from zsnapdb.serve.children import ChildRunner
    from zsnapdb.serve.desk import Desk
    from zsnapdb.serve.helper import HelperServer, answered_uids, listening
    from zsnapdb.serve.messages import ResultAnswer
    from zsnapdb.serve.operations import Operations
    from zsnapdb.serve.protection import ProtectionReader
    from zsnapdb.serve.seen import SeenCommit
    from zsnapdb.serve.tokens import TokenBook

    limits = load(config).serve
    stop = stop_on_signals((signal.SIGTERM, signal.SIGINT))
    environment = {"ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else {}
    runner = ChildRunner(environment=environment)
    # What is read waits for no change.
    reader = ChildRunner(environment=environment, most=4, patience=10.0, grace=5.0)

    def look() -> ResultAnswer:
        known = catalogue.known(load(config), THIS_HOST)
        listed = ClonesView(known.copies, THIS_HOST.now(), known.unreadable).document()
        return ResultAnswer.model_validate({"document": fields_of(listed)})

    def commits() -> Sequence[SeenCommit]:
        seen = [one for top in catalogue.homes(load(config)) for one in sources.commits(top)]
        return [SeenCommit(one.set.backup_id, one.owner) for one in seen]

    with exclusive("serve-helper", doing="the helper of `zsnapdb serve`", folder=THIS_HOST.run):
        operations = Operations(THIS_HOST.serve / "operations", THIS_HOST.now)
        desk = Desk(
            settings=lambda: load(config),
            tokens=TokenBook(THIS_HOST.serve),
            operations=operations,
            look=look,
            commits=commits,
            run=runner,
            protection=ProtectionReader(reader),
            now=THIS_HOST.now,
        )
        uids = answered_uids(limits.account)
        with listening(limits.socket, limits.account, os.environ) as listener:
            notify("READY=1")
            HelperServer(listener, desk, uids).serve(stop)
            notify("STOPPING=1")
        runner.stop()
        reader.stop()
        operations.settle(_PATIENCE)

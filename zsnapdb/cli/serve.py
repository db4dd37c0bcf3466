"""`zsnapdb serve` and `zsnapdb serve-helper`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.exit_codes import stop_on_signals
from zsnapdb.cli.options import ConfigFile

if TYPE_CHECKING:
    from zsnapdb.serve.id_tokens import IdTokens
    from zsnapdb.serve.issuer_keys import IssuerKeys

_LOOPBACK = ("127.0.0.1", "::1")
_PATIENCE = 70.0
"""Seconds in which running commands can undo their changes. The systemd unit gives the helper 90 s."""


def serve(
    socket: Annotated[
        Path, typer.Option("--socket", metavar="PATH", help="Socket of the helper.", readable=False)
    ] = Path("/run/zsnapdb-serve/helper.sock"),
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Address to listen on. Other addresses than loopback need a certificate.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="NUMBER", min=1, max=65535, help="Port to listen on.")] = 9808,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help="HTTPS certificate (PEM), followed by the other certificates of its chain.",
            readable=False,
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            help="Private key of the certificate, readable only by this account.",
            readable=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve clones over HTTP to holders of tokens. Runs under its own account and reads no configuration.

    It passes requests to `zsnapdb serve-helper`, which decides about them. Needs the extra zsnapdb[serve]. With a
    certificate it may listen on other addresses than loopback. SIGHUP reloads certificate and key.
    """
    from zsnapdb.base.errors import ConfigError, UsageError, missing_library
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.serve.helper_messages import HelperClient

    if (tls_certificate is None) != (tls_key is None):
        raise UsageError("a certificate needs its key", hint="give --tls-certificate and --tls-key, or neither")
    if address not in _LOOPBACK and tls_certificate is None:
        raise ConfigError(
            f"{address} is not a loopback address, and TLS is not configured",
            hint="give --tls-certificate and --tls-key, or listen on 127.0.0.1 behind a reverse proxy that speaks TLS",
        )
    try:
        from zsnapdb.serve.web_server import TlsFiles, serve_web
    except ImportError as error:
        raise missing_library("serve", error) from error
    files = TlsFiles(tls_certificate, tls_key, THIS_HOST.now) if tls_certificate and tls_key else None
    serve_web(HelperClient(socket), address, port, files)


def serve_helper(config: ConfigFile = None) -> None:
    """Answer `zsnapdb serve` on a socket, as root, until SIGTERM: check tokens, roles and limits, run commands.

    [serve] of the configuration has the limits. systemd may pass the socket.
    """
    import math
    import os

    from zsnapdb.agent.children import apart
    from zsnapdb.agent.daemon import notify
    from zsnapdb.agent.fork_server import JobStarter
    from zsnapdb.base.untrusted_text import fields_of
    from zsnapdb.cli.process import give_back_memory
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.clock_record import removal_time
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.run_locks import exclusive
    from zsnapdb.jobs.clone import catalogue, lifecycle, sources
    from zsnapdb.report.clone.list import ClonesView
    from zsnapdb.report.fleet.status import FleetSnapshot
    from zsnapdb.serve.clone_documents import PublicCommit
    from zsnapdb.serve.command_processes import CLEAN, ChildRunner
    from zsnapdb.serve.helper import HelperServer, answered_uids, listening
    from zsnapdb.serve.helper_messages import ResultAnswer
    from zsnapdb.serve.issuer_keys import IssuerKeys, fetch_with
    from zsnapdb.serve.issuer_requests import exchange_with
    from zsnapdb.serve.login_handler import LOGINS_AT_ONCE, LiveTokens, LoginHandler
    from zsnapdb.serve.operations import Operations
    from zsnapdb.serve.protection import ProtectionReader, RecentAnswers
    from zsnapdb.serve.request_handler import RequestHandler
    from zsnapdb.serve.tokens import CredentialStore, TokenBook

    give_back_memory()
    limits = configuration(config).serve
    stop = stop_on_signals((signal.SIGTERM, signal.SIGINT))
    environment = {"ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else {}
    # Users wait for these commands, so their modules are already imported. Requests to issuers start a new process.
    starter = JobStarter({**CLEAN, **environment}, frequent=math.inf)
    runner = ChildRunner(starter.apart, environment)
    # Reads do not wait for changes.
    reader = ChildRunner(starter.apart, environment, most=4, patience=10.0, grace=5.0)
    fetcher = ChildRunner(apart, environment, most=1)
    exchanger = ChildRunner(apart, environment, most=LOGINS_AT_ONCE, grace=5.0)

    def look() -> ResultAnswer:
        known = catalogue.known(configuration(config), THIS_HOST)
        listed = ClonesView(known.copies, THIS_HOST.now(), known.unreadable).document()
        return ResultAnswer.model_validate({"document": fields_of(listed)})

    def commits() -> Sequence[PublicCommit]:
        seen = [one for top in catalogue.homes(configuration(config)) for one in sources.commits(top)]
        return [PublicCommit(one.set.backup_id, one.owner) for one in seen]

    def beat(clone: str) -> None:
        # A reset that swaps datasets changes the dataset, whose name identifies the heartbeats.
        lifecycle.beat(configuration(config), THIS_HOST, clone)

    recent = RecentAnswers()
    with exclusive("serve-helper", doing="the helper of `zsnapdb serve`", folder=THIS_HOST.run):
        operations = Operations(THIS_HOST.serve / "operations", THIS_HOST.now, lambda: removal_time(THIS_HOST).at)
        # Tokens stay expired after the clock is set back.
        now = THIS_HOST.latest
        keys = IssuerKeys(
            THIS_HOST.serve / "issuers", lambda: load(config).serve.issuer, fetch_with(fetcher), THIS_HOST.now
        )
        tokens = TokenBook(THIS_HOST.serve, operations.removal_time)
        id_tokens = _id_tokens(keys, is_needed=bool(limits.issuer))
        live = LiveTokens(tokens, keys.issuers)
        desk = RequestHandler(
            settings=lambda: load(config),
            tokens=CredentialStore(live, id_tokens) if id_tokens is not None else live,
            operations=operations,
            look=look,
            commits=commits,
            run=runner,
            protection=ProtectionReader(reader, recent),
            beat=beat,
            now=now,
            fleet=FleetSnapshot(THIS_HOST),
            logins=LoginHandler(
                lambda: load(config).serve, tokens, keys, id_tokens, exchange_with(exchanger), THIS_HOST.now
            )
            if id_tokens is not None
            else None,
        )
        uids = answered_uids(limits.account)
        with listening(limits.socket, limits.account, os.environ) as listener:
            starter.prepare()
            threading.Thread(target=keys.keep_fresh, args=(stop,), daemon=True).start()
            threading.Thread(target=recent.keep_warm, args=(stop,), daemon=True).start()
            notify("READY=1")
            HelperServer(listener, desk, uids, tidy=starter.tidy).serve(stop)
            notify("STOPPING=1")
        fetcher.stop()
        exchanger.stop()
        runner.stop()
        reader.stop()
        operations.settle(_PATIENCE)
        starter.close()


def _id_tokens(keys: IssuerKeys, *, is_needed: bool) -> IdTokens | None:
    """Return the id tokens of issuers, None if the library for signatures is not installed.

    Raises: ConfigError if an issuer is configured and the library is missing.
    """
    from zsnapdb.base.errors import ConfigError, how_to_install, libraries_of

    try:
        from zsnapdb.serve.id_tokens import IdTokens
    except ImportError as error:
        if not is_needed:
            return None
        raise ConfigError(
            f"[serve.issuer] needs the library {error.name}", hint=how_to_install(*libraries_of("serve", error))
        ) from error
    return IdTokens(keys.issuers, keys)

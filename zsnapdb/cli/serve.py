"""`zsnapdb serve`, `zsnapdb serve-helper` and `zsnapdb token …`."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.main_process import stop_on_signals
from zsnapdb.cli.options import AsJson, ConfigFile, argument, flag, option
from zsnapdb.cli.output import show
from zsnapdb.cli.process_attributes import give_back_memory

if TYPE_CHECKING:
    from datetime import datetime

    from zsnapdb.serve.clone_documents import OwnedCommit
    from zsnapdb.serve.command_processes import RunCommand
    from zsnapdb.serve.helper_logins import LoginHandler
    from zsnapdb.serve.helper_messages import ResultAnswer
    from zsnapdb.serve.issuer_keys import IssuerKeys
    from zsnapdb.serve.tokens import CredentialBook

_LOOPBACK = ("127.0.0.1", "::1")
_PATIENCE = 70.0
"""Seconds within which running commands must undo their changes when the helper stops.

The systemd unit gives the helper 90 s.
"""


def serve(
    socket: Annotated[Path, option("--socket", "PATH", "Socket of the helper.", readable=False)] = Path(
        "/run/zsnapdb-serve/helper.sock"
    ),
    address: Annotated[
        str, option("--address", "ADDRESS", "Address to listen on. Other addresses than loopback need a certificate.")
    ] = "127.0.0.1",
    port: Annotated[int, option("--port", "NUMBER", "Port to listen on.", min=1, max=65535)] = 9808,
    tls_certificate: Annotated[
        Path | None,
        option(
            "--tls-certificate",
            "FILE",
            "HTTPS certificate (PEM), followed by the other certificates of its chain.",
            readable=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        option("--tls-key", "FILE", "Private key of the certificate, readable only by this account.", readable=False),
    ] = None,
) -> None:
    """Serve clones over HTTP to holders of tokens. Runs under its own account and reads no configuration.

    The process passes requests on to `zsnapdb serve-helper`, which makes all decisions. Needs the extra zsnapdb[serve].
    With a certificate, it may listen on addresses other than loopback. SIGHUP reloads certificate and key.
    """
    from zsnapdb.base.errors import ConfigError, UsageError, missing_library
    from zsnapdb.base.service_manager import notify
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
    serve_web(HelperClient(socket), address, port, files, lambda: notify("READY=1"))


def serve_helper(config: ConfigFile = None) -> None:
    """Answer `zsnapdb serve` on a socket, as root, until SIGTERM: check tokens, roles and limits, and run commands.

    The limits are set in [serve] of the configuration. systemd may pass the socket.
    """
    from zsnapdb.agent.children import start_detached
    from zsnapdb.agent.job_starter import JobStarter
    from zsnapdb.base.service_manager import notify
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.clock_record import removal_time
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.run_locks import exclusive
    from zsnapdb.report.fleet import FleetSnapshot
    from zsnapdb.serve.command_processes import CLEAN, ChildRunner
    from zsnapdb.serve.helper import HelperServer, answered_uids, listening
    from zsnapdb.serve.helper_logins import LOGINS_AT_ONCE
    from zsnapdb.serve.helper_request_handler import RequestHandler
    from zsnapdb.serve.operations import Operations
    from zsnapdb.serve.protection import ProtectionReader, RecentAnswers

    give_back_memory()
    limits = configuration(config).serve
    stop = stop_on_signals((signal.SIGTERM, signal.SIGINT))
    environment = {"ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else {}
    # Users wait for these commands, so their modules are imported in advance. Requests to issuers start a new process.
    starter = JobStarter({**CLEAN, **environment}, frequent=math.inf)
    runner = ChildRunner(starter.apart, environment)
    reader = ChildRunner(starter.apart, environment, most=4, patience=10.0, grace=5.0)  # does not wait for changes
    fetcher = ChildRunner(start_detached, environment, most=1)
    exchanger = ChildRunner(start_detached, environment, most=LOGINS_AT_ONCE, grace=5.0)
    recent = RecentAnswers()
    with exclusive("serve-helper", doing="the helper of `zsnapdb serve`", folder=THIS_HOST.run):
        operations = Operations(THIS_HOST.serve / "operations", THIS_HOST.now, lambda: removal_time(THIS_HOST))
        keys, tokens, logins = _credentials(config, lambda: removal_time(THIS_HOST).at, fetcher, exchanger)
        desk = RequestHandler(
            settings=lambda: load(config),
            tokens=tokens,
            operations=operations,
            look=lambda: _clones(config),
            commits=lambda: _commits(config),
            run=runner,
            protection=ProtectionReader(reader, recent),
            beat=lambda clone: _beat(config, clone),
            # Expired tokens stay expired, even if the clock is set back.
            now=THIS_HOST.latest,
            fleet=FleetSnapshot(THIS_HOST),
            logins=logins,
        )
        uids = answered_uids(limits.account)
        with listening(limits.socket, limits.account, os.environ) as listener:
            starter.prepare()
            threading.Thread(target=keys.keep_fresh, args=(stop,), daemon=True).start()
            threading.Thread(target=recent.keep_warm, args=(stop,), daemon=True).start()
            notify("READY=1")
            HelperServer(listener, desk, uids, tidy=starter.tidy).serve(stop)
            notify("STOPPING=1")
        for each in (fetcher, exchanger, runner, reader):
            each.stop()
        operations.settle(_PATIENCE)
        starter.close()


def _clones(config: Path | None) -> ResultAnswer:
    from zsnapdb.base.untrusted_text import fields_of
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.report.clone.list import ClonesView
    from zsnapdb.serve.helper_messages import ResultAnswer

    known = catalogue.known_clones(configuration(config), THIS_HOST)
    listed = ClonesView(known.copies, THIS_HOST.now(), known.unreadable).document()
    return ResultAnswer.model_validate({"document": fields_of(listed)})


def _commits(config: Path | None) -> Sequence[OwnedCommit]:
    from zsnapdb.jobs.clone import catalogue, sources
    from zsnapdb.serve.clone_documents import OwnedCommit

    seen = [one for top in catalogue.homes(configuration(config)) for one in sources.commits(top)]
    return [OwnedCommit(one.set.backup_id, one.owner) for one in seen]


def _beat(config: Path | None, clone: str) -> None:
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle

    # A reset that replaces datasets changes the dataset whose name identifies the clone's heartbeats.
    lifecycle.beat(configuration(config), THIS_HOST, clone)


def _credentials(
    config: Path | None, removal_time: Callable[[], datetime], fetcher: RunCommand, exchanger: RunCommand
) -> tuple[IssuerKeys, CredentialBook, LoginHandler | None]:
    """Return the keys of issuers, the credentials, and the handler of logins.

    If the library for signatures is missing, nobody can log in.

    Raises: ConfigError if an issuer is configured and the library is missing.
    """
    from zsnapdb.base.errors import ConfigError, how_to_install, libraries_of
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.serve.helper_logins import LiveTokens, LoginHandler
    from zsnapdb.serve.issuer_keys import IssuerKeys, fetch_with
    from zsnapdb.serve.issuer_requests import exchange_with
    from zsnapdb.serve.tokens import CredentialStore, TokenBook

    fetch = fetch_with(fetcher)
    keys = IssuerKeys(THIS_HOST.serve / "issuers", lambda: load(config).serve.issuer, fetch, THIS_HOST.now)
    tokens = TokenBook(THIS_HOST.serve, removal_time)
    live = LiveTokens(tokens, keys.issuers)
    try:
        from zsnapdb.serve.id_tokens import IdTokens
    except ImportError as error:
        if not configuration(config).serve.issuer:
            return keys, live, None
        raise ConfigError(
            f"[serve.issuer] needs the library {error.name}", hint=how_to_install(*libraries_of("serve", error))
        ) from error
    id_tokens = IdTokens(keys.issuers, keys)
    exchange = exchange_with(exchanger)
    logins = LoginHandler(lambda: load(config).serve, tokens, keys, id_tokens, exchange, THIS_HOST.now)
    return keys, CredentialStore(live, id_tokens), logins


_MOST_OF_GRANT = 16 * 1024


class RoleOption(Enum):
    """Role of a token's holder."""

    VIEWER = "viewer"
    DEVELOPER = "developer"
    OPERATOR = "operator"
    AUDITOR = "auditor"


def create_token(
    subject: Annotated[
        str, option("--for", "SUBJECT", "Holder of the token: unix:ACCOUNT, user:MAIL-ADDRESS or ci:PROJECT/PATH.")
    ],
    role: Annotated[
        RoleOption,
        flag("--role", "Role: viewer (read), developer (own clones), operator (all clones), auditor (read all)."),
    ] = RoleOption.DEVELOPER,
    expires: Annotated[str, option("--expires", "DURATION", "Validity of the token, for example 90d.")] = "90d",
    config: ConfigFile = None,  # noqa: ARG001 - its repositories keep the evidence
    json: AsJson = False,
) -> None:
    """Create a token and print it once. Only its SHA-256 is stored."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.roles import Role
    from zsnapdb.serve.tokens import TokenBook

    book = TokenBook(THIS_HOST.serve)
    made = book.create(subject, Role(role.value), parse_duration(expires), THIS_HOST.latest())
    show(report.NewTokenView(made), json)


def list_tokens(json: AsJson = False) -> None:
    """List the tokens, oldest first, including expired and revoked ones."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.tokens import TokenBook

    show(report.TokensView(TokenBook(THIS_HOST.serve).tokens(), THIS_HOST.now()), json)


def revoke_token(
    token_id: Annotated[str, argument("TOKEN", "Token id from `zsnapdb token list`.")],
    config: ConfigFile = None,  # noqa: ARG001 - its repositories keep the evidence
    json: AsJson = False,
) -> None:
    """Revoke a token: the next request with it is refused.

    The clones of the token's subject remain until their leases end.
    """
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.tokens import TokenBook

    show(report.RevokedTokenView(TokenBook(THIS_HOST.serve).revoke(token_id, THIS_HOST.now())), json)


def issuer_keys(
    issuer: Annotated[str, argument("ISSUER", "NAME of a section [serve.issuer.NAME].")],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Fetch and show the public keys with which an issuer signs id tokens.

    The helper fetches the keys in the same way.
    """
    from zsnapdb.base.errors import UsageError
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.issuer_requests import UnprivilegedHttps, fetched, tls_context

    limits = configuration(config).serve
    chosen = limits.issuer.get(issuer)
    if chosen is None:
        known = ", ".join(sorted(limits.issuer)) or "none is configured: write [serve.issuer.NAME]"
        raise UsageError(f"there is no issuer {issuer!r} in the configuration", hint=f"choose from: {known}")
    found = fetched(chosen, UnprivilegedHttps(tls_context(chosen), limits.fetch_account))
    show(report.IssuerKeysView(found), json)


def exchange_code(
    issuer: Annotated[str, argument("ISSUER", "NAME of a section [serve.issuer.NAME].")],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Exchange the code of a login for an id token. The helper runs this command and sends the code on stdin."""
    import sys

    from zsnapdb.base.errors import UsageError
    from zsnapdb.serve.issuer_requests import UnprivilegedHttps, document, exchanged, grant_in, tls_context

    if not json or sys.stdin.isatty():
        raise UsageError("only the helper of `zsnapdb serve` uses this command", hint="log in at the page")
    limits = configuration(config).serve
    chosen = limits.issuer.get(issuer)
    if chosen is None or chosen.login is None:
        raise UsageError(f"no log-in is configured for issuer {issuer!r}", hint="write [serve.issuer.NAME.login]")
    ask = UnprivilegedHttps(tls_context(chosen), limits.fetch_account)
    print(document(exchanged(chosen, grant_in(sys.stdin.buffer.read(_MOST_OF_GRANT)), ask)))

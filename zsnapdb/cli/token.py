"""`zsnapdb token …`: the tokens for `zsnapdb serve`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.options import AsJson, ConfigFile, argument, flag, option
from zsnapdb.cli.output import show

_MOST_OF_GRANT = 16 * 1024


class RoleOption(Enum):
    """Role of the holder of a token."""

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
    json: AsJson = False,
) -> None:
    """Create a token and print it once. Only its SHA-256 is kept."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.roles import Role
    from zsnapdb.serve.tokens import TokenBook

    book = TokenBook(THIS_HOST.serve)
    made = book.create(subject, Role(role.value), parse_duration(expires), THIS_HOST.latest())
    show(report.NewTokenView(made), json)


def list_tokens(json: AsJson = False) -> None:
    """List the tokens, oldest first, also expired and revoked ones."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.tokens import TokenBook

    show(report.TokensView(TokenBook(THIS_HOST.serve).tokens(), THIS_HOST.now()), json)


def revoke_token(
    token_id: Annotated[str, argument("TOKEN", "Token id from `zsnapdb token list`.")], json: AsJson = False
) -> None:
    """Revoke a token: the next request with it is refused. Its subject's clones stay until their leases end."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report import tokens as report
    from zsnapdb.serve.tokens import TokenBook

    show(report.RevokedTokenView(TokenBook(THIS_HOST.serve).revoke(token_id, THIS_HOST.now())), json)


def issuer_keys(
    issuer: Annotated[str, argument("ISSUER", "NAME of a section [serve.issuer.NAME].")],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Fetch and show the public keys with which an issuer signs id tokens. The helper fetches them in the same way."""
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
    """Exchange the code of a login for an id token, for the helper, which sends the code on stdin."""
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

"""Unprivileged HTTPS requests to issuers of id tokens: for their keys, and for the exchange of a login's code."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import pwd
import select
import signal
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from zsnapdb.base import run_context
from zsnapdb.base.deadline import within
from zsnapdb.base.errors import ConfigError, NotAllowedError, UnreachableError, UsageError
from zsnapdb.base.files import read_text, secret_in
from zsnapdb.base.patterns import printable
from zsnapdb.base.timed_http import TimedHttpsConnection
from zsnapdb.base.untrusted_text import exact_fields_of
from zsnapdb.config.serve import HttpsUrl, IssuerSettings, LoginSettings
from zsnapdb.serve.command_processes import CommandCall, RunCommand
from zsnapdb.serve.helper_messages import Code, FailureAnswer, RefusedRequest, Verifier
from zsnapdb.serve.issuer_keys import FetchedKeys, LoginPlaces
from zsnapdb.serve.jwks import keys_in

_SECONDS = 15.0
_MOST_BYTES = 256 * 1024
_OK, _FAILED = b"+", b"-"


@dataclass(frozen=True)
class HttpsRequest:
    """A request that reads an address or, with a form, sends the form to the address."""

    url: str
    form: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class HttpsAnswer:
    """The answer to a request. No redirect, proxy or cache was involved."""

    url: str
    status: int
    body: bytes = field(repr=False)

    def good(self) -> bytes:
        """Return the body. Raises UnreachableError if the status is not 200."""
        if self.status != http.client.OK:
            raise UnreachableError(f"{self.url} answered {self.status}", hint="no redirect is followed")
        return self.body


AskHttps = Callable[[HttpsRequest], HttpsAnswer]
"""Sends an HTTPS request. Raises UnreachableError if there is no answer."""


def https_ask(request: HttpsRequest, context: ssl.SSLContext) -> HttpsAnswer:
    """Return the answer from the address.

    Raises UnreachableError if there is no answer, or if the answer is too long.
    """
    url = request.url
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError as error:
        raise UnreachableError(f"{url}: {error}", hint="write a port up to 65535") from error
    connection = TimedHttpsConnection(host, port, timeout=_SECONDS, context=context)
    headers = {"Accept": "application/json", "Connection": "close", **request.headers}
    try:
        with within(_SECONDS):
            connection.request("GET" if request.form is None else "POST", parts.path or "/", request.form, headers)
            with connection.getresponse() as answer:
                status, body = answer.status, answer.read(_MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise UnreachableError(
            f"{url}: {error or type(error).__name__}", hint="this host must reach it, without a proxy"
        ) from error
    finally:
        connection.close()
    if len(body) > _MOST_BYTES:
        raise UnreachableError(f"{url} answered more than {_MOST_BYTES} bytes", hint="is it the right address?")
    return HttpsAnswer(url, status, body)


@dataclass(frozen=True)
class UnprivilegedHttps:
    """Sends a request in a child process that runs as `account` without additional groups.

    If this process does not run as root, the child keeps this process's account. The child is killed after `seconds`,
    even if the server is still sending. Only a process without other threads may call this.
    """

    context: ssl.SSLContext
    account: str
    seconds: float = 2 * _SECONDS

    def __call__(self, request: HttpsRequest) -> HttpsAnswer:
        """Return the answer.

        Raises UnreachableError if there is no answer, and ConfigError if the account is unknown or root.
        """
        account = self._account()
        # The HTTP library loads a module that encodes host names. The module is loaded here, because the child may be
        # unable to read the file.
        "host".encode("idna")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _end_with(lambda: self._asked(request, account), writing)
        os.close(writing)
        try:
            said = _read(reading, self.seconds)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if said[:1] != _OK:
            text = said[1:].decode(errors="replace") or f"{request.url}: it took longer than {self.seconds:g} s"
            raise UnreachableError(text, hint="this host must reach it, without a proxy")
        return HttpsAnswer(request.url, int.from_bytes(said[1:3]), said[3:])

    def _account(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        try:
            found = pwd.getpwnam(self.account)
        except KeyError as error:
            raise ConfigError(
                f"serve.fetch_account is {self.account}, and there is no such account",
                hint="set `serve.fetch_account` to an account without privileges",
            ) from error
        if found.pw_uid == 0 or found.pw_gid == 0:
            raise ConfigError(f"serve.fetch_account {self.account} has the rights of root", hint="name another")
        return found

    def _asked(self, request: HttpsRequest, account: pwd.struct_passwd | None) -> bytes:
        if account is not None:
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        answer = https_ask(request, self.context)
        return answer.status.to_bytes(2) + answer.body


def _end_with(work: Callable[[], bytes], writing: int) -> None:
    """Write the result of `work`, or why it failed, and end this process, so that no other code of the parent runs."""
    said = _FAILED
    try:
        said = _OK + work()
    except UnreachableError as error:
        said = _FAILED + error.message.encode()
    except BaseException as error:
        said = _FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")
    finally:
        with contextlib.suppress(OSError), open(writing, "wb") as out:
            out.write(said)
        os._exit(0)


def _read(reading: int, seconds: float) -> bytes:
    """Return the bytes from the pipe up to a limit, or no bytes if the end is not reached within `seconds`."""
    deadline, said = time.monotonic() + seconds, bytearray()
    while len(said) <= _MOST_BYTES + 3:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 65536) if ready else b""
        if not ready:
            return b""
        if not part:
            break
        said += part
    return bytes(said)


_EXCHANGE_SECONDS = 40.0
_MOST_OF_REASON = 100
_HINT = "start again at /login"


class CodeGrant(BaseModel):
    """An authorization code, and the values needed to exchange it. `token_endpoint` comes from the issuer itself.

    The code was issued for `issuer` and `client_id`, which may no longer be the configured ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    issuer: str
    client_id: str
    token_endpoint: HttpsUrl
    redirect_uri: str
    code: Code = Field(repr=False)
    verifier: Verifier = Field(repr=False)


ExchangeCode = Callable[[str, CodeGrant], str]
"""Returns the id token that this issuer returns for a code.

Raises RefusedRequest with the reason if the issuer returns no id token.
"""


def exchange_with(run: RunCommand) -> ExchangeCode:
    """Return a function that exchanges codes with `zsnapdb token exchange`."""

    def exchange(name: str, grant: CodeGrant) -> str:
        words = ("token", "exchange", name, "--json")
        answer = run(
            CommandCall(words, "", run_context.new_run_id(), _EXCHANGE_SECONDS, given=grant.model_dump_json().encode())
        )
        if isinstance(answer, FailureAnswer):
            raise RefusedRequest(answer)
        token = answer.document.get("id_token")
        return token if isinstance(token, str) else ""

    return exchange


def grant_in(text: bytes) -> CodeGrant:
    """Return the grant that the helper sent. An invalid grant raises UsageError without any part of the grant."""
    try:
        return CodeGrant.model_validate_json(text)
    except ValidationError:
        raise UsageError("stdin has no code to exchange", hint="the helper alone uses this command") from None


def exchanged(issuer: IssuerSettings, grant: CodeGrant, ask: AskHttps) -> str:
    """Return the id token that the issuer returns for the code. The signature is not checked yet.

    If the configured issuer or client differs from the one in the grant, neither the code nor the secret is sent.

    Raises: NotAllowedError: the issuer refuses, or another issuer or client is configured UnreachableError: the issuer
    does not answer as OpenID Connect requires
    """
    login = issuer.login
    if login is None or (issuer.issuer, login.client_id) != (grant.issuer, grant.client_id):
        raise NotAllowedError("the configuration of this log-in was changed meanwhile", hint=_HINT)
    form = {
        "grant_type": "authorization_code",
        "code": grant.code,
        "redirect_uri": grant.redirect_uri,
        "client_id": login.client_id,
        "code_verifier": grant.verifier,
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded", **_authorization(login)}
    answer = ask(HttpsRequest(grant.token_endpoint, urlencode(form).encode(), headers))
    if answer.status != http.client.OK:
        raise NotAllowedError(f"{answer.url} answered {answer.status}{_reason(answer)}", hint=_HINT)
    try:
        token = exact_fields_of(answer.body).get("id_token")
    except ValueError:
        token = None
    if not isinstance(token, str):
        raise UnreachableError(f"{answer.url} sent no id token", hint="is the scope `openid` permitted to this client?")
    return token


def document(id_token: str) -> str:
    """Return the document that the command prints for the helper."""
    return json.dumps({"id_token": id_token})


def _authorization(login: LoginSettings) -> Mapping[str, str]:
    if login.client_secret_file is None:
        return {}
    file = login.client_secret_file
    try:
        secret = secret_in(file, "the secret of a client", "client_secret_file names a file of root's").decode().strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise ConfigError(f"{file} has no secret", hint="write the client secret of the issuer into it, on one line")
    pair = f"{quote_plus(login.client_id)}:{quote_plus(secret)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _reason(answer: HttpsAnswer) -> str:
    """Return the issuer's reason for a refusal, in the issuer's words, in printable characters."""
    try:
        said = exact_fields_of(answer.body).get("error")
    except ValueError:
        return ""
    return f": {printable(said[:_MOST_OF_REASON])}" if isinstance(said, str) else ""


_URL: TypeAdapter[str] = TypeAdapter(HttpsUrl)
DISCOVERY = "/.well-known/openid-configuration"


def fetched(issuer: IssuerSettings, ask: AskHttps) -> FetchedKeys:
    """Return the keys of the issuer and, if people log in through it, its login addresses.

    Raises UnreachableError if the issuer does not publish its keys or addresses, or if no key is usable.
    """
    is_told = issuer.jwks_url is not None and issuer.login is None
    said = {} if is_told else _request_description(issuer.issuer, ask)
    url = issuer.jwks_url or _place(said, issuer.issuer, "jwks_uri")
    try:
        keys = keys_in(ask(HttpsRequest(url)).good())
    except ValueError as error:
        raise UnreachableError(f"the keys at {url}: {error}", hint="is jwks_url right?") from error
    if not keys:
        raise UnreachableError(
            f"no key at {url} can be used", hint="it must have RSA keys from 2048 bits on, or EC keys, with a kid"
        )
    return FetchedKeys(issuer=issuer.issuer, jwks_url=url, keys=keys, login=_login(said, issuer))


def _login(said: Mapping[str, object], issuer: IssuerSettings) -> LoginPlaces | None:
    if issuer.login is None:
        return None
    return LoginPlaces(
        authorization_endpoint=_place(said, issuer.issuer, "authorization_endpoint"),
        token_endpoint=_place(said, issuer.issuer, "token_endpoint"),
    )


def _request_description(issuer: str, ask: AskHttps) -> Mapping[str, object]:
    """Return the issuer's published description. Raises UnreachableError if the description is about another issuer."""
    place = issuer.rstrip("/") + DISCOVERY
    try:
        said = exact_fields_of(ask(HttpsRequest(place)).good())
        if said.get("issuer") != issuer:
            raise ValueError("it belongs to another issuer")
    except ValueError as error:
        raise UnreachableError(
            f"{place}: {error}", hint="set `issuer` to exactly the text that the issuer publishes, or set `jwks_url`"
        ) from error
    return said


def _place(said: Mapping[str, object], issuer: str, name: str) -> str:
    try:
        return _URL.validate_python(said.get(name), strict=True)
    except ValidationError as error:
        hint = (
            "set jwks_url" if name == "jwks_uri" else "without it nobody can log in: leave out serve.issuer.NAME.login"
        )
        raise UnreachableError(f"{issuer.rstrip('/')}{DISCOVERY}: {name} is not an https address", hint=hint) from error


def tls_context(issuer: IssuerSettings) -> ssl.SSLContext:
    """Return the context that verifies the issuer's certificate.

    If `tls_ca` is set, only that certificate authority is trusted.

    Raises ConfigError if the file of the authority cannot be read.
    """
    if issuer.tls_ca is None:
        return ssl.create_default_context()
    authority = read_text(issuer.tls_ca, "the authority of an issuer", "tls_ca names a file with certificates (PEM)")
    try:
        return ssl.create_default_context(cadata=authority)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{issuer.tls_ca} has no certificate", hint="tls_ca names a file with certificates"
        ) from error

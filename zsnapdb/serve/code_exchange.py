"""Exchanges the code of a log-in for the id token of the person: a command that the helper starts, for one log-in.

Code, verifier and secret are in no argument and no environment: they come by stdin and from a file of root's.
Source: RFC 6749, sections 2.3.1, 4.1.3 and 5; RFC 7636, section 4.5.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Mapping
from urllib.parse import quote_plus, urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import run_id
from zsnapdb.base.errors import ConfigError, NotAllowedError, UnreachableError, UsageError
from zsnapdb.base.foreign_text import exact_fields_of
from zsnapdb.base.patterns import printable
from zsnapdb.base.text_files import secret_in
from zsnapdb.config.serve import HttpsUrl, IssuerSettings, LoginSettings
from zsnapdb.serve.children import CommandCall, RunCommand
from zsnapdb.serve.login_messages import Code, Verifier
from zsnapdb.serve.messages import FailureAnswer, RefusedRequest
from zsnapdb.serve.unprivileged_https import AskHttps, HttpsAnswer, HttpsRequest

_EXCHANGE_SECONDS = 40.0
_MOST_OF_REASON = 100
_HINT = "begin anew at /login"


class CodeGrant(BaseModel):
    """A code, and what is needed to exchange it. Where the code goes is what the issuer said when it was asked.

    `issuer` and `client_id` are those for which the code is: the configuration can be another one by now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    issuer: str
    client_id: str
    token_endpoint: HttpsUrl
    redirect_uri: str
    code: Code = Field(repr=False)
    verifier: Verifier = Field(repr=False)


ExchangeCode = Callable[[str, CodeGrant], str]
"""Returns the id token that the issuer of that name gives for a code. RefusedRequest has the reason why it does not."""


def exchange_with(run: RunCommand) -> ExchangeCode:
    """Return what exchanges codes by `zsnapdb token exchange`."""

    def exchange(name: str, grant: CodeGrant) -> str:
        words = ("token", "exchange", name, "--json")
        answer = run(CommandCall(words, "", run_id.new(), _EXCHANGE_SECONDS, given=grant.model_dump_json().encode()))
        if isinstance(answer, FailureAnswer):
            raise RefusedRequest(answer)
        token = answer.document.get("id_token")
        return token if isinstance(token, str) else ""

    return exchange


def grant_in(text: bytes) -> CodeGrant:
    """Return the grant that the helper sends. UsageError, which repeats nothing of it, if it is none."""
    try:
        return CodeGrant.model_validate_json(text)
    except ValidationError:
        raise UsageError("stdin has no code to exchange", hint="the helper alone uses this command") from None


def exchanged(issuer: IssuerSettings, grant: CodeGrant, ask: AskHttps) -> str:
    """Return the id token for the code. It is believed by nobody before its signature is checked.

    NotAllowedError if the issuer refuses, or if the configuration names another one, or another client, than the code
    is for: then neither the code nor the secret goes anywhere. UnreachableError if the issuer does not answer as OpenID
    Connect says.
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
    """Return what the command prints to the helper."""
    return json.dumps({"id_token": id_token})


def _authorization(login: LoginSettings) -> Mapping[str, str]:
    """Return the header by which a client with a secret says who it is."""
    if login.client_secret_file is None:
        return {}
    file = login.client_secret_file
    try:
        secret = secret_in(file, "the secret of a client", "client_secret_file names a file of root's").decode().strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise ConfigError(f"{file} has no secret", hint="write what the issuer gave you into it, on one line")
    pair = f"{quote_plus(login.client_id)}:{quote_plus(secret)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _reason(answer: HttpsAnswer) -> str:
    """Return why the issuer refuses, in its own words, as far as they can be shown."""
    try:
        said = exact_fields_of(answer.body).get("error")
    except ValueError:
        return ""
    return f": {printable(said[:_MOST_OF_REASON])}" if isinstance(said, str) else ""

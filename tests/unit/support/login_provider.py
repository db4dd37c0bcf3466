"""An OpenID Connect provider on a real socket, and the host whose users log in with it."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

import httpx

from tests.unit.support.https_issuer import AskedPage, HttpsIssuer, https_issuer
from tests.unit.support.issuers import RSA, jwk, signed
from tests.unit.support.serve_host import ServeHost
from zsnapdb.config.serve import IssuerSettings
from zsnapdb.serve.helper_logins import LoginHandler
from zsnapdb.serve.id_tokens import IdTokens
from zsnapdb.serve.issuer_keys import FetchedKeys, IssuerKeys
from zsnapdb.serve.issuer_requests import (
    DISCOVERY,
    CodeGrant,
    HttpsAnswer,
    HttpsRequest,
    exchanged,
    fetched,
    https_ask,
    tls_context,
)

SITE = "https://zsnapdb.example.net"
CLIENT = "zsnapdb-at-work"
AUDIENCE = "of-programs"
MAIL = "anna@example.org"
SUBJECT = f"user:{MAIL}"
PERSON: Mapping[str, object] = {"sub": "7", "email": MAIL, "email_verified": True, "groups": ["dev"]}


@dataclass
class LoginProvider:
    """A provider that logs in users. It follows RFC 6749, 7636 and 9207, unless a test changes that.

    - `changed`: claims of the next id tokens (None leaves one out); `header` is their header, `key` their signing key
    - `raw`: an id token that is sent instead
    - `secret`: the client's secret ("": none)
    - `exchanges`: the forms that the token endpoint received
    """

    name: str
    https: HttpsIssuer
    now: Callable[[], float]
    secret: str = ""
    checks_verifier: bool = True
    changed: dict[str, object] = field(default_factory=dict)
    header: dict[str, object] = field(default_factory=lambda: {"alg": "RS256", "kid": "rsa", "typ": "JWT"})
    key: Any = field(default_factory=lambda: RSA)
    raw: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    exchanges: list[dict[str, str]] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        url = self.https.url
        self.https.page("/keys", json.dumps({"keys": [jwk(RSA, "rsa")]}).encode())
        said = {name: f"{url}/{path}" for name, path in (("jwks_uri", "keys"), ("token_endpoint", "token"))}
        said |= {"issuer": url, "authorization_endpoint": f"{url}/authorize"}
        self.https.page(DISCOVERY, json.dumps(said).encode())
        self.https.answers |= {"/authorize": self._authorize, "/token": self._token}

    @property
    def redirect_uri(self) -> str:
        """The registered redirect URI of the client."""
        return f"{SITE}/login/{self.name}/callback"

    def section(self) -> str:
        """Return its section of the configuration."""
        secret = ""
        if self.secret:
            file = self.https.files.ca.with_name("secret")
            file.write_text(f"{self.secret}\n")
            file.chmod(0o600)
            secret = f'client_secret_file = "{file}"'
        return f"""
[serve.issuer.{self.name}]
issuer = "{self.https.url}"
audience = "{AUDIENCE}"
tls_ca = "{self.https.files.ca}"
allow = [{{ claims = {{ groups = "dev" }}, subject = "user:{{email}}", role = "developer" }}]
[serve.issuer.{self.name}.login]
client_id = "{CLIENT}"
{secret}
"""

    def come_back(self, address: str) -> str:
        """Log in at the address, like a redirected browser, and return the next redirect: path and query."""
        context = ssl.create_default_context(cafile=self.https.files.ca)
        answer = httpx.get(address, verify=context)
        assert answer.status_code == 302, answer.text
        return answer.headers["Location"].removeprefix(SITE)

    def id_token(self, nonce: str = "", **changed: object) -> str:
        """Return an id token of the user."""
        seconds = int(self.now())
        claims = {"iss": self.https.url, "aud": CLIENT, "iat": seconds, "exp": seconds + 300, "nonce": nonce}
        whole = {**claims, **PERSON, **self.changed, **changed}
        return signed(self.header, {name: one for name, one in whole.items() if one is not None}, self.key)

    def _authorize(self, asked: AskedPage) -> tuple[int, bytes, Mapping[str, str]]:
        query = asked.query
        is_good = (
            query["response_type"],
            query["client_id"],
            query["redirect_uri"],
            query["code_challenge_method"],
        ) == (
            "code",
            CLIENT,
            self.redirect_uri,
            "S256",
        )
        if not is_good or "openid" not in query["scope"].split():
            return 400, b"", {}
        code = secrets.token_urlsafe(20)
        self.codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.https.url}
        return 302, b"", {"Location": f"{query['redirect_uri']}?{urlencode(back)}"}

    def _token(self, asked: AskedPage) -> tuple[int, bytes, Mapping[str, str]]:
        form = dict(parse_qsl(asked.body.decode()))
        self.exchanges.append(form)
        begun = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        pair = base64.b64encode(f"{CLIENT}:{quote_plus(self.secret)}".encode()).decode()
        if asked.headers.get("Authorization") != (f"Basic {pair}" if self.secret else None):
            return 401, b'{"error": "invalid_client"}', {}
        is_its = begun is not None and form["redirect_uri"] == begun["redirect_uri"] == self.redirect_uri
        if begun is None or not is_its or (self.checks_verifier and challenge != begun["code_challenge"]):
            return 400, b'{"error": "invalid_grant"}', {}
        self.sent.append(self.raw or self.id_token(begun["nonce"]))
        body = {"access_token": "of no use here", "token_type": "Bearer", "id_token": self.sent[-1]}
        return 200, json.dumps(body).encode(), {"Content-Type": "application/json"}


@contextmanager
def providers(host: ServeHost, *names: str) -> Iterator[list[LoginProvider]]:
    """Run new providers with these names during the block."""
    if not names:
        yield []
        return
    with (
        https_issuer(host.folder / names[0]) as https,
        providers(host, *names[1:]) as others,
    ):
        yield [LoginProvider(names[0], https, lambda: host.now.timestamp()), *others]


def with_logins(host: ServeHost, known: list[LoginProvider], more: str = "") -> list[str]:
    """Configure the host for these providers. Return the list of its log messages about id tokens."""
    host.more = "\n".join((f'url = "{SITE}"', more, *(one.section() for one in known)))
    said: list[str] = []

    def issuers() -> Mapping[str, IssuerSettings]:
        return host.settings().serve.issuer

    def fetch(name: str) -> FetchedKeys:
        return fetched(issuers()[name], _asks(issuers()[name]))

    def exchange(name: str, grant: CodeGrant) -> str:
        return exchanged(issuers()[name], grant, _asks(issuers()[name]))

    keys = IssuerKeys(host.folder / "issuers", issuers, fetch, lambda: host.now, patience=0.05)
    keys.fetch_due()
    host.id_tokens = IdTokens(issuers, keys, said.append)
    host.logins = LoginHandler(
        lambda: host.settings().serve, host.book, keys, host.id_tokens, exchange, lambda: host.now
    )
    return said


def _asks(issuer: IssuerSettings) -> Callable[[HttpsRequest], HttpsAnswer]:
    context = tls_context(issuer)
    return lambda request: https_ask(request, context)


def query_of(address: str) -> dict[str, str]:
    """Return the query of an address."""
    return dict(parse_qsl(urlsplit(address).query))


def configuration(folder: Path, known: LoginProvider) -> Path:
    """Write the configuration of a host with this provider."""
    file = folder / "zsnapdb.toml"
    file.write_text(
        f"""
[repository.here]
url = "file://{folder}/backups"
[instance.main]
volumes = {{ data = "none/data" }}
repository = "here"
[serve]
url = "{SITE}"
{known.section()}
"""
    )
    file.chmod(0o600)
    return file

"""An issuer of id tokens: its keys, its tokens, and its configuration."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from zsnapdb.config.serve import IssuerSettings
from zsnapdb.serve.id_tokens import IdTokens
from zsnapdb.serve.issuer_keys import FetchedKeys, IssuerKeys
from zsnapdb.serve.jwks import keys_in
from zsnapdb.serve.roles import Role
from zsnapdb.serve.tokens import CredentialHolder

ISSUER = "https://issuer.example.org/realm"
AUDIENCE = "https://zsnapdb.example.org"
RULES: Sequence[Mapping[str, object]] = (
    {
        "claims": {"repository": "shop/web", "ref": "refs/heads/main"},
        "subject": "ci:shop/web",
        "role": "developer",
    },
    {"claims": {"groups": "dba"}, "subject": "user:{email}", "role": "operator"},
)
CLAIMS = {"repository": "shop/web", "ref": "refs/heads/main", "sub": "repo:shop/web:ref:refs/heads/main"}
RSA = RSAKey.generate_key(2048)
EC = ECKey.generate_key("P-256")
OTHER = RSAKey.generate_key(2048)
"""A key of another issuer."""


def part(content: bytes | Mapping[str, object]) -> str:
    """Return a part of a token."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def signed(header: Mapping[str, object], claims: Mapping[str, object] | bytes, key: Any) -> str:
    """Return a token that the key has signed, whatever its header contains in addition to `alg`."""
    text = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    algorithm = jws.JWSRegistry.algorithms[str(header["alg"])]
    before = f"{part(header)}.{part(text)}"
    return f"{before}.{part(algorithm.sign(before.encode(), key))}"


def jwk(key: Any, kid: str, **more: object) -> dict[str, object]:
    """Return the public half of a key as an issuer publishes it."""
    return {**key.as_dict(private=False), "kid": kid, **more}


@dataclass
class FakeIssuer:
    """An issuer and a host that trusts it. `now` is the clock of both."""

    folder: Path
    now: datetime
    name: str = "here"
    issuer: str = ISSUER
    more: Mapping[str, object] = field(default_factory=dict)
    keys: list[dict[str, object]] = field(
        default_factory=lambda: [jwk(RSA, "rsa", use="sig", alg="RS256"), jwk(EC, "ec")]
    )
    said: list[str] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.known = IssuerKeys(self.folder, self.issuers, self._fetch, lambda: self.now, patience=0.05)
        self.tokens = IdTokens(self.issuers, self.known, self.said.append)

    def settings(self) -> IssuerSettings:
        """Return its section of the configuration."""
        fields = {"issuer": self.issuer, "audience": AUDIENCE, "allow": RULES, **self.more}
        return IssuerSettings.model_validate(fields)

    def issuers(self) -> Mapping[str, IssuerSettings]:
        return {self.name: self.settings()}

    def _fetch(self, _name: str) -> FetchedKeys:
        self.asked += 1
        return FetchedKeys(
            issuer=self.issuer, jwks_url=f"{self.issuer}/keys", keys=keys_in(json.dumps({"keys": self.keys}).encode())
        )

    def claims(self, **changed: object) -> dict[str, object]:
        """Return the claims of a valid token with changes; None leaves one out."""
        seconds = int(self.now.timestamp())
        whole = {"iss": self.issuer, "aud": AUDIENCE, "iat": seconds - 5, "nbf": seconds - 5, "exp": seconds + 300}
        return {name: value for name, value in {**whole, **CLAIMS, **changed}.items() if value is not None}

    def token(self, key: Any = RSA, header: Mapping[str, object] | None = None, **changed: object) -> str:
        """Return a valid token with some claims changed."""
        known = {"alg": "RS256", "kid": "rsa", "typ": "JWT"} if key is not EC else {"alg": "ES256", "kid": "ec"}
        return signed({**known, **(header or {})}, self.claims(**changed), key)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += timedelta(seconds=seconds)


def whom(holder: CredentialHolder | None) -> tuple[str, Role, str] | None:
    """Return the subject, role and issuer of a token."""
    return None if holder is None else (holder.subject, holder.role, holder.issuer)


def refusal(issuer: FakeIssuer, token: str) -> str:
    """Return the log message for a refused token."""
    issuer.said.clear()
    issuer.tokens._told.clear()
    assert issuer.tokens.holder(token, issuer.now) is None
    return issuer.said[0].partition(" is refused: ")[2] if issuer.said else "nothing"

"""Views of the tokens of `zsnapdb serve`. A token itself is shown once, by the command that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.planning.clone.lease import stamp
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.view import View
from zsnapdb.serve.issuer_keys import FetchedKeys
from zsnapdb.serve.jwks import IssuerKey
from zsnapdb.serve.tokens import NewToken, StoredToken


class TokenFields(TypedDict):
    """A token, without its text. `revoked` is null if it is not revoked.

    `kind` is `token`, or `session` of who logged in to the page by `issuer` ("": the token is of this host).
    """

    id: str
    subject: str
    role: str
    created: str
    expires: str
    revoked: str | None
    kind: str
    issuer: str


class NewTokenDocument(TypedDict):
    """A token that was just made. `text` is shown this once."""

    token: TokenFields
    text: str


class TokensDocument(TypedDict):
    """The tokens of this host."""

    tokens: list[TokenFields]


class RevokedTokenDocument(TypedDict):
    """A token that was revoked."""

    token: TokenFields


class IssuerKeyFields(TypedDict):
    """A public key of an issuer (RFC 7517): of RSA (`n`, `e`), or of an elliptic curve (`crv`, `x`, `y`)."""

    kid: str
    kty: str
    use: str | None
    alg: str | None
    n: str | None
    e: str | None
    crv: str | None
    x: str | None
    y: str | None


class LoginPlacesFields(TypedDict):
    """Where a browser is sent that logs in, and where a code is exchanged for an id token."""

    authorization_endpoint: str
    token_endpoint: str


class IssuerKeysDocument(TypedDict):
    """The keys with which an issuer signs id tokens, as far as they can be used, and where they are.

    `login` is null if nobody logs in to the page by this issuer.
    """

    issuer: str
    jwks_url: str
    keys: list[IssuerKeyFields]
    login: LoginPlacesFields | None


def _fields(token: StoredToken) -> TokenFields:
    return {
        "id": token.id,
        "subject": token.subject,
        "role": token.role.value,
        "created": stamp(token.created),
        "expires": stamp(token.expires),
        "revoked": stamp(token.revoked) if token.revoked is not None else None,
        "kind": token.kind.value,
        "issuer": token.issuer,
    }


@dataclass(frozen=True)
class NewTokenView(View):
    """A token that was just made."""

    made: NewToken
    kind: ClassVar[str] = "token-created"

    def text(self) -> str:
        stored = self.made.stored
        return (
            f"token {stored.id} for {stored.subject}, {stored.role}, until {stamp(stored.expires)}. It is shown once:\n"
            f"{self.made.text.get_secret_value()}"
        )

    def fields(self) -> NewTokenDocument:
        return {"token": _fields(self.made.stored), "text": self.made.text.get_secret_value()}


@dataclass(frozen=True)
class TokensView(TabularView):
    """The tokens of this host."""

    tokens: Sequence[StoredToken]
    now: datetime
    kind: ClassVar[str] = "tokens"

    def parts(self) -> Sequence[Part]:
        rows = [
            (
                token.id,
                token.kind.value,
                token.subject,
                token.role.value,
                stamp(token.created),
                stamp(token.expires),
                self._state(token),
            )
            for token in self.tokens
        ]
        headings = ("TOKEN", "KIND", "SUBJECT", "ROLE", "CREATED", "EXPIRES", "STATE")
        return [Table(headings, rows, "no tokens: `zsnapdb token create` makes one")]

    def _state(self, token: StoredToken) -> str:
        if token.revoked is not None:
            return f"revoked {stamp(token.revoked)}"
        return "valid" if token.is_valid(self.now) else "expired"

    def fields(self) -> TokensDocument:
        return {"tokens": [_fields(token) for token in self.tokens]}


@dataclass(frozen=True)
class RevokedTokenView(View):
    """A token that was revoked."""

    token: StoredToken
    kind: ClassVar[str] = "token-revoked"

    def text(self) -> str:
        return f"token {self.token.id} of {self.token.subject} is revoked; its clones stay until their leases end"

    def fields(self) -> RevokedTokenDocument:
        return {"token": _fields(self.token)}


@dataclass(frozen=True)
class IssuerKeysView(TabularView):
    """The keys of an issuer of id tokens."""

    found: FetchedKeys
    kind: ClassVar[str] = "issuer-keys"

    def parts(self) -> Sequence[Part]:
        rows = [(one.kid, one.crv or one.kty, one.alg or "any of its type") for one in self.found.keys]
        return [
            f"keys of {self.found.issuer}, from {self.found.jwks_url}:",
            Table(("KEY", "TYPE", "ALGORITHM"), rows, ""),
        ]

    def fields(self) -> IssuerKeysDocument:
        keys = [_key_fields(one) for one in self.found.keys]
        places = self.found.login
        login: LoginPlacesFields | None = (
            {"authorization_endpoint": places.authorization_endpoint, "token_endpoint": places.token_endpoint}
            if places is not None
            else None
        )
        return {"issuer": self.found.issuer, "jwks_url": self.found.jwks_url, "keys": keys, "login": login}


def _key_fields(key: IssuerKey) -> IssuerKeyFields:
    return {
        "kid": key.kid,
        "kty": key.kty,
        "use": key.use,
        "alg": key.alg,
        "n": key.n,
        "e": key.e,
        "crv": key.crv,
        "x": key.x,
        "y": key.y,
    }

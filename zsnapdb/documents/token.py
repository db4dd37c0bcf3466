"""The documents of tokens of `zsnapdb serve`, and of the keys of issuers."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, secret, stamp


class TokenFields(Document):
    """A token, without its text. `revoked` is null if it is not revoked.

    `kind` is `token`, or `session` of who logged in to the page by `issuer` ("": the token is of this host).
    """

    id: str
    subject: str
    role: str
    created: Annotated[str, At("created", stamp)]
    expires: Annotated[str, At("expires", stamp)]
    revoked: Annotated[str | None, At("revoked", stamp)]
    kind: str
    issuer: str


class NewTokenDocument(Document):
    """A token that was just made. `text` is shown this once."""

    token: Annotated[TokenFields, At("stored")]
    text: Annotated[str, At("text", secret)]


class TokensDocument(Document):
    """The tokens of this host."""

    tokens: tuple[TokenFields, ...]


class RevokedTokenDocument(Document):
    """A token that was revoked."""

    token: TokenFields


class IssuerKeyFields(Document):
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


class LoginPlacesFields(Document):
    """Where a browser is sent that logs in, and where a code is exchanged for an id token."""

    authorization_endpoint: str
    token_endpoint: str


class IssuerKeysDocument(Document):
    """The keys with which an issuer signs id tokens, as far as they can be used, and where they are.

    `login` is null if nobody logs in to the page by this issuer.
    """

    issuer: str
    jwks_url: str
    keys: tuple[IssuerKeyFields, ...]
    login: LoginPlacesFields | None

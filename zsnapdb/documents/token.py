"""Documents of tokens for `zsnapdb serve` and of issuers' keys."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, secret, stamp


class TokenFields(Document):
    """A token, without its text. `revoked` is null if it is not revoked.

    `kind` is `token`, or `session` for a login to the page by `issuer` ("": the token is of this host).
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
    """A new token. `text` is shown only once."""

    token: Annotated[TokenFields, At("stored")]
    text: Annotated[str, At("text", secret)]


class TokensDocument(Document):
    """The tokens of this host."""

    tokens: tuple[TokenFields, ...]


class RevokedTokenDocument(Document):
    """A revoked token."""

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
    """Endpoints for a browser's login and for the exchange of a code for an id token."""

    authorization_endpoint: str
    token_endpoint: str


class IssuerKeysDocument(Document):
    """The usable keys with which an issuer signs id tokens, and their URL.

    `login` is null if this issuer has no login to the page.
    """

    issuer: str
    jwks_url: str
    keys: tuple[IssuerKeyFields, ...]
    login: LoginPlacesFields | None

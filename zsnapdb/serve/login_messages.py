"""The messages between web process and helper about log-ins to the pages.

These requests need no valid token: they come before a person has one, or end the one that they contain.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from zsnapdb.config.serve import HttpsUrl

LOGIN_NAME = r"[a-z0-9][a-z0-9_-]{0,31}"
LoginName = Annotated[str, StringConstraints(pattern=rf"^{LOGIN_NAME}$", strict=True)]
IssuerName = Annotated[str, StringConstraints(pattern=r"^https://[!-~]{1,1000}$", strict=True)]
Code = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,4096}$", strict=True)]
"""RFC 6749, appendix A.11."""
Verifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._~-]{43,128}$", strict=True)]
"""RFC 7636, section 4.1."""
Nonce = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{20,128}$", strict=True)]


class LoginVerbKind(StrEnum):
    """The kinds of requests about log-ins."""

    LIST = "login.list"
    OPEN = "session.open"
    CLOSE = "session.close"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ListLoginsVerb(_Model):
    """The request for the issuers by which people log in."""

    kind: Literal[LoginVerbKind.LIST] = LoginVerbKind.LIST


class OpenSessionVerb(_Model):
    """The request for a session of the person that the issuer names when the code is exchanged.

    `nonce` must be in the id token. `issuer` is the one to which the browser was sent.
    """

    kind: Literal[LoginVerbKind.OPEN] = LoginVerbKind.OPEN
    login: LoginName
    issuer: IssuerName
    code: Code
    verifier: Verifier
    nonce: Nonce


class CloseSessionVerb(_Model):
    """The request to end the session whose token it contains. Other tokens stay."""

    kind: Literal[LoginVerbKind.CLOSE] = LoginVerbKind.CLOSE


LoginVerb = ListLoginsVerb | OpenSessionVerb | CloseSessionVerb


class KnownLogin(_Model):
    """An issuer by which people log in: the address to which a browser is sent, and the one to which it returns."""

    name: LoginName
    issuer: str
    authorization_endpoint: HttpsUrl
    client_id: str
    redirect_uri: str
    scopes: tuple[str, ...]


class KnownLogins(_Model):
    """All issuers by which people log in."""

    logins: tuple[KnownLogin, ...]


class OpenedLogin(_Model):
    """An opened session: its subject, its token, and its duration in seconds."""

    subject: str
    token: str
    seconds: float

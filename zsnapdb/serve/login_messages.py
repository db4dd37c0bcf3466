"""What the web process and the helper say to each other about log-ins to the page.

These requests need no token: they are made before somebody has one, or end the one that they come with.
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
    """What the helper can be asked about log-ins."""

    LIST = "login.list"
    OPEN = "session.open"
    CLOSE = "session.close"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ListLoginsVerb(_Model):
    """The issuers by which people log in."""

    kind: Literal[LoginVerbKind.LIST] = LoginVerbKind.LIST


class OpenSessionVerb(_Model):
    """A session for whom an issuer names when the code is exchanged. `nonce` must be in its id token.

    `issuer` is the one to which the browser was sent.
    """

    kind: Literal[LoginVerbKind.OPEN] = LoginVerbKind.OPEN
    login: LoginName
    issuer: IssuerName
    code: Code
    verifier: Verifier
    nonce: Nonce


class CloseSessionVerb(_Model):
    """The end of the session whose token the request has. Other tokens stay."""

    kind: Literal[LoginVerbKind.CLOSE] = LoginVerbKind.CLOSE


LoginVerb = ListLoginsVerb | OpenSessionVerb | CloseSessionVerb


class KnownLogin(_Model):
    """An issuer by which people log in: where a browser is sent, and where it comes back to."""

    name: LoginName
    issuer: str
    authorization_endpoint: HttpsUrl
    client_id: str
    redirect_uri: str
    scopes: tuple[str, ...]


class KnownLogins(_Model):
    """All of them."""

    logins: tuple[KnownLogin, ...]


class OpenedLogin(_Model):
    """A session that was opened: for whom, its token, and how many seconds it lasts."""

    subject: str
    token: str
    seconds: float

"""The settings of an issuer of id tokens: whom it speaks for here, and how far."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from zsnapdb.base.quantities import Seconds
from zsnapdb.base.subject import FORMS, is_subject
from zsnapdb.config.login import LoginSettings
from zsnapdb.config.section import ConfigSection

_HTTPS = r"^https://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~%/-]{0,500})?$"
HttpsUrl = Annotated[str, Field(pattern=_HTTPS)]
SUBJECT_OF_EMAIL = "user:{email}"
"""The one subject that a token itself may name: by a mail address that its issuer has verified."""
_OF_EVERYBODY = {
    "token.actions.githubusercontent.com": ("repository", "repository_id", "sub"),
    "gitlab.com": ("project_path", "project_id", "sub"),
    "accounts.google.com": ("email", "hd", "sub"),
}
"""Issuers that give tokens to whoever has an account there, and the claims of which a rule must name one."""


class IssuerRule(ConfigSection):
    """Whom a token stands for that has all these claims with these values. A claim that is a list contains the value.

    `subject` is a fixed one, or "user:{email}": the mail address of the token, if its issuer has verified it.
    """

    claims: Annotated[
        dict[Annotated[str, Field(pattern=r"^[!-~]{1,200}$")], StrictBool | StrictInt | StrictStr], Field(min_length=1)
    ]
    subject: str
    role: Literal["viewer", "developer", "operator", "auditor"]

    @model_validator(mode="after")
    def _names_a_subject(self) -> IssuerRule:
        if self.subject != SUBJECT_OF_EMAIL and not is_subject(self.subject):
            raise ValueError(f"subject is none: write {FORMS}, or {SUBJECT_OF_EMAIL}")
        return self


class IssuerSettings(ConfigSection):
    """An issuer whose id tokens are taken beside zsnapdb's own tokens.

    `issuer` and `audience` are compared exactly. `jwks_url` is where its keys are; if left out, the issuer says it
    below `/.well-known/openid-configuration`. `longest_age`: how long after its issue a token is taken, if it has not
    expired before. `tls_ca`: the authority of its certificate (None: those of this host). The first rule that fits
    decides. With `login` people log in to the page by it.
    """

    issuer: HttpsUrl
    audience: Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
    jwks_url: HttpsUrl | None = None
    algorithms: Annotated[
        tuple[
            Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"],
            ...,
        ],
        Field(min_length=1),
    ] = ("RS256", "ES256")
    longest_age: Annotated[Seconds, Field(ge=60, le=86400.0)] = 3600.0
    tls_ca: Path | None = None
    login: LoginSettings | None = None
    allow: Annotated[tuple[IssuerRule, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _says_whose_tokens(self) -> IssuerSettings:
        needed = _OF_EVERYBODY.get(urlsplit(self.issuer).hostname or "")
        for rule in self.allow if needed is not None else ():
            if needed is not None and not set(needed) & set(rule.claims):
                raise ValueError(
                    f"everybody can have tokens of {self.issuer}: each rule must name one of {', '.join(needed)}"
                )
        return self

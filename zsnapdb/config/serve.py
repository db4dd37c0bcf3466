"""The settings of the helper of `zsnapdb serve`. The web process reads no configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from zsnapdb.base.patterns import INSTANCE
from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.base.subject import FORMS, is_subject
from zsnapdb.config.section import ConfigSection

_SCOPE = r"^[!#-\[\]-~]{1,100}$"
"""RFC 6749, section 3.3."""


class LoginSettings(ConfigSection):
    """How the page lets people log in by an issuer: OpenID Connect, authorization code flow with PKCE.

    `client_id` is what the issuer calls zsnapdb, and the audience of its id tokens of people. `client_secret_file` is a
    file of root's with the secret of the client (None: it is a public client). `scopes` are asked for beside `openid`.
    """

    client_id: Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
    client_secret_file: Path | None = None
    scopes: Annotated[tuple[Annotated[str, Field(pattern=_SCOPE)], ...], Field(max_length=20)] = ("email", "profile")

    @field_validator("scopes")
    @classmethod
    def _without_openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in scopes if one != "openid")


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


_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"
_ORIGIN = rf"^(?:https://{_HOST}|http://(?:127\.0\.0\.1|localhost))(?::[0-9]{{1,5}})?$"
"""An address without a path. Without TLS it is this host alone: codes and sessions pass there."""


def _project(text: str) -> str:
    if not text.startswith("ci:") or not is_subject(text):
        raise ValueError("is no project: write ci:PROJECT, or a part of it, such as ci:shop or ci:shop/web")
    return text


class ProjectLimits(ConfigSection):
    """What all subjects of a project of a CI may have together (None: no such limit).

    `clones` and `running` are how many clones there may be, and of how many the server may run. `bytes` is how much all
    of them may write, `longest_lease` the longest lease that may be asked for.
    """

    clones: Annotated[int, Field(ge=0, le=10_000)] | None = None
    bytes: Annotated[Size, Field(ge=0)] | None = None
    running: Annotated[int, Field(ge=0, le=10_000)] | None = None
    longest_lease: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] | None = None


class ServeSettings(ConfigSection):
    """Where the helper listens, for which account, and what each subject may have.

    `socket` is made by the helper, unless systemd hands it one. `account` is that of the web process: nobody else but
    root is answered. `ttl` is the lease of a clone whose request names none, `longest_lease` the longest that may be
    asked for, `per_subject` how many clones a subject may have at once, `commits_per_subject` how many commits of its
    clones there may be. `bytes_per_subject` is how much the clones of a subject may write together, each with the quota
    that it got, and `running_per_subject` how many servers may run for them (None: no such limit). `comparisons` is how
    many times two states may be compared at once, each on two servers, and `comparisons_per_subject` how many of them
    for clones of a subject. `project` has limits for all subjects of a project together, by its subject: `ci:shop` is
    for `ci:shop/web` too. `unmasked` names instances without masking of which everybody may have clones: of others
    only operators may. `fetch_account` asks issuers of id tokens for their keys; it must not be the account of the web
    process. `url` is the address of the page as browsers write it: issuers send people who log in back to it.
    `session` is how long such a log-in lasts.
    """

    socket: Path = Path("/run/zsnapdb-serve/helper.sock")
    account: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")] = "zsnapdb-web"
    per_subject: Annotated[int, Field(ge=1, le=1000)] = 5
    commits_per_subject: Annotated[int, Field(ge=0, le=10_000)] = 20
    bytes_per_subject: Annotated[Size, Field(ge=0)] | None = None
    running_per_subject: Annotated[int, Field(ge=0, le=1000)] | None = None
    comparisons: Annotated[int, Field(ge=0, le=100)] = 2
    comparisons_per_subject: Annotated[int, Field(ge=0, le=100)] = 1
    project: dict[Annotated[str, AfterValidator(_project)], ProjectLimits] = Field({})
    ttl: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] = 8 * 3600.0
    longest_lease: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] = 7 * 86400.0
    unmasked: tuple[Annotated[str, Field(pattern=rf"^(?:{INSTANCE})$")], ...] = ()
    fetch_account: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")] = "nobody"
    url: Annotated[str, Field(pattern=_ORIGIN)] | None = None
    session: Annotated[Seconds, Field(ge=60, le=8 * 3600.0)] = 8 * 3600.0
    issuer: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")], IssuerSettings] = Field({})

    @model_validator(mode="after")
    def _one_section_for_an_issuer(self) -> ServeSettings:
        named = [one.issuer for one in self.issuer.values()]
        if len(set(named)) != len(named):
            raise ValueError("two sections of serve.issuer name the same issuer")
        if self.fetch_account == self.account:
            raise ValueError("fetch_account is the account of the web process")
        return self

    @model_validator(mode="after")
    def _has_an_address_for_logins(self) -> ServeSettings:
        if self.url is None and any(one.login is not None for one in self.issuer.values()):
            raise ValueError("serve.issuer.NAME.login needs serve.url, to which people come back")
        return self

    @model_validator(mode="after")
    def _ends_in_time(self) -> ServeSettings:
        if self.ttl > self.longest_lease:
            raise ValueError("ttl is longer than longest_lease")
        return self

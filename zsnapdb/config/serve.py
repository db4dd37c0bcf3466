"""Settings of the helper of `zsnapdb serve`. The web process reads no configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from zsnapdb.base.patterns import FORMS, INSTANCE, is_subject
from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.config.services import AbsolutePath, ConfigSection

_SCOPE = r"^[!#-\[\]-~]{1,100}$"
"""RFC 6749, section 3.3."""


class LoginSettings(ConfigSection):
    """The login of people to the pages through an issuer, with OpenID Connect (authorization code flow with PKCE).

    The setting `client_id` is the id under which the issuer knows zsnapdb. It is also the audience of people's id
    tokens. The setting `client_secret_file` is a file that belongs to root and contains the client's secret; None if
    zsnapdb is a public client. The `scopes` are requested in addition to `openid`.
    """

    client_id: Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
    client_secret_file: AbsolutePath | None = None
    scopes: Annotated[tuple[Annotated[str, Field(pattern=_SCOPE)], ...], Field(max_length=20)] = ("email", "profile")

    @field_validator("scopes")
    @classmethod
    def _without_openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in scopes if one != "openid")


_HTTPS = r"^https://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~%/-]{0,500})?$"
HttpsUrl = Annotated[str, Field(pattern=_HTTPS)]
SUBJECT_OF_EMAIL = "user:{email}"
"""The only variable value of `subject`.

This value stands for the mail address in the token, if the issuer has verified the address.
"""
_OF_EVERYBODY = {
    "token.actions.githubusercontent.com": ("repository", "repository_id", "sub"),
    "gitlab.com": ("project_path", "project_id", "sub"),
    "accounts.google.com": ("email", "hd", "sub"),
}
"""Issuers where anybody can get an account and tokens.

Each rule for such an issuer must contain at least one of these claims.
"""


class IssuerRule(ConfigSection):
    """The subject and role of a token that has all these claims.

    If a token's claim is a list, the list must contain the value.

    The setting `subject` is a fixed name, or "user:{email}", which stands for the token's mail address if the issuer
    has verified it.
    """

    claims: Annotated[
        dict[Annotated[str, Field(pattern=r"^[!-~]{1,200}$")], StrictBool | StrictInt | StrictStr], Field(min_length=1)
    ]
    subject: str
    role: Literal["viewer", "developer", "operator", "auditor"]

    @model_validator(mode="after")
    def _names_a_subject(self) -> IssuerRule:
        if self.subject != SUBJECT_OF_EMAIL and not is_subject(self.subject):
            raise ValueError(f"the subject is invalid: write {FORMS}, or {SUBJECT_OF_EMAIL}")
        return self


class IssuerSettings(ConfigSection):
    """An issuer whose id tokens are accepted in addition to zsnapdb's own tokens.

    The values `issuer` and `audience` must match a token exactly. The setting `jwks_url` is the address of the issuer's
    keys; by default it is read from the issuer's `/.well-known/openid-configuration`. The setting `longest_age` is the
    maximum age of an accepted token; the token may also expire earlier. The setting `tls_ca` is the authority of the
    issuer's certificate; None means the authorities of this host. The first matching rule decides. With `login`, people
    can log in to the pages through this issuer.
    """

    issuer: HttpsUrl
    audience: Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
    jwks_url: HttpsUrl | None = None
    algorithms: Annotated[
        tuple[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"], ...],
        Field(min_length=1),
    ] = ("RS256", "ES256")
    longest_age: Annotated[Seconds, Field(ge=60, le=86400.0)] = 3600.0
    tls_ca: AbsolutePath | None = None
    login: LoginSettings | None = None
    allow: Annotated[tuple[IssuerRule, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _says_whose_tokens(self) -> IssuerSettings:
        needed = _OF_EVERYBODY.get(urlsplit(self.issuer).hostname or "")
        for rule in self.allow if needed is not None else ():
            if needed is not None and not set(needed) & set(rule.claims):
                raise ValueError(
                    f"anyone can get tokens of {self.issuer}, so each rule must contain one of {', '.join(needed)}"
                )
        return self


_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"
_ORIGIN = rf"^(?:https://{_HOST}|http://(?:127\.0\.0\.1|localhost))(?::[0-9]{{1,5}})?$"
"""An address without a path. Codes and sessions are sent to it, so an address without TLS must be on this host."""


def _project(text: str) -> str:
    if not text.startswith("ci:") or not is_subject(text):
        raise ValueError("is not a project: write ci:PROJECT, or a part of it, such as ci:shop or ci:shop/web")
    return text


class ProjectLimits(ConfigSection):
    """Limits of all subjects of a CI project together (None if there is no limit).

    The setting `clones` limits the number of clones, and `running` the number of clones with a running server. The
    setting `bytes` limits the data that all these clones may write. The setting `longest_lease` limits each clone's
    lease.
    """

    clones: Annotated[int, Field(ge=0, le=10_000)] | None = None
    bytes: Annotated[Size, Field(ge=0)] | None = None
    running: Annotated[int, Field(ge=0, le=10_000)] | None = None
    longest_lease: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] | None = None


class ServeSettings(ConfigSection):
    """Socket and account of the helper, and the limits of each subject.

    The helper creates `socket`, unless systemd passes a socket. `account` is the account of the web process: requests
    from all other accounts except root are refused. `ttl` is the default lease of a clone, and `longest_lease` is the
    longest lease that may be requested. `per_subject` limits the clones of a subject, and `commits_per_subject` limits
    the commits of these clones. `bytes_per_subject` limits the data that a subject's clones may write together; each
    clone also has its own quota. `running_per_subject` limits the running servers of these clones. A limit of None
    means that there is no limit. `comparisons` limits concurrent comparisons of two states, each of which runs two
    servers; `comparisons_per_subject` limits the comparisons of one subject's clones. `project` sets limits for all
    subjects of a project together: `ci:shop` includes `ci:shop/web`. `unmasked` lists instances without masking that
    anybody may clone; only operators may clone all other unmasked instances. `fetch_account` is the account that
    fetches the issuers' keys; it must not be the account of the web process. `url` is the address of the pages in
    browsers, to which issuers redirect people after a login. `session` is the duration of a login.
    """

    socket: AbsolutePath = Path("/run/zsnapdb-serve/helper.sock")
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
            raise ValueError("fetch_account must not be the account of the web process")
        return self

    @model_validator(mode="after")
    def _has_an_address_for_logins(self) -> ServeSettings:
        if self.url is None and any(one.login is not None for one in self.issuer.values()):
            raise ValueError("serve.issuer.NAME.login needs serve.url, to which the browser returns")
        return self

    @model_validator(mode="after")
    def _ends_in_time(self) -> ServeSettings:
        if self.ttl > self.longest_lease:
            raise ValueError("ttl is longer than longest_lease")
        return self

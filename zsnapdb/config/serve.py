"""The settings of the helper of `zsnapdb serve`. The web process reads no configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from zsnapdb.base.patterns import INSTANCE
from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.base.subject import is_subject
from zsnapdb.config.issuer import IssuerSettings
from zsnapdb.config.section import ConfigSection

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

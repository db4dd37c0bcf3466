"""The settings of the log-in of people to the page of `zsnapdb serve`, by an issuer of id tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

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

"""Fetches the keys of an issuer, and where people log in there, as the issuer says it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base.errors import ConfigError, UnreachableError
from zsnapdb.base.foreign_text import exact_fields_of
from zsnapdb.base.text_files import read_text
from zsnapdb.config.serve import HttpsUrl, IssuerSettings
from zsnapdb.serve.issuer_keys import FetchedKeys, LoginPlaces
from zsnapdb.serve.jwks import keys_in
from zsnapdb.serve.unprivileged_https import AskHttps, HttpsRequest

_URL: TypeAdapter[str] = TypeAdapter(HttpsUrl)
DISCOVERY = "/.well-known/openid-configuration"


def fetched(issuer: IssuerSettings, ask: AskHttps) -> FetchedKeys:
    """Return the keys of the issuer, and if people log in by it, where. UnreachableError if it does not say it.

    UnreachableError also if no key can be used.
    """
    is_told = issuer.jwks_url is not None and issuer.login is None
    said = {} if is_told else _said(issuer.issuer, ask)
    url = issuer.jwks_url or _place(said, issuer.issuer, "jwks_uri")
    try:
        keys = keys_in(ask(HttpsRequest(url)).good())
    except ValueError as error:
        raise UnreachableError(f"the keys at {url}: {error}", hint="is jwks_url right?") from error
    if not keys:
        raise UnreachableError(
            f"no key at {url} can be used", hint="it must have RSA keys from 2048 bits on, or EC keys, with a kid"
        )
    return FetchedKeys(issuer=issuer.issuer, jwks_url=url, keys=keys, login=_login(said, issuer))


def _login(said: Mapping[str, object], issuer: IssuerSettings) -> LoginPlaces | None:
    if issuer.login is None:
        return None
    return LoginPlaces(
        authorization_endpoint=_place(said, issuer.issuer, "authorization_endpoint"),
        token_endpoint=_place(said, issuer.issuer, "token_endpoint"),
    )


def _said(issuer: str, ask: AskHttps) -> Mapping[str, object]:
    """Return what the issuer says of itself. What says to be of another issuer is not believed."""
    place = issuer.rstrip("/") + DISCOVERY
    try:
        said = exact_fields_of(ask(HttpsRequest(place)).good())
        if said.get("issuer") != issuer:
            raise ValueError("it is of another issuer")
    except ValueError as error:
        raise UnreachableError(
            f"{place}: {error}", hint="write issuer exactly as the issuer itself does, or set jwks_url"
        ) from error
    return said


def _place(said: Mapping[str, object], issuer: str, name: str) -> str:
    try:
        return _URL.validate_python(said.get(name), strict=True)
    except ValidationError as error:
        hint = (
            "set jwks_url" if name == "jwks_uri" else "without it nobody can log in: leave out serve.issuer.NAME.login"
        )
        raise UnreachableError(f"{issuer.rstrip('/')}{DISCOVERY}: {name} is no address of https", hint=hint) from error


def tls_context(issuer: IssuerSettings) -> ssl.SSLContext:
    """Return what verifies certificates of the issuer, with its authority alone if one is set. ConfigError."""
    if issuer.tls_ca is None:
        return ssl.create_default_context()
    authority = read_text(issuer.tls_ca, "the authority of an issuer", "tls_ca names a file with certificates (PEM)")
    try:
        return ssl.create_default_context(cadata=authority)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{issuer.tls_ca} has no certificate", hint="tls_ca names a file with certificates"
        ) from error

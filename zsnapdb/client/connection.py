"""The address and the token of the API."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from zsnapdb.client.errors import CloneCommandError

URL, TOKEN = "ZSNAPDB_URL", "ZSNAPDB_TOKEN"
_ROOT = "/api/v1"
_FORM = re.compile(r"[!-~]{1,8192}")
"""The pattern of a token that is allowed in a header. Id tokens of CI systems are long."""
_USAGE = 2


@dataclass(frozen=True)
class ApiConnection:
    """Base URL, host and token of the API.

    The field `ca_file` contains the CA of the API's certificate (None means the CAs of this host).
    """

    base: str
    host: str
    token: str = field(repr=False)
    ca_file: Path | None = None

    @property
    def is_local(self) -> bool:
        return _is_loopback(self.host)

    @property
    def headers(self) -> Mapping[str, str]:
        return {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json",
            # Compressed data can expand to a thousand times its size.
            "Accept-Encoding": "identity",
        }


def connection(
    url: str | None = None,
    token: str | None = None,
    *,
    allows_http: bool = False,
    ca_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ApiConnection:
    """Return the connection from the arguments, or else from ZSNAPDB_URL and ZSNAPDB_TOKEN.

    Raises: CloneCommandError if a value is missing or invalid, or if the token would leave this host unencrypted. No
    error contains the token.
    """
    where = url if url is not None else environment.get(URL, "")
    if not where:
        raise unusable("the URL of `zsnapdb serve` is missing", f"set it: {URL}=https://clones.example.org")
    parts = _parts(where)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise other_form()
    if parts.username is not None or parts.password is not None:
        raise unusable(
            "the URL of `zsnapdb serve` contains a user name or password", f"remove it; the token belongs in {TOKEN}"
        )
    if parts.scheme == "http" and not (allows_http or _is_loopback(parts.hostname)):
        raise unusable(
            f"http to {parts.hostname} would send the token unencrypted",
            "use https; a program can set allows_http=True if it trusts the network in between",
        )
    secret = token if token is not None else environment.get(TOKEN, "")
    if _FORM.fullmatch(secret) is None:
        raise unusable(
            "the token is missing or malformed",
            f"ask an administrator for one (`zsnapdb token create`), and set {TOKEN}",
        )
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{_ROOT}"
    return ApiConnection(base, parts.hostname, secret, ca_file)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        # The port is read here only to raise an error if it is invalid.
        _ = parts.port
    except ValueError:
        raise other_form() from None
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def other_form() -> CloneCommandError:
    """Return the error for an invalid URL of the service."""
    return unusable("the URL of `zsnapdb serve` has another form", "give it as https://clones.example.org")


def unusable(message: str, hint: str) -> CloneCommandError:
    """Return the error for invalid arguments. No request was sent."""
    return CloneCommandError(message, hint, _USAGE, code="usage")

"""The requests to `zsnapdb serve` that the tools need."""

from __future__ import annotations

import ipaddress
import re
import secrets
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from zsnapdb.base.errors import ConfigError, ZsnapdbError

URL, TOKEN = "ZSNAPDB_URL", "ZSNAPDB_TOKEN"
_ROOT = "/api/v1"
_TOKEN_FORM = re.compile(r"[!-~]{1,8192}")
_SECONDS = 120.0
_LONGEST = 3600.0
_PAUSE = 1.0
_ACCEPTED = 202
_MOST_BYTES = 16 << 20


class ApiFailure(ZsnapdbError):
    """The service refused a request, or did not answer. `status` is that of its answer (None: there is none)."""

    code = "api"

    def __init__(self, message: str, *, hint: str = "", status: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True)
class CloneService:
    """The service at an address, as the holder of a token sees it."""

    url: str
    token: SecretStr
    tls_ca: Path | None = None
    pause: float = _PAUSE
    longest: float = _LONGEST
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"timeout": _SECONDS, "follow_redirects": False, "trust_env": not is_here(self.host)}
        if self.tls_ca is not None:
            options["verify"] = _authority(self.tls_ca)
        headers = {"Authorization": f"Bearer {self.token.get_secret_value()}", "Accept": "application/json"}
        base = f"{self.url.rstrip('/')}{_ROOT}"
        object.__setattr__(self, "_client", httpx.Client(base_url=base, headers=headers, **options))

    @property
    def host(self) -> str:
        """The host of the service."""
        return urlsplit(self.url).hostname or ""

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def get(self, path: str) -> Mapping[str, Any]:
        """Return the document at a path. ApiFailure."""
        return self._done("GET", path)

    def change(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        """Ask for a change, wait until it is done, and return its document. ApiFailure."""
        return self._done(method, path, body)

    def _done(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        headers = {"Idempotency-Key": secrets.token_hex(16)} if method == "POST" else {}
        status, document = self._sent(method, path, body, headers)
        deadline = time.monotonic() + self.longest
        while status == _ACCEPTED:
            if time.monotonic() >= deadline:
                raise ApiFailure(f"{method} {path} is not done yet", hint="list the clones later")
            time.sleep(self.pause)
            status, document = self._sent("GET", f"/operations/{document.get('operation', '')}", None, {})
        return document

    def _sent(
        self, method: str, path: str, body: Mapping[str, object] | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, Any]]:
        try:
            with self._client.stream(method, path, json=body, headers=dict(headers)) as answer:
                text = bytearray()
                for part in answer.iter_bytes():
                    text += part
                    if len(text) > _MOST_BYTES:
                        raise ApiFailure(f"{self.host} answered too much", hint="is it `zsnapdb serve`?")
                status = answer.status_code
        except httpx.HTTPError as error:
            raise ApiFailure(
                f"{self.host} does not answer: {error or type(error).__name__}", hint=f"check {URL}"
            ) from error
        document = _object(bytes(text))
        if status >= 300 or document is None:
            said = document or {}
            raise ApiFailure(
                str(said.get("detail") or f"{self.host} answered {status}"),
                hint=str(said.get("hint") or ""),
                status=status,
            )
        return status, document


def api_of(environment: Mapping[str, str], tls_ca: Path | None) -> CloneService:
    """Return the service that ZSNAPDB_URL and ZSNAPDB_TOKEN name. ConfigError, which never has the token."""
    url, token = environment.get(URL, ""), environment.get(TOKEN, "")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"{URL} is no address", hint=f"set it: {URL}=https://clones.example.net")
    if parts.scheme == "http" and not is_here(parts.hostname):
        raise ConfigError(f"http to {parts.hostname} would send the token in the clear", hint="use https")
    if _TOKEN_FORM.fullmatch(token) is None:
        raise ConfigError(f"{TOKEN} holds no token", hint="an administrator makes one with `zsnapdb token create`")
    return CloneService(url, SecretStr(token), tls_ca)


def is_here(host: str) -> bool:
    """Whether a host is this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _authority(file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{file} has no certificate", hint="name a file with certificates (PEM)") from error


def _object(text: bytes) -> Mapping[str, Any] | None:
    from zsnapdb.base.foreign_json import fields_of

    try:
        return fields_of(text)
    except ValueError:
        return None

"""Fetches the keys of an issuer by HTTPS, without the rights of root.

Root says which address is asked, and reads what comes back. A process in between, which has given up root for good,
speaks TLS and HTTP. It has a fixed time for each address, and so much may come.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import pwd
import select
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base.errors import ConfigError, UnreachableError
from zsnapdb.base.foreign_json import exact_fields_of
from zsnapdb.base.text_files import read_text
from zsnapdb.config.issuer import HttpsUrl, IssuerSettings
from zsnapdb.serve.issuer_keys import FetchedKeys
from zsnapdb.serve.jwks import keys_in

_SECONDS = 15.0
_MOST_BYTES = 256 * 1024
_OK, _FAILED = b"+", b"-"
_URL: TypeAdapter[str] = TypeAdapter(HttpsUrl)
DISCOVERY = "/.well-known/openid-configuration"

GetUrl = Callable[[str], bytes]
"""Returns what is at an address of https. UnreachableError."""


def fetched(issuer: IssuerSettings, get: GetUrl) -> FetchedKeys:
    """Return the keys of the issuer. UnreachableError if it does not answer, or not with keys that can be used."""
    url = issuer.jwks_url or _discovered(issuer.issuer, get)
    try:
        keys = keys_in(get(url))
    except ValueError as error:
        raise UnreachableError(f"the keys at {url}: {error}", hint="is jwks_url right?") from error
    if not keys:
        raise UnreachableError(
            f"no key at {url} can be used", hint="it must have RSA keys from 2048 bits on, or EC keys, with a kid"
        )
    return FetchedKeys(issuer=issuer.issuer, jwks_url=url, keys=keys)


def _discovered(issuer: str, get: GetUrl) -> str:
    """Return the address of the keys, as the issuer says it. What says to be of another issuer is not believed."""
    place = issuer.rstrip("/") + DISCOVERY
    try:
        said = exact_fields_of(get(place))
        if said.get("issuer") != issuer:
            raise ValueError("it is of another issuer")
        return _URL.validate_python(said.get("jwks_uri"), strict=True)
    except ValidationError as error:
        raise UnreachableError(f"{place}: jwks_uri is no address of https", hint="set jwks_url") from error
    except ValueError as error:
        raise UnreachableError(
            f"{place}: {error}", hint="write issuer exactly as the issuer itself does, or set jwks_url"
        ) from error


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


def https_get(url: str, context: ssl.SSLContext) -> bytes:
    """Return what is at the address. UnreachableError. No redirect is followed, no proxy asked, no answer kept."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError as error:
        raise UnreachableError(f"{url}: {error}", hint="write a port up to 65535") from error
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.request("GET", parts.path or "/", headers={"Accept": "application/json", "Connection": "close"})
        with connection.getresponse() as answer:
            if answer.status != http.client.OK:
                raise UnreachableError(f"{url} answered {answer.status}", hint="no redirect is followed")
            body = answer.read(_MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise UnreachableError(
            f"{url}: {error or type(error).__name__}", hint="this host must reach it, without a proxy"
        ) from error
    finally:
        connection.close()
    if len(body) > _MOST_BYTES:
        raise UnreachableError(f"{url} answered more than {_MOST_BYTES} bytes", hint="is it the right address?")
    return body


@dataclass(frozen=True)
class UnprivilegedGet:
    """Gets an address in a child that is `account`, with no group but its own. Who is not root has nothing to give up.

    The child is killed after `seconds`, however it is spoken to. Only a process without other threads may call it.
    """

    context: ssl.SSLContext
    account: str
    seconds: float = 2 * _SECONDS

    def __call__(self, url: str) -> bytes:
        """Return what is at the address. UnreachableError; ConfigError if there is no such account, or it is root."""
        account = self._account()
        # Names of hosts are encoded by a module of the library, which the child may not be allowed to read.
        "host".encode("idna")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _end_with(lambda: self._got(url, account), writing)
        os.close(writing)
        try:
            said = _read(reading, self.seconds)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if said[:1] != _OK:
            text = said[1:].decode(errors="replace") or f"{url}: it took longer than {self.seconds:g} s"
            raise UnreachableError(text, hint="this host must reach it, without a proxy")
        return said[1:]

    def _account(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        try:
            found = pwd.getpwnam(self.account)
        except KeyError as error:
            raise ConfigError(
                f"serve.fetch_account is {self.account}, and there is no such account", hint="name one without rights"
            ) from error
        if found.pw_uid == 0 or found.pw_gid == 0:
            raise ConfigError(f"serve.fetch_account {self.account} has the rights of root", hint="name another")
        return found

    def _got(self, url: str, account: pwd.struct_passwd | None) -> bytes:
        if account is not None:
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        return https_get(url, self.context)


def _end_with(work: Callable[[], bytes], writing: int) -> None:
    """End this process after it has written what the work returned, or why it failed. Nothing of its parent runs."""
    said = _FAILED
    try:
        said = _OK + work()
    except UnreachableError as error:
        said = _FAILED + error.message.encode()
    except BaseException as error:
        said = _FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")
    finally:
        with contextlib.suppress(OSError), open(writing, "wb") as out:
            out.write(said)
        os._exit(0)


def _read(reading: int, seconds: float) -> bytes:
    """Return what is written until the end, or until so many seconds are over; at most what an answer may have."""
    deadline, said = time.monotonic() + seconds, bytearray()
    while len(said) <= _MOST_BYTES + 1:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 65536) if ready else b""
        if not ready:
            return b""
        if not part:
            break
        said += part
    return bytes(said)

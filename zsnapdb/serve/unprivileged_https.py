"""Asks an issuer by HTTPS, without the rights of root.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from zsnapdb.base.deadline import within
from zsnapdb.base.errors import ConfigError, UnreachableError
from zsnapdb.base.timed_http import TimedHttpsConnection

_SECONDS = 15.0
_MOST_BYTES = 256 * 1024
_OK, _FAILED = b"+", b"-"


@dataclass(frozen=True)
class HttpsRequest:
    """What is asked: to read what is at the address, or, if there is a form, to send it there."""

    url: str
    form: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class HttpsAnswer:
    """What came back. No redirect was followed, no proxy asked, no answer kept."""

    url: str
    status: int
    body: bytes = field(repr=False)

    def good(self) -> bytes:
        """Return the body. UnreachableError if the status is not 200."""
        if self.status != http.client.OK:
            raise UnreachableError(f"{self.url} answered {self.status}", hint="no redirect is followed")
        return self.body


AskHttps = Callable[[HttpsRequest], HttpsAnswer]
"""Asks an address of https. UnreachableError if it does not answer."""


def https_ask(request: HttpsRequest, context: ssl.SSLContext) -> HttpsAnswer:
    """Return what the address answers. UnreachableError if it does not, or if it answers too much."""
    url = request.url
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError as error:
        raise UnreachableError(f"{url}: {error}", hint="write a port up to 65535") from error
    connection = TimedHttpsConnection(host, port, timeout=_SECONDS, context=context)
    headers = {"Accept": "application/json", "Connection": "close", **request.headers}
    try:
        with within(_SECONDS):
            connection.request("GET" if request.form is None else "POST", parts.path or "/", request.form, headers)
            with connection.getresponse() as answer:
                status, body = answer.status, answer.read(_MOST_BYTES + 1)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise UnreachableError(
            f"{url}: {error or type(error).__name__}", hint="this host must reach it, without a proxy"
        ) from error
    finally:
        connection.close()
    if len(body) > _MOST_BYTES:
        raise UnreachableError(f"{url} answered more than {_MOST_BYTES} bytes", hint="is it the right address?")
    return HttpsAnswer(url, status, body)


@dataclass(frozen=True)
class UnprivilegedHttps:
    """Asks an address in a child that is `account`, with no group but its own. Who is not root has nothing to give up.

    The child is killed after `seconds`, however it is spoken to. Only a process without other threads may call it.
    """

    context: ssl.SSLContext
    account: str
    seconds: float = 2 * _SECONDS

    def __call__(self, request: HttpsRequest) -> HttpsAnswer:
        """Return what it answers. UnreachableError; ConfigError if there is no such account, or it is root."""
        account = self._account()
        # Names of hosts are encoded by a module of the library, which the child may not be allowed to read.
        "host".encode("idna")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _end_with(lambda: self._asked(request, account), writing)
        os.close(writing)
        try:
            said = _read(reading, self.seconds)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if said[:1] != _OK:
            text = said[1:].decode(errors="replace") or f"{request.url}: it took longer than {self.seconds:g} s"
            raise UnreachableError(text, hint="this host must reach it, without a proxy")
        return HttpsAnswer(request.url, int.from_bytes(said[1:3]), said[3:])

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

    def _asked(self, request: HttpsRequest, account: pwd.struct_passwd | None) -> bytes:
        if account is not None:
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        answer = https_ask(request, self.context)
        return answer.status.to_bytes(2) + answer.body


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
    while len(said) <= _MOST_BYTES + 3:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 65536) if ready else b""
        if not ready:
            return b""
        if not part:
            break
        said += part
    return bytes(said)

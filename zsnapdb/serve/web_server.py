"""The HTTP or HTTPS server of the API and the pages, based on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import h11
import uvicorn
from cryptography import x509
from uvicorn.protocols.http.h11_impl import H11Protocol

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.files import read_text, secret_in
from zsnapdb.serve.helper_messages import HelperClient
from zsnapdb.serve.page_app import create_site

REQUEST_SECONDS = 30.0
"""Seconds that a client gets for a request, from the connection or the request's first byte to its end."""
READING_SECONDS = 60.0
"""Seconds for which a client may leave an answer unread before it is disconnected."""


class TimedProtocol(H11Protocol):
    """The HTTP protocol of a connection.

    One time limit applies to the receipt of the whole request. It does not apply to the answer.
    """

    _request: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_request()

    def _limit_request(self) -> None:
        """Start the time limit of an incoming request if none is running. Cancel it when the request is complete."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._end_request()
        elif self._request is None:
            self._request = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_request(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self._reading or self.loop.call_later(READING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_request()
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)


_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""The OpenSSL errors for a private key that does not match the certificate. The last is for a key of another type."""
_CHAIN = "it must hold the certificate and then the others of its chain (PEM)"


@dataclass(frozen=True)
class TlsFiles:
    """A file with a certificate and its chain, and a file with its private key."""

    certificate: Path
    key: Path
    now: Callable[[], datetime]

    def context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or newer with the certificate and key in the files.

        Raises ConfigError if the files cannot be used now.
        """
        return self._read().context()

    def load(self, context: ssl.SSLContext) -> None:
        """Let new connections of the context use the current files. After a ConfigError, the context is unchanged.

        Each file is read only once, so the content that was checked is the content that is used.
        """
        pair = self._read()
        pair.context()
        pair.load(context)

    def _read(self) -> _TlsPair:
        """Return both files' contents. Raises ConfigError if one is unreadable or the certificate is not valid now."""
        certificate = read_text(self.certificate, "the certificate", _CHAIN)
        self._refuse_wrong_time(certificate)
        key = secret_in(self.key, "the key", "the account of `zsnapdb serve` must be able to read it")
        return _TlsPair(self, certificate.encode(), key)

    def _refuse_wrong_time(self, text: str) -> None:
        try:
            first = x509.load_pem_x509_certificates(text.encode())[0]
        except ValueError as error:
            raise ConfigError(f"{self.certificate} has no certificate", hint=_CHAIN) from error
        now = self.now()
        if first.not_valid_after_utc <= now:
            raise ConfigError(
                f"the certificate {self.certificate} expired at {first.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC",
                hint="renew it",
            )
        if first.not_valid_before_utc > now:
            raise ConfigError(
                f"the certificate {self.certificate} is valid from {first.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC",
                hint="is the clock of this host right?",
            )


@dataclass(frozen=True)
class _TlsPair:
    """A certificate and a key that were read together."""

    files: TlsFiles
    certificate: bytes
    key: bytes = field(repr=False)

    def context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or newer with this pair. Raises ConfigError if the pair cannot be used."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(made)
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Let the context use this pair. After a ConfigError, the context may contain only one of the two."""
        names = f"the certificate {self.files.certificate} with the key {self.files.key}"
        try:
            # OpenSSL accepts only file names. These files are in memory, where no other account can open them.
            with _in_memory(self.certificate) as certificate, _in_memory(self.key) as key:
                context.load_cert_chain(certificate, key, password=self._no_password)
        except ssl.SSLError as error:
            if error.reason in _MISMATCHES:
                what = f"the key {self.files.key} is not that of the certificate {self.files.certificate}"
                raise ConfigError(what, hint="name the key of the certificate") from error
            hint = f"name a file with a key (PEM); in the other {_CHAIN}"
            raise ConfigError(f"{names}: {error.reason or error}", hint=hint) from error
        except OSError as error:
            raise ConfigError(f"reading {names}: {error.strerror}", hint=_CHAIN) from error

    def _no_password(self) -> str:
        """Refuse an encrypted key. OpenSSL would otherwise prompt for its password."""
        raise ConfigError(
            f"the key {self.files.key} is encrypted",
            hint="use an unencrypted key file that only the account of the service can read",
        )


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[Path]:
    """Yield the path of a file in memory with this content. The path is valid only in this process."""
    with os.fdopen(os.memfd_create("zsnapdb-tls", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


_MOST_CLIENTS = 200
_KEEP_ALIVE_SECONDS = 5
_MOST_HEADER_BYTES = 16 * 1024


class ReportingServer(uvicorn.Server):
    """A server that calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and then call `ready`."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve_web(helper: HelperClient, address: str, port: int, files: TlsFiles | None, ready: Callable[[], None]) -> None:
    """Answer requests at the address until SIGTERM or SIGINT. With `files`, use HTTPS, and read them again on SIGHUP.

    `ready` is called once the server listens.

    Raises ConfigError, before anything listens, if the files cannot be used.
    """
    context = files.context() if files is not None else None
    config = uvicorn.Config(
        create_site(helper),
        host=address,
        port=port,
        limit_concurrency=_MOST_CLIENTS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
    )
    config.load()
    config.ssl = context
    if files is not None and context is not None:
        signal.signal(signal.SIGHUP, lambda *_: _read_again(files, context))
    # After uvicorn has ended, it raises the signal that ended it again.
    with contextlib.suppress(KeyboardInterrupt):
        ReportingServer(config, ready).run()


def _read_again(files: TlsFiles, context: ssl.SSLContext) -> None:
    """Use the certificate in the files for new connections. If the files are unusable, keep the current certificate."""
    try:
        files.load(context)
    except ConfigError as error:
        said = f"{error}\nthe certificate of before stays\n"
    else:
        said = f"read {files.certificate} again\n"
    # A signal handler can run while a line is being printed.
    os.write(2, said.encode(errors="backslashreplace"))

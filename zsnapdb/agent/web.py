"""Answers /metrics, /healthz and /readyz by HTTP, in threads beside the loop of the agent."""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from zsnapdb.config_agent import HttpSettings
from zsnapdb.errors import ConfigError
from zsnapdb.text_files import password_in

_SECONDS = 10.0
"""How long a client may take for a request, and for its TLS handshake."""
_MOST = 16
"""How many clients are answered at once; others are turned away."""
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answers:
    """What the pages say. `alive` and `ready` return what is wrong; nothing is wrong if that is empty."""

    metrics: Callable[[], str]
    alive: Callable[[], tuple[str, ...]]
    ready: Callable[[], tuple[str, ...]]


class WebServer:
    """A listening server. It answers from `start` to `close`."""

    def __init__(self, settings: HttpSettings, answers: Answers) -> None:
        """Listen. ConfigError if that is impossible, or if the token or the certificate cannot be read."""
        token = password_in(settings.token_file, "the token of the agent") if settings.token_file is not None else None
        secret = token.get_secret_value() if token is not None else ""
        if token is not None and not secret:
            raise ConfigError(f"reading the token of the agent {settings.token_file}: it is empty", hint="write one")
        where = f"{settings.address} port {settings.port}"
        try:
            context = _context(settings)
            self._server = _Server(settings, _handler(answers, secret), context)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"listening on {where}: {error.strerror or error}",
                hint="check address, port, certificate and key in [agent.http]",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer and listen no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, settings: HttpSettings, handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        self._context = context
        self._room = threading.BoundedSemaphore(_MOST)
        super().__init__((settings.address, settings.port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_SECONDS)
            if self._context is not None:
                request = self._context.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that go away."""


def _context(settings: HttpSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.certificate, settings.key)
    return context


def _handler(answers: Answers, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "zsnapdb"
        sys_version = ""
        timeout = _SECONDS

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                self._answer(401, "a token is needed\n", _TEXT)
            elif self.path == "/metrics":
                self._metrics()
            elif self.path in ("/healthz", "/readyz"):
                self._state(answers.alive if self.path == "/healthz" else answers.ready)
            else:
                self._answer(404, "there are /metrics, /healthz and /readyz\n", _TEXT)

        def _metrics(self) -> None:
            try:
                self._answer(200, answers.metrics(), _METRICS)
            except OSError as error:
                self._answer(503, f"there are no metrics yet: {error.strerror}\n", _TEXT)

        def _state(self, reasons_of: Callable[[], tuple[str, ...]]) -> None:
            reasons = reasons_of()
            self._answer(503 if reasons else 200, "\n".join(reasons or ("ok",)) + "\n", _TEXT)

        def _answer(self, code: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep no log of requests."""

    return Handler

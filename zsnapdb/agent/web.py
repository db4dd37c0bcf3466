"""HTTP server for /metrics, /healthz and /readyz. It runs in threads next to the agent's loop.

A client has a fixed time to send its request, and the same time to read the answer. If too many clients are connected,
the oldest client is disconnected, unless its answer is being prepared. So slow clients cannot block all connections.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from zsnapdb.agent.records import Records, difference, last_configuration
from zsnapdb.agent.schedule import Schedule
from zsnapdb.agent.supervisor import suspended_instances
from zsnapdb.base import safe_open
from zsnapdb.base.errors import ConfigError
from zsnapdb.base.files import password_in
from zsnapdb.base.safe_open import UnsafeFileError
from zsnapdb.config.services import HttpSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.host.agent_presence import has_other_scheduler, runs_agent
from zsnapdb.jobs.record import record_file
from zsnapdb.planning.agent_jobs import HOST, KnownRun, PauseRecord, PlannedJob, RunRecord, jobs_of, not_ready

_SECONDS = 10.0
"""Seconds within which a client must send its request, including the TLS handshake.

The client has the same time to read the answer.
"""
_MOST = 16
"""Maximum number of connected clients."""
_POLL_SECONDS = 0.2
"""Seconds between two searches for clients whose time is up."""
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answers:
    """Functions that return the contents of the pages. The functions `alive` and `ready` return problems, if any."""

    metrics: Callable[[], str]
    alive: Callable[[], tuple[str, ...]]
    ready: Callable[[], tuple[str, ...]]


class WebServer:
    """A listening HTTP server. It answers requests after `start` and until `close`."""

    def __init__(self, settings: HttpSettings, answers: Answers, seconds: float = _SECONDS) -> None:
        """Start to listen. A client has `seconds` to send its request, and the same time to read the answer.

        Raises ConfigError if the server cannot listen, or if the token or the certificate cannot be read.
        """
        token = password_in(settings.token_file, "the token of the agent") if settings.token_file is not None else None
        secret = token.get_secret_value() if token is not None else ""
        if token is not None and not secret:
            raise ConfigError(f"reading the token of the agent {settings.token_file}: it is empty", hint="write one")
        where = f"{settings.address} port {settings.port}"
        try:
            context = _context(settings)
            self._server = _Server(settings, _handler(answers, secret), context, seconds)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"listening on {where}: {error.strerror or error}",
                hint="check address, port, certificate and key in [agent.http]",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="http", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class _Client:
    """A connected client. The field `since` is the monotonic time when the server started to wait for it.

    The field `is_served` is true while the client waits for its answer.
    """

    since: float
    is_served: bool = False


class _Clients:
    """The connected clients, by socket. A socket is closed only after it was removed from this collection."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: dict[socket.socket, _Client] = {}
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket) -> bool:
        """Admit a client. If necessary, disconnect the oldest client for which the server waits.

        Return whether the client was admitted. It is rejected if answers are being prepared for all connected clients.
        """
        with self._lock:
            if len(self._known) >= _MOST:
                waiting = [each for each, client in self._known.items() if not client.is_served]
                if not waiting:
                    return False
                self._send_away(min(waiting, key=lambda each: self._known[each].since))
            self._known[connection] = _Client(time.monotonic())
            return True

    def send_away_the_late(self) -> None:
        """Disconnect the clients whose time is up."""
        over = time.monotonic() - self._seconds
        with self._lock:
            for late in [each for each, client in self._known.items() if client.since <= over and not client.is_served]:
                self._send_away(late)

    def _send_away(self, connection: socket.socket) -> None:
        """Disconnect the client. This ends every blocked call of the client's thread."""
        del self._known[connection]
        with contextlib.suppress(OSError):
            # This also ends a TLS connection. The TLS socket's own method would change state that the client's thread
            # is using.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def take_out(self, connection: socket.socket) -> None:
        """Remove the client from the collection, if present. The caller then closes its socket."""
        with self._lock:
            self._known.pop(connection, None)

    def encrypt(self, connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return the client's socket as a TLS socket. The TLS handshake has not been done yet."""
        with self._lock:
            client = self._known.pop(connection, None)
            encrypted = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            if client is not None:
                self._known[encrypted] = client
            return encrypted

    @contextlib.contextmanager
    def serving(self, connection: socket.socket) -> Iterator[None]:
        """Keep the client connected while the block prepares its answer, so that threads never outnumber clients."""
        with self._lock:
            client = self._known.get(connection)
            if client is None:
                raise ConnectionAbortedError
            client.is_served = True
        try:
            yield
        finally:
            client.since, client.is_served = time.monotonic(), False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 4 * _MOST

    def __init__(
        self,
        settings: HttpSettings,
        handler: type[BaseHTTPRequestHandler],
        context: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        self._context = context
        self._seconds = seconds
        self.clients = _Clients(seconds)
        super().__init__((settings.address, settings.port), handler)

    def service_actions(self) -> None:
        self.clients.send_away_the_late()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.clients.admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(self._seconds)
            if self._context is not None:
                request = self.clients.encrypt(request, self._context)
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.clients.take_out(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing if a client disconnects."""


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
            code, kind = 200, _METRICS
            with self._making():
                try:
                    text = answers.metrics()
                except OSError as error:
                    code, text, kind = 503, f"there are no metrics yet: {error.strerror}\n", _TEXT
                except UnsafeFileError as error:
                    code, text, kind = 503, f"{error.message}\n", _TEXT
            self._answer(code, text, kind)

        def _state(self, reasons_of: Callable[[], tuple[str, ...]]) -> None:
            with self._making():
                reasons = reasons_of()
            self._answer(503 if reasons else 200, "\n".join(reasons or ("ok",)) + "\n", _TEXT)

        def _making(self) -> contextlib.AbstractContextManager[None]:
            clients: _Clients = self.server.clients  # type: ignore[attr-defined]
            return clients.serving(self.connection)

        def _answer(self, code: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    return Handler


class Listener:
    """HTTP server at the address in the settings. It listens from the first `use` until `close`."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._settings: HttpSettings | None = None
        self._server: WebServer | None = None

    @property
    def port(self) -> int | None:
        """The port on which the server listens; None if it does not listen."""
        return self._server.port if self._server is not None else None

    def use(self, settings: HttpSettings | None) -> None:
        """Listen at the address in the settings, and at no other address. Reload certificates and tokens.

        Raises ConfigError if the server cannot listen. If the new address differs from the previous one, the server
        then still listens at the previous address.
        """
        has_files = settings is not None and (settings.certificate is not None or settings.token_file is not None)
        if self._server is not None and settings == self._settings and not has_files:
            return
        old, before = self._server, self._settings
        is_same = settings is not None and before is not None and _place(settings) == _place(before)
        if is_same:
            self.close()
            old = None
        opened = WebServer(settings, self._answers) if settings is not None else None
        if opened is not None:
            opened.start()
        if old is not None:
            old.close()
        self._server, self._settings = opened, settings

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = self._settings = None


def _place(settings: HttpSettings) -> tuple[str, int]:
    return settings.address, settings.port


_HANGS = 120.0
"""Seconds without a turn after which the agent is considered dead."""


@dataclass
class Pages:
    """The pages of the HTTP server. The agent calls `turned` after each turn that notifies the watchdog."""

    settings: Settings
    host: Host
    steady: Callable[[], float] = time.monotonic
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self.turned()

    def turned(self) -> None:
        """Record that the agent's loop runs."""
        self._last = self.steady()

    def alive(self) -> tuple[str, ...]:
        """Return the reason why the agent is considered dead; empty if the agent is alive."""
        silence = self.steady() - self._last
        return (f"the agent has done nothing for {silence:.0f} s",) if silence > _HANGS else ()

    def ready(self) -> tuple[str, ...]:
        """Return why the agent is not ready; empty if it is."""
        records, http = Records(self.settings.agent.state), self.settings.agent.http
        known = [KnownRun(job.name, records.run(job.name)) for job in jobs_of(self.settings)]
        stale = http.stale if http is not None else 0.0
        # If the disk is full, the stored results of the jobs are outdated.
        room = record_file.objections(self.settings.agent.state)
        return (*self.alive(), *room, *not_ready(known, stale, self.host.now()))

    def metrics(self) -> str:
        """Return the metrics that the status job wrote, with their age.

        The account of a metrics exporter may own the folder, and everybody may read the answer. Raises OSError if no
        metrics are stored, and UnsafeFileError if the file is a link or not a regular file.
        """
        file = self.settings.agent.metrics_file
        if file is None:
            raise FileNotFoundError(2, "no metrics file is configured for the agent")
        return safe_open.read_bytes(file).decode(errors="replace")

    @property
    def answers(self) -> Answers:
        """The functions of the pages, for a `WebServer`."""
        return Answers(self.metrics, self.alive, self.ready)


@dataclass(frozen=True)
class JobOverview:
    """A job, its last run (None if unknown), and its next scheduled time (None if it runs continuously)."""

    job: PlannedJob
    last: RunRecord | None
    next: datetime | None


@dataclass(frozen=True)
class AgentOverview:
    """The jobs of the agent, the current pauses, and whether an agent is running on this host.

    A pause without an instance applies to the whole host. The mapping `held` lists the instances whose jobs must not
    start, each with the reason. The text `difference` describes how the running agent's configuration differs from the
    configuration file; it is "" if they are equal.
    """

    is_running: bool
    jobs: tuple[JobOverview, ...]
    pauses: tuple[tuple[str | None, PauseRecord], ...]
    held: Mapping[str, str]
    difference: str
    is_lacking: bool = False
    """Whether the configuration has jobs, but neither an agent nor another scheduler runs them."""


def overview(settings: Settings, file: Path, host: Host) -> AgentOverview:
    """Return the current state from the agent's files. The settings are those in the configuration file."""
    records, now = Records(settings.agent.state), host.now()
    jobs = []
    for job in jobs_of(settings):
        following = Schedule.of(job.schedule, job.timezone).after(now) if job.schedule is not None else None
        jobs.append(JobOverview(job, records.run(job.name), following))
    known = ((name, records.pause(name or HOST)) for name in (*sorted(settings.instance), None))
    begun = ((name, pause.before_clock(now)) for name, pause in known if pause is not None)
    pauses = tuple((name, pause) for name, pause in begun if pause.until > now)
    is_running, told = runs_agent(host), last_configuration(host)
    differ = difference(told, settings, file) if is_running and told is not None else ""
    lacking = bool(jobs) and not is_running and not has_other_scheduler()
    return AgentOverview(is_running, tuple(jobs), pauses, suspended_instances(settings), differ, lacking)

"""A gateway in front of an emulator of a cloud store, which refuses and interrupts requests on demand."""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import json
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

BUSY = ((503, "ServerBusy"), (429, "SlowDown"), (500, "InternalError"))
_OWN = {"connection", "transfer-encoding", "content-length", "date", "server", "keep-alive"}


@dataclass
class Front:
    """The state of the gateway. `port` is its port on 127.0.0.1.

    - `busy_until`: until this monotonic time every request is refused as the answers in BUSY in turn
    - `cut_every`: every n-th answer to a GET with a large body ends in the middle (0: none)
    - `refused_keys`: ids of keys whose tokens are refused with 401
    - `expired`: tokens that were issued at this time (Unix seconds) or earlier are refused with 401
    - `translates_puts`: a PUT of Google's XML API becomes an upload of its JSON API, for a server without the former
    """

    target: int
    port: int = 0
    busy_until: float = 0.0
    cut_every: int = 0
    refused_keys: set[str] = field(default_factory=set)
    expired: int = 0
    translates_puts: bool = False
    answers: Counter[str] = field(default_factory=Counter)
    _at_chunk: Callable[[], None] | None = None
    _chunks_before: int = 0
    _reads: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def be_busy(self, seconds: float) -> None:
        """Refuse all requests from now on for this time."""
        self.busy_until = time.monotonic() + seconds

    def at_chunk(self, number: int, action: Callable[[], None]) -> None:
        """Call the action once, before the answer to this GET of a chunk, counted from 1."""
        self._chunks_before, self._at_chunk = number - 1, action

    def notice(self, command: str, path: str) -> None:
        """Count the request, and call the action of `at_chunk` if it is this one."""
        if command != "GET" or "/chunks/" not in urllib.parse.unquote(path.partition("?")[0]):
            return
        with self._lock:
            self._chunks_before -= 1
            is_now = self._chunks_before < 0 and self._at_chunk is not None
            action = self._at_chunk
            if is_now:
                self._at_chunk = None
        if is_now and action is not None:
            action()

    def expire_tokens(self) -> None:
        """Refuse all tokens that were issued at least two seconds ago."""
        self.expired = int(time.time()) - 2

    def count(self, answer: str) -> None:
        with self._lock:
            self.answers[answer] += 1

    @property
    def denied(self) -> int:
        """The number of requests that were refused because of their credentials."""
        return self.answers["401 ExpiredToken"] + self.answers["403 of the store"]

    def refusal(self, authorization: str) -> tuple[int, str] | None:
        """Return the status and code with which a request is refused; None if it is passed on."""
        if time.monotonic() < self.busy_until:
            return BUSY[sum(self.answers.values()) % len(BUSY)]
        head, claims = _token(authorization)
        if head.get("kid") in self.refused_keys or ("iat" in claims and int(str(claims["iat"])) <= self.expired):
            return 401, "ExpiredToken"
        return None

    def is_cut(self, size: int) -> bool:
        """Whether this answer to a GET ends in the middle."""
        if not self.cut_every or size < 1 << 16:
            return False
        with self._lock:
            self._reads += 1
            return self._reads % self.cut_every == 0


def _token(authorization: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the header and the claims of a token that a service account signed itself; empty for others."""
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return {}, {}
    head, claims = (json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in parts[:2])
    return head, claims


class _Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    front: Front

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _run(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.front.notice(self.command, self.path)
        refusal = self.front.refusal(self.headers.get("Authorization", ""))
        if refusal is not None:
            self.front.count(f"{refusal[0]} {refusal[1]}")
            said = f"<?xml version='1.0'?><Error><Code>{refusal[1]}</Code><Message>no.</Message></Error>".encode()
            self._answer(refusal[0], [], said, len(said))
            return
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.front.target, timeout=120)) as inner:
            if self.front.translates_puts and self.command == "PUT":
                self._upload(inner, body)
                return
            passed = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            inner.request(self.command, self.path, body, passed)
            answer = inner.getresponse()
            content = answer.read()
        size = int(answer.headers.get("Content-Length") or len(content)) if self.command == "HEAD" else len(content)
        if answer.status >= 400:
            self.front.count(f"{answer.status} of the store")
        if self.command == "GET" and self.front.is_cut(size):
            self.front.count("cut")
            self.close_connection = True
            content = content[: size // 2]
        else:
            self.front.count("passed on")
        self._answer(answer.status, answer.getheaders(), content, size)

    def _upload(self, inner: http.client.HTTPConnection, body: bytes) -> None:
        """Store the object by the JSON API, and answer as the XML API does."""
        bucket, _, key = self.path.removeprefix("/").partition("/")
        condition = self.headers.get("x-goog-if-generation-match")
        more = "" if condition is None else f"&ifGenerationMatch={condition}"
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={key}{more}"
        inner.request("POST", path, body, {"Content-Type": "application/octet-stream"})
        answer = inner.getresponse()
        content = answer.read()
        self.front.count("uploaded" if answer.status == 200 else f"{answer.status} of an upload")
        if answer.status != 200:
            self._answer(answer.status, [], content, len(content))
            return
        made = json.loads(content)
        headers = [("ETag", f'"{made["etag"]}"'), ("x-goog-generation", str(made["generation"]))]
        self._answer(200, headers, b"", 0)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _run  # noqa: N815 - the library names them

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, size: int) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OWN:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"" if self.command == "HEAD" else body)


@contextlib.contextmanager
def running_front(target: int) -> Iterator[Front]:
    """A gateway on a free port of 127.0.0.1 in front of this port."""
    front = Front(target)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Request", (_Request,), {"front": front}))
    server.daemon_threads = True
    front.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""An issuer on a real socket, with a certificate of a test authority."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

from tests.unit.support import certificates


@dataclass(frozen=True)
class AskedPage:
    """A request to the issuer."""

    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass
class HttpsIssuer:
    """Its answers by path: a status, a body, and headers. `asked` are the requested paths.

    `answers` has functions that answer a path without its query.
    """

    url: str
    files: certificates.Files
    pages: dict[str, tuple[int, bytes, Mapping[str, str]]] = field(default_factory=dict)
    answers: dict[str, Callable[[AskedPage], tuple[int, bytes, Mapping[str, str]]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    pause: float = 0.0
    """Seconds between two bytes of a body."""

    def page(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        """Set the answer for a path."""
        self.pages[path] = (status, body, headers)


@contextmanager
def https_issuer(folder: Path, name: str = "localhost") -> Iterator[HttpsIssuer]:
    """Serve on a port of this host during the block."""
    made = HttpsIssuer("", certificates.make(folder / "issuer", name))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            path, _, query = self.path.partition("?")
            told = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if path in made.answers:
                asked = AskedPage(dict(parse_qsl(query)), dict(self.headers), told)
                status, body, headers = made.answers[path](asked)
            else:
                status, body, headers = made.pages.get(self.path, (404, b"", {}))
            self.send_response(status)
            for header, value in headers.items():
                self.send_header(header, value)
            self.end_headers()
            for start in range(0, len(body), 1 if made.pause else max(1, len(body))):
                self.wfile.write(body[start : start + (1 if made.pause else len(body))])
                time.sleep(made.pause)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.files.cert, made.files.key)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        made.url = f"https://localhost:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()

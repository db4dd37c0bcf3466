"""The API of `zsnapdb serve` on a port, and a proxy to it that can lose answers."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from tests.unit.support.serve_host import ServeHost
from zsnapdb.serve.api_answers import OperationEvents
from zsnapdb.serve.api_app import create_app


def request(host: ServeHost, method: str, path: str, token: str = "", **options: Any) -> Any:
    """Send one request to the application that asks this host's helper."""

    async def send() -> Any:
        transport = httpx.ASGITransport(app=create_app(host.client), raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://test/api/v1") as client:
            return await client.request(method, path, headers={**headers, **options.pop("headers", {})}, **options)

    return asyncio.run(send())


@contextmanager
def served(host: ServeHost, events: OperationEvents | None = None) -> Iterator[str]:
    """Serve HTTP during the block, and yield the URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(host.client, events), lifespan="off", log_level="error", access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 20
            while not server.started:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class LossyLine:
    """Forwards requests to a server. The next `loses` answers are lost; `seen` has the sent requests."""

    port: int
    loses: int = 0
    seen: list[bytes] = field(default_factory=list)

    @contextmanager
    def url(self) -> Iterator[str]:
        """Listen during the block, and yield the URL. A connection has one request."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._listen, args=(listener,), daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _listen(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.port)) as server, suppress(OSError):
            client.settimeout(20)
            server.settimeout(20)
            request = _message(client).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            self.seen.append(request)
            server.sendall(request)
            answer = b""
            while part := server.recv(65536):
                answer += part
            if self.loses > 0:
                self.loses -= 1
                return
            client.sendall(answer)


def _message(client: socket.socket) -> bytes:
    """Return a complete request."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += client.recv(65536)
    head, _, body = text.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < int(lengths[0] if lengths else 0):
        body += client.recv(65536)
    return head + b"\r\n\r\n" + body

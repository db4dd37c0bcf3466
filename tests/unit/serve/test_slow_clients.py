"""A client that sends a request, or reads an answer, byte by byte loses its place; others are served."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from zsnapdb.serve import web_server
from zsnapdb.serve.web_server import TimedProtocol

SECONDS = 0.6
LATEST = 5.0
LONG = 64 << 20


async def site(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer with as many bytes as the path says, after the whole request; `/slow` drips its answer."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/long":
        for _ in range(LONG >> 20):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    if scope["path"] == "/slow":
        for _ in range(8):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(SECONDS / 4)
    await send({"type": "http.response.body", "body": b"end"})


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[uvicorn.Server]:
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", SECONDS)
    monkeypatch.setattr(web_server, "READING_SECONDS", SECONDS)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(site, http=TimedProtocol, ws="none", lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    yield server
    server.should_exit = server.force_exit = True
    thread.join(10)


@pytest.fixture
def port(running: uvicorn.Server) -> int:
    return int(running.servers[0].sockets[0].getsockname()[1])


def is_left(client: socket.socket, part: bytes) -> bool:
    """Send this again and again; return whether the server ends the connection in time."""
    began = time.monotonic()
    client.settimeout(0.05)
    while time.monotonic() - began < LATEST:
        try:
            if part:
                client.sendall(part)
            if client.recv(65536) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (b"", b""),
        (b"", b"G"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b"a"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"b"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["silent", "no line", "headers", "body", "chunks"],
)
def test_request_that_drips_is_ended(port: int, first: bytes, part: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(first)
        assert is_left(client, part)


def test_request_after_an_answer_has_its_own_limit(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=LATEST) as client:
        for _ in range(3):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while b"end" not in answer:
                answer += client.recv(65536)
            time.sleep(SECONDS / 2)
        client.sendall(b"GET /")
        assert is_left(client, b"x")


def test_answer_that_is_not_read_ends(running: uvicorn.Server, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        while not running.server_state.connections:
            assert time.monotonic() - began < LATEST
        while running.server_state.connections:
            assert time.monotonic() - began < LATEST
            time.sleep(0.01)


def test_answer_may_take_longer_than_a_request(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=LATEST) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert b"end" in answer

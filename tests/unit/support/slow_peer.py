"""A peer with answers that no limit of a single read detects: byte by byte, never, or without end."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Manner(StrEnum):
    """How the peer sends the rest of its answer."""

    DRIPS = "drips"
    SILENT = "never closes"
    ENDLESS = "sends without end"


@dataclass(frozen=True)
class SlowPeer:
    """A listening peer: its port (0 for a path)."""

    port: int


Talk = Callable[[Any], None]
"""Reads and writes the data before the rest."""


@contextlib.contextmanager
def slow_peer(
    manner: Manner,
    *,
    at: Path | None = None,
    talk: Talk = lambda _: None,
    rest: bytes = b"x",
    context: ssl.SSLContext | None = None,
) -> Iterator[SlowPeer]:
    """Listen at the path or on the loopback interface. After `talk` each client gets `rest` repeatedly."""
    over = threading.Event()
    listening = _listening(at)
    threads: list[threading.Thread] = []

    def answer(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain:
            client = context.wrap_socket(plain, server_side=True) if context is not None else plain
            with client:
                talk(client)
                _send_rest(client, manner, rest, over)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listening.accept()
                plain.settimeout(20)
                threads.append(threading.Thread(target=answer, args=(plain,), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=serve, daemon=True)
    accepting.start()
    try:
        yield SlowPeer(listening.getsockname()[1] if at is None else 0)
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in (accepting, *threads):
            thread.join(20)


def _listening(at: Path | None) -> socket.socket:
    if at is None:
        return socket.create_server(("127.0.0.1", 0))
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(at))
    made.listen()
    return made


def _send_rest(client: socket.socket, manner: Manner, rest: bytes, over: threading.Event) -> None:
    if manner is Manner.SILENT:
        over.wait(20)
    elif manner is Manner.ENDLESS:
        block = rest * (1 + (1 << 16) // len(rest))
        while not over.is_set():
            client.sendall(block)
    else:
        at = 0
        while not over.wait(0.05):
            client.sendall(rest[at : at + 1])
            at = (at + 1) % len(rest)


def http_answer(*headers: str) -> Talk:
    """Return the start of an HTTP answer, after the headers of a request: a status, and complete headers."""

    def talk(client: socket.socket) -> None:
        got = b""
        while b"\r\n\r\n" not in got:
            got += client.recv(65536)
        client.sendall("\r\n".join(("HTTP/1.1 200 OK", *headers)).encode() + b"\r\n" + (b"\r\n" if headers else b""))

    return talk


def greeting(answers: Sequence[bytes]) -> Talk:
    """Return a server's greeting, and its answers to a login and to each statement after it."""
    body = (
        b"\x0a8.4.0\0" + b"\x01\0\0\0" + b"a" * 8 + b"\0" + b"\xff\xf7" + b"\x2d\x02\0"
        + b"\xff\x00" + b"\x15" + bytes(10) + b"b" * 12 + b"\0" + b"mysql_native_password\0"
    )  # fmt: skip

    def talk(client: socket.socket) -> None:
        client.sendall(packet(0, body))
        client.recv(65536)
        client.sendall(packet(2, b"\0\0\0\2\0\0\0"))
        for answer in answers:
            client.recv(65536)
            client.sendall(answer)

    return talk


def packet(number: int, body: bytes) -> bytes:
    """Return a packet of the client/server protocol."""
    return len(body).to_bytes(3, "little") + bytes([number]) + body

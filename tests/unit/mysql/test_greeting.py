"""A machine's server is known by its greeting, whatever else answers on its address."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from zsnapdb.mysql.process.discovery import ServerGreeting, greeting_of, read_greeting

GREETING = (
    bytes.fromhex("4f0000000a") + b"11.8.2-MariaDB-deb13\0" + b"\x07\0\0\0" + b"salt8888\0" + b"\xfe\xf7" * 21 + b"\0\0"
)

DEBIAN = (
    b"l\0\0\0\n11.8.6-MariaDB-0+deb13u1 from Debian-log\0\x0c\0\0\0%vC-UG@N\0\xfe\xff-\x02\0\xff\x81\x15\0\0\0\0\0\0"
    b"=\0\0\0EPC?QYKN%id<\0mysql_native_password\0"
)
"""What MariaDB of Debian 13 sent."""


def packet(body: bytes, number: int = 0) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


@pytest.mark.parametrize(
    ("answer", "greeting"),
    [
        (packet(b"\x0a9.7.4\0" + b"x" * 60), ServerGreeting("9.7.4")),
        (packet(b"\x0a5.5.5-10.11.6-MariaDB\0rest") + b"more", ServerGreeting("5.5.5-10.11.6-MariaDB")),
        (DEBIAN, ServerGreeting("11.8.6-MariaDB-0+deb13u1 from Debian-log")),
        (packet(b"\xff\x6a\x04Host '10.0.0.1' is not allowed to connect"), ServerGreeting(refusal=1130)),
    ],
)
def test_a_server_is_known_by_its_version_or_by_its_error(answer: bytes, greeting: ServerGreeting) -> None:
    assert read_greeting(answer) == greeting
    assert all(read_greeting(answer[:cut]) is None for cut in range(len(packet(b"\x0a9.7.4\0"))))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_10.0\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        packet(b"\x0a9.7.4\0", number=1),
        packet(b"\x099.7.4\0rest"),
        packet(b"\x0aa version without an end"),
        packet(b"\x0a\x1b[31mred\0rest"),
        packet(b"\x0a" + b"9" * 100 + b"\0"),
        packet(b"\x0a9.7.4\0" + b"x" * 5000),
        packet(b"\xff"),
        b"\xff\xff\xff\0\x0a9.7.4\0",
    ],
)
def test_what_is_no_greeting_is_no_server(answer: bytes) -> None:
    assert read_greeting(answer) is None


@contextlib.contextmanager
def answering(*parts: bytes, address: str = "127.0.0.2") -> Iterator[int]:
    """Answer one connection with these bytes and leave it open. 127.0.0.2 is not where the kernel connects from."""
    with socket.create_server((address, 0)) as listening:
        gone = threading.Event()

        def answer() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    for part in parts:
                        connection.sendall(part)
                    gone.wait(30)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            gone.set()


def test_a_greeting_in_two_parts_is_read() -> None:
    answer = packet(b"\x0a9.7.4\0" + b"x" * 60)
    with answering(answer[:3], answer[3:]) as port:
        assert greeting_of("127.0.0.2", port, 30) == ServerGreeting("9.7.4")


@pytest.mark.parametrize("sent", [b"", b"SSH-2.0-OpenSSH_10.0\r\n", b"\x40\0\0\0\x0a"])
def test_who_does_not_greet_is_left_at_the_deadline(sent: bytes) -> None:
    began = time.monotonic()
    with answering(sent) as port:
        assert greeting_of("127.0.0.2", port, 0.3) is None
    assert time.monotonic() - began < 10


def test_no_more_is_read_than_a_greeting_can_have() -> None:
    with answering(b"\xff\xff\xff\0" + b"x" * (1 << 20)) as port:
        assert greeting_of("127.0.0.2", port, 30) is None


def test_a_server_of_this_host_is_not_that_of_a_machine() -> None:
    with answering(packet(b"\x0a9.7.4\0" + b"x" * 60), address="127.0.0.1") as port:
        assert greeting_of("127.0.0.1", port, 5) is None


def test_where_nobody_listens_is_no_server() -> None:
    with socket.create_server(("127.0.0.2", 0)) as closed:
        port = closed.getsockname()[1]
    assert greeting_of("127.0.0.2", port, 5) is None

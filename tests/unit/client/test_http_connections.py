"""Connections that a client of the API cannot open: what the error says, and how often it was tried."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.support import certificates
from zsnapdb.client import api_protocol
from zsnapdb.client.clones import CloneCommandError
from zsnapdb.client.http import AsyncClient, Client


def test_refused_connection_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_protocol, "_FIRST_PAUSE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def asks() -> None:
        async with AsyncClient(url, "x") as client:
            await client.reset("mine")

    ways: tuple[Callable[[], object], ...] = (lambda: Client(url, "x").reset("mine"), lambda: asyncio.run(asks()))
    for ask in ways:
        with pytest.raises(CloneCommandError) as caught:
            ask()
        assert caught.value.hint == "check that `zsnapdb serve` runs"


def test_unknown_certificate_is_refused_at_once(tmp_path: Path) -> None:
    own = certificates.make(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    attempts: list[int] = []

    def listen(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                attempts.append(1)
                with peer, suppress(OSError):
                    context.wrap_socket(peer, server_side=True).close()

    async def asks(url: str) -> None:
        async with AsyncClient(url, "x") as client:
            await client.reset("mine")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, args=(listener,), daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        ways: tuple[Callable[[], object], ...] = (
            lambda: Client(url, "x").reset("mine"),
            lambda: asyncio.run(asks(url)),
        )
        for ask in ways:
            with pytest.raises(CloneCommandError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                ask()
            assert (caught.value.code, caught.value.exit_code) == ("unreachable", 6)
            assert all(name in caught.value.hint for name in ("ca_file", "--tls-ca", "SSL_CERT_FILE"))
            assert "carried out" not in caught.value.hint
    assert len(attempts) == 2

"""Speaks TLS in front of a port of this machine, and asks each client for a certificate."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.unit.support.certificates import Files


@dataclass
class TlsFront:
    """Its port, and the names in the certificates that were shown to it."""

    port: int = 0
    shown: list[str] = field(default_factory=list)


@contextmanager
def front(files: Files, target: int) -> Iterator[TlsFront]:
    """Pass connections on to the target while the block runs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    made, ready, stop = TlsFront(), threading.Event(), threading.Event()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("ssl_object").getpeercert()
        made.shown.append(next(value for part in peer["subject"] for name, value in part if name == "commonName"))
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async def serve() -> None:
        async with await asyncio.start_server(passed_on, "127.0.0.1", 0, ssl=context) as server:
            made.port = server.sockets[0].getsockname()[1]
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.05)
        # What is connected goes with the loop: it cancels what it runs, and waits for it.
        await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield made
    finally:
        stop.set()
        thread.join(10)

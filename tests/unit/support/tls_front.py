"""A TLS proxy in front of a local port, which requires a client certificate.

It runs as its own process: `python -m tests.unit.support.tls_front CA CERT KEY TARGET`. It prints its port, and then
the name in each client certificate.
"""

from __future__ import annotations

import asyncio
import ssl
import sys


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward data until its end."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()


async def serve(ca: str, cert: str, key: str, target: int) -> None:
    """Forward connections to the target."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("ssl_object").getpeercert()
        print(next(value for part in peer["subject"] for name, value in part if name == "commonName"), flush=True)
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(passed_on, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))

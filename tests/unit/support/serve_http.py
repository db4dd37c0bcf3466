"""The API of a host of a test on a real port, as `zsnapdb serve` has it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.unit.support.serve_host import ServeHost
from zsnapdb.serve.web_app import create_app


@contextmanager
def serving_http(host: ServeHost) -> Iterator[str]:
    """Answer over HTTP while the block runs, and return the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(create_app(host.client), lifespan="off", log_level="warning", http="h11", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

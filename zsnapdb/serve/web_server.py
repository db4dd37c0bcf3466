"""Serves the API and the pages over HTTP with uvicorn."""

from __future__ import annotations

import contextlib

import uvicorn

from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.page_app import create_site

_MOST_CLIENTS = 200
_KEEP_ALIVE_SECONDS = 5
_MOST_HEADER_BYTES = 16 * 1024


def serve_web(helper: HelperClient, address: str, port: int) -> None:
    """Answer at the address until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        create_site(helper),
        host=address,
        port=port,
        limit_concurrency=_MOST_CLIENTS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
    )
    # uvicorn ends, and then raises the signal again that ended it.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()

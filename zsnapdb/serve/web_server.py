"""Serves the API and the pages over HTTP or HTTPS with uvicorn."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl

import uvicorn

from zsnapdb.base.errors import ConfigError
from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.page_app import create_site
from zsnapdb.serve.slow_clients import TimedProtocol
from zsnapdb.serve.tls_files import TlsFiles

_MOST_CLIENTS = 200
_KEEP_ALIVE_SECONDS = 5
_MOST_HEADER_BYTES = 16 * 1024


def serve_web(helper: HelperClient, address: str, port: int, files: TlsFiles | None) -> None:
    """Answer at the address until SIGTERM or SIGINT. With files by HTTPS; SIGHUP lets them be read again.

    ConfigError, before anything listens, if the files cannot be used.
    """
    context = files.context() if files is not None else None
    config = uvicorn.Config(
        create_site(helper),
        host=address,
        port=port,
        limit_concurrency=_MOST_CLIENTS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
    )
    config.load()
    config.ssl = context
    if files is not None and context is not None:
        signal.signal(signal.SIGHUP, lambda *_: _read_again(files, context))
    # uvicorn ends, and then raises the signal again that ended it.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()


def _read_again(files: TlsFiles, context: ssl.SSLContext) -> None:
    """Let new connections have the certificate that the files hold now. Files that cannot be used change nothing."""
    try:
        files.load(context)
    except ConfigError as error:
        said = f"{error}\nthe certificate of before stays\n"
    else:
        said = f"read {files.certificate} again\n"
    # A handler of a signal can come while a line is being printed.
    os.write(2, said.encode(errors="backslashreplace"))

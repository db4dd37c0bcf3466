"""One limit for a whole exchange of httpx. Its own timeouts cover one read: a server that drips is never too late."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx


class _Thread(threading.local):
    ends: float | None = None


_thread = _Thread()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit what this thread does by clients that `limit` was called for. They raise httpx.TimeoutException then."""
    _thread.ends = time.monotonic() + seconds
    try:
        yield
    finally:
        _thread.ends = None


def limit(client: httpx.Client) -> httpx.Client:
    """Let every connection of the client end with the exchange of its thread, also by a proxy. Return the client."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend(transport._pool._network_backend)
    return client


def _left(timeout: float | None, error: type[Exception]) -> float | None:
    if _thread.ends is None:
        return timeout
    left = _thread.ends - time.monotonic()
    if left <= 0:
        raise error("the answer takes too long")
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), 1 << 16):
            self._inner.write(buffer[start : start + (1 << 16)], _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout, httpcore.ConnectTimeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_tcp(host, port, left, local_address, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

"""Clones of a host over HTTP, for programs with threads (`Client`) and with asyncio (`AsyncClient`).

Both clients need the extra `client` (httpx). Their common logic is in `api_protocol.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import httpcore
import httpx

from zsnapdb.client import api_protocol
from zsnapdb.client.clone_holder import HEARTBEAT, beating, beating_task
from zsnapdb.client.connection import ApiConnection, connection, other_form, unusable
from zsnapdb.client.errors import CloneCommandError
from zsnapdb.client.models import ReachableClone


class _Thread(threading.local):
    ends: float | None = None


_thread = _Thread()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the total duration of this thread's requests. It applies to clients that were passed to `limit`.

    When the time is up, the requests raise httpx.TimeoutException.
    """
    _thread.ends = time.monotonic() + seconds
    try:
        yield
    finally:
        _thread.ends = None


def limit(client: httpx.Client) -> httpx.Client:
    """Apply the thread's time limit to every connection of the client, even through a proxy. Return the client."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend(transport._pool._network_backend)
    return client


def _remaining_seconds(timeout: float | None, error: type[Exception]) -> float | None:
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
        return self._inner.read(max_bytes, _remaining_seconds(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), 1 << 16):
            self._inner.write(buffer[start : start + (1 << 16)], _remaining_seconds(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(
            self._inner.start_tls(ssl_context, server_hostname, _remaining_seconds(timeout, httpcore.ConnectTimeout))
        )

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
        left = _remaining_seconds(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_tcp(host, port, left, local_address, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


_SECONDS = 120.0
"""Maximum wait for one answer in seconds. After ten seconds, the API answers that an operation continues."""
_MOST_BYTES = 16 << 20
"""Maximum size of one answer in bytes, enough for a list of some ten thousand clones."""


def _options(to: ApiConnection) -> Mapping[str, Any]:
    """Return the options for httpx. httpx follows no redirects, because the token may be sent only to this host."""
    try:
        url = httpx.URL(to.base)
        # These two lines detect errors immediately. Otherwise, httpx and the resolver would raise them at each request.
        _ = url.host
        url.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, UnicodeError):
        raise other_form() from None
    verify = _authority(to.ca_file) if to.ca_file is not None else True
    # A proxy from the environment cannot reach this host, but would see the token.
    return {"timeout": _SECONDS, "verify": verify, "trust_env": not to.is_local, "follow_redirects": False}


def _authority(file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise unusable(f"{file} has no certificate", "name a file with certificates (PEM)") from error


def _request_arguments(to: ApiConnection, request: api_protocol.ApiRequest) -> Mapping[str, Any]:
    return {
        "method": request.method,
        "url": f"{to.base}{request.path}",
        "json": request.body,
        "headers": {**to.headers, **request.headers},
    }


def _add(body: bytearray, part: bytes) -> None:
    """Append a part of an answer. Raises CloneCommandError if the answer is too long, before it fills the memory."""
    body += part
    if len(body) > _MOST_BYTES:
        raise CloneCommandError(
            f"the answer is longer than {_MOST_BYTES >> 20} MiB", "does the URL name `zsnapdb serve`?"
        )


def _answer(response: httpx.Response, body: bytearray) -> api_protocol.ApiAnswer:
    after = response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdecimal() else None
    return api_protocol.ApiAnswer(response.status_code, bytes(body), seconds, response.url.host)


def _lost_answer(error: Exception) -> api_protocol.LostAnswer:
    is_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return api_protocol.LostAnswer(reason, is_sent, cause is not None)


class _Connected:
    """Base of both clients. The arguments `url` and `token` default to ZSNAPDB_URL and ZSNAPDB_TOKEN."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        allows_http: bool = False,
        ca_file: Path | None = None,
    ) -> None:
        self._to = connection(url, token, allows_http=allows_http, ca_file=ca_file)
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._to.base!r})"


class Client(_Connected, api_protocol.CloneMethods, api_protocol.WithThreads):
    """The clones of a host. The arguments `url` and `token` default to ZSNAPDB_URL and ZSNAPDB_TOKEN.

    Methods accept a clone's name or its object. Each method returns when its request has ended, and raises
    CloneCommandError if the request failed.
    """

    def _open(self) -> None:
        self._http = limit(httpx.Client(**_options(self._to)))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    @contextlib.contextmanager
    def clone(
        self, instance: str, name: str | None = None, **options: Unpack[api_protocol.CloneOptions]
    ) -> Iterator[ReachableClone]:
        """Yield a new clone. Destroy it at the end of the block, even if the block or the wait for the clone fails.

        Heartbeats are sent during the block. If this process is killed, the next `zsnapdb reap` after `heartbeat`
        seconds destroys the clone. If `heartbeat` is None, no heartbeats are sent, and the clone is destroyed when its
        lease ends.
        """
        every = options.setdefault("heartbeat", HEARTBEAT)
        key = api_protocol.new_key()
        try:
            made = self.create(instance, name, key=key, **options)
        except CloneCommandError:
            raise
        except BaseException:
            with contextlib.suppress(CloneCommandError):
                self._run(api_protocol.take_back(key, instance, name, options))
            raise
        try:
            with beating(partial(self.beat, made), every) if every is not None else contextlib.nullcontext():
                yield made
        finally:
            self.destroy(made)

    def _run(self, asked: api_protocol.Exchange[api_protocol.T]) -> api_protocol.T:
        answer: api_protocol.ApiAnswer | api_protocol.LostAnswer | None = None
        while True:
            try:
                step = asked.send(answer)
            except StopIteration as ended:
                result: api_protocol.T = ended.value
                return result
            if isinstance(step, api_protocol.ApiPause):
                time.sleep(step.seconds)
                answer = None
                continue
            try:
                answer = self._answered(step)
            except (httpx.HTTPError, OSError) as error:
                answer = _lost_answer(error)

    def _answered(self, request: api_protocol.ApiRequest) -> api_protocol.ApiAnswer:
        body = bytearray()
        with within(_SECONDS), self._http.stream(**_request_arguments(self._to, request)) as response:
            for part in response.iter_raw():
                _add(body, part)
        return _answer(response, body)


class AsyncClient(_Connected, api_protocol.CloneMethods, api_protocol.WithAsyncio):
    """The clones of a host, for asyncio: `Client` with methods that are awaited.

    Methods accept a clone's name or its object. Each method returns when its request has ended, and raises
    CloneCommandError if the request failed.
    """

    def _open(self) -> None:
        self._http = httpx.AsyncClient(**_options(self._to))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    @contextlib.asynccontextmanager
    async def clone(
        self, instance: str, name: str | None = None, **options: Unpack[api_protocol.CloneOptions]
    ) -> AsyncIterator[ReachableClone]:
        """Yield a new clone. Destroy it at the end of the block, even if the block or the wait for the clone fails.

        Heartbeats are sent during the block. If this process is killed, the next `zsnapdb reap` after `heartbeat`
        seconds destroys the clone. If `heartbeat` is None, no heartbeats are sent, and the clone is destroyed when its
        lease ends.
        """
        every = options.setdefault("heartbeat", HEARTBEAT)
        key = api_protocol.new_key()
        try:
            made = await self.create(instance, name, key=key, **options)
        except CloneCommandError:
            raise
        except BaseException:
            with contextlib.suppress(CloneCommandError):
                await self._run(api_protocol.take_back(key, instance, name, options))
            raise
        try:
            async with beating_task(partial(self.beat, made), every) if every is not None else contextlib.nullcontext():
                yield made
        finally:
            await self.destroy(made)

    async def _run(self, asked: api_protocol.Exchange[api_protocol.T]) -> api_protocol.T:
        answer: api_protocol.ApiAnswer | api_protocol.LostAnswer | None = None
        while True:
            try:
                step = asked.send(answer)
            except StopIteration as ended:
                result: api_protocol.T = ended.value
                return result
            if isinstance(step, api_protocol.ApiPause):
                await asyncio.sleep(step.seconds)
                answer = None
                continue
            try:
                answer = await self._answered(step)
            except (httpx.HTTPError, OSError) as error:
                answer = _lost_answer(error)

    async def _answered(self, request: api_protocol.ApiRequest) -> api_protocol.ApiAnswer:
        body = bytearray()
        async with asyncio.timeout(_SECONDS), self._http.stream(**_request_arguments(self._to, request)) as response:
            async for part in response.aiter_raw():
                _add(body, part)
        return _answer(response, body)

"""Setup of botocore: its session, event handlers, time limits, and error codes."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import botocore.session
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.utils import parse_timestamp

from zsnapdb.base.deadline import ExchangeLimit, timed, within
from zsnapdb.base.timed_tls import with_timed_sockets

REQUEST_SECONDS = 60.0
"""Time limit of a request until its first bytes, and in total if it has few."""
LEAST_RATE = 16 << 10
"""Minimum bytes per second of a request, its body and answer together. A slower store counts as unreachable."""
_MOST_ANSWER = 64 << 20
"""Size limit in bytes of an answer other than an object; a listing of a thousand keys has a megabyte."""


class _TimedConnection(AWSHTTPConnection):
    def _new_conn(self) -> Any:
        return timed(super()._new_conn())


class _TimedTlsConnection(AWSHTTPSConnection):
    def connect(self) -> None:
        if self.ssl_context is not None:
            with_timed_sockets(self.ssl_context)
        super().connect()


# botocore limits each read of a socket, but not a whole request. It creates its connections from these classes.
AWSHTTPConnectionPool.ConnectionCls = _TimedConnection
AWSHTTPSConnectionPool.ConnectionCls = _TimedTlsConnection


def request_limit() -> AbstractContextManager[ExchangeLimit]:
    """Limit a request whose answer is small. Its own body may have any size."""
    return within(REQUEST_SECONDS, rate=LEAST_RATE, most_bytes=_MOST_ANSWER)


def transfer_limit(size: int) -> AbstractContextManager[ExchangeLimit]:
    """Limit a request that reads an object of at most `size` bytes: at once, or again as a whole after a part."""
    return within(REQUEST_SECONDS, rate=LEAST_RATE, most_bytes=2 * size + _MOST_ANSWER)


def error_code(error: ClientError) -> str:
    """Return the S3 code of an error answer, such as NoSuchKey; its HTTP status if it has no code; "" if neither."""
    code = error.response.get("Error", {}).get("Code")
    return str(code or http_status(error) or "")


def http_status(error: ClientError) -> int:
    """Return the HTTP status of an error answer; 0 if it has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def without_expect(params: dict[str, Any], **_: object) -> None:
    """Remove a request's Expect header (event handler)."""
    # This header costs a round trip before every chunk, and only saves the upload of a refused chunk.
    params["headers"].pop("Expect", None)


def with_md5(params: dict[str, Any], **_: object) -> None:
    """Add Content-MD5 to a request (event handler). Some servers require it where others accept an SDK checksum."""
    body = params["body"]
    digest = hashlib.md5(body if isinstance(body, bytes) else str(body).encode(), usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _timestamp(value: Any) -> datetime:
    """Return the time in a header or document.

    Each object in a listing has one, in ISO 8601. The library's own function takes ten times as long for that format.
    """
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return parse_timestamp(value)


class _AnyService(list[str]):
    """A list of services that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


class _Loader(Loader):
    """Loads service descriptions without listing all four hundred, a step that only rejects unknown names."""

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - the library names it
        """Return a list that contains every name. Loading a service that does not exist fails later."""
        return _AnyService()


@functools.cache
def _loader(folders: str | None) -> Loader:
    """Return the cached loader of AWS service descriptions. Loading them is most of the time to create a client.

    `folders` is the setting `data_path`, as in botocore.loaders.create_loader.
    """
    named = folders.split(os.pathsep) if folders else []
    return _Loader(extra_search_paths=[os.path.expanduser(os.path.expandvars(folder)) for folder in named])


def client_core() -> botocore.session.Session:
    """Return the botocore session for clients, with the cached loader and the fast parser of times.

    boto3's session would create the same client and add file transfers, which are not used here. Importing and adding
    them takes a quarter of the CPU time until a client exists.
    """
    core = botocore.session.get_session()
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    return core

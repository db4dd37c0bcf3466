"""HTTP connections on timed sockets: `within` limits a request from its start to the last byte of the answer."""

from __future__ import annotations

import http.client
import ssl
from typing import Any

from zsnapdb.base.deadline import timed
from zsnapdb.base.name_resolution import addresses_of
from zsnapdb.base.timed_tls import with_timed_sockets


class TimedHttpConnection(http.client.HTTPConnection):
    """An HTTP connection whose reads and writes are limited by the thread's exchange."""

    def connect(self) -> None:
        addresses_of(self.host)
        super().connect()
        self.sock = timed(self.sock)


class TimedHttpsConnection(http.client.HTTPSConnection):
    """An HTTPS connection whose reads and writes are limited by the thread's exchange."""

    def __init__(self, *place: Any, context: ssl.SSLContext | None = None, **options: Any) -> None:
        protected = with_timed_sockets(context or ssl.create_default_context())
        super().__init__(*place, context=protected, **options)

    def connect(self) -> None:
        addresses_of(self.host)
        super().connect()

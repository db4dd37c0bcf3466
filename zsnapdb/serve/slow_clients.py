"""Ends connections of clients that send a request, or read an answer, too slowly.

uvicorn limits only the pause between two requests. Without this a client that sends a byte a second keeps one of the
few places of the service for ever.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 30.0
"""How long a client may take for a request, from the connection or its first byte to its end."""
READING_SECONDS = 60.0
"""How long a client may leave so much of an answer unread that no more is sent."""


class TimedProtocol(H11Protocol):
    """HTTP of a connection. One limit covers all bytes of a request; an answer may take any time to be made."""

    _request: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_request()

    def _limit_request(self) -> None:
        """Start the time of the request that is being received, unless it runs; end it once the request is whole."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._end_request()
        elif self._request is None:
            self._request = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_request(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self._reading or self.loop.call_later(READING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_request()
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

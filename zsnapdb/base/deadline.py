"""Limits of an exchange with a peer (deadline, minimum rate, maximum size), and a test for slow connections."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

_PIECE = 256 << 10
"""The number of bytes per write. The rate is checked after each write."""


class ExchangeLimit:
    """Limits of one exchange with a peer. Without a minimum rate, the exchange fails after `seconds`.

    With a minimum rate, the exchange fails when it is `seconds` behind that rate.

    The minimum `rate` is in bytes per second; 0 means that received or sent bytes do not extend the deadline. A fast
    phase does not allow a longer pause later. An exchange of N bytes lasts at most `seconds + N / rate` seconds, and no
    pause in the exchange is longer than `seconds`.
    """

    def __init__(self, seconds: float, rate: float = 0.0, most_bytes: int | None = None) -> None:
        self._seconds, self._rate, self._most = seconds, rate, most_bytes
        self._moved = 0
        self._ends = time.monotonic() + seconds
        self._above: ExchangeLimit | None = None

    def left(self) -> float:
        """Return the remaining seconds. Raises TimeoutError if no time remains."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "the answer takes too long")
        return min(left, self._above.left()) if self._above is not None else left

    def add(self, count: int, *, is_answer: bool = True) -> None:
        """Count bytes that were read or written. Raises OSError if more bytes were read than allowed."""
        if self._rate:
            self._ends = min(time.monotonic() + self._seconds, self._ends + count / self._rate)
        self._moved += count if is_answer else 0
        if self._most is not None and self._moved > self._most:
            raise OSError(errno.EMSGSIZE, f"the answer has more than {self._most} bytes")
        if self._above is not None:
            self._above.add(count, is_answer=is_answer)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply this limit to the timed sockets of this thread inside the block."""
        above = self._above = _thread.exchange
        _thread.exchange = self
        try:
            yield
        finally:
            _thread.exchange, self._above = above, None


class _Thread(threading.local):
    exchange: ExchangeLimit | None = None


_thread = _Thread()


@contextlib.contextmanager
def within(seconds: float, *, rate: float = 0.0, most_bytes: int | None = None) -> Iterator[ExchangeLimit]:
    """Limit this thread's timed sockets inside the block. A read or write that exceeds a limit raises OSError."""
    exchange = ExchangeLimit(seconds, rate, most_bytes)
    with exchange.applied():
        yield exchange


def remaining(seconds: float) -> float:
    """Return `seconds`, or the remaining time of this thread's exchange if it is shorter.

    Raises TimeoutError if no time remains.
    """
    return seconds if _thread.exchange is None else min(seconds, _thread.exchange.left())


if TYPE_CHECKING:
    _Socket = socket.socket
else:
    _Socket = object


class Timed(_Socket):
    """Socket methods that use the remaining time of the thread's exchange as their timeout."""

    _own: float | None = None
    """The timeout of one read, as set by the owner of the socket."""

    def settimeout(self, value: float | None, /) -> None:
        self._own = value
        super().settimeout(value)

    def setblocking(self, flag: bool, /) -> None:
        self.settimeout(None if flag else 0.0)

    def _limit(self) -> ExchangeLimit | None:
        exchange = _thread.exchange
        if exchange is not None and self._own != 0:
            left = exchange.left()
            super().settimeout(left if self._own is None else min(left, self._own))
        elif self.gettimeout() != self._own:
            super().settimeout(self._own)
        return exchange

    def connect(self, address: Any, /) -> None:
        self._limit()
        super().connect(address)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        exchange = self._limit()
        data = super().recv(bufsize, flags)
        if exchange is not None:
            exchange.add(len(data))
        return data

    def recv_into(self, buffer: Any, *more: Any) -> int:
        exchange = self._limit()
        count = super().recv_into(buffer, *more)
        if exchange is not None:
            exchange.add(count or 0)
        return count

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        with memoryview(data) as whole, whole.cast("B") as view:
            for start in range(0, len(view), _PIECE):
                exchange = self._limit()
                piece = view[start : start + _PIECE]
                super().sendall(piece, flags)
                if exchange is not None:
                    exchange.add(len(piece), is_answer=False)


class TimedSocket(Timed, socket.socket):
    """A socket whose reads and writes are limited by the thread's exchange."""


def timed(plain: socket.socket) -> TimedSocket:
    """Return a timed socket for the connection of `plain`. `plain` is closed."""
    if isinstance(plain, TimedSocket):
        return plain
    timeout = plain.gettimeout()
    made = TimedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
    made.settimeout(timeout)
    return made


_SLOW = 60e6
"""Rate in bytes per second below which a connection is slow.

With a higher value, fast stores would be treated as slow on a host under CPU load.
"""
_TELLING_BYTES = 1 << 20
"""Minimum size in bytes of an answer for a measurement.

The time of a smaller answer is mostly the latency of the request.
"""


def rate_of(size: int, seconds: float) -> float | None:
    """Return the rate of a connection in bytes per second; None if `size` is too small for a measurement."""
    return size / seconds if size >= _TELLING_BYTES and seconds > 0 else None


def is_slow(rate: float) -> bool:
    """Return whether more connections would increase the total rate.

    The rate is that of one connection, in bytes per second.
    """
    return rate < _SLOW

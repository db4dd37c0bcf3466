"""The limit of an exchange: one deadline, one least rate and one greatest size for all its reads and writes together.

A time limit of a socket covers one read: a peer that sends a byte a second is never too late. `within` limits
everything that this thread does on timed sockets inside the block, in nested blocks too.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

_PIECE = 256 << 10
"""Bytes of one write. The rate is judged after each."""


class ExchangeLimit:
    """One exchange with a peer. It ends after `seconds`, or, with a rate, when it falls behind by so many seconds.

    `rate` is the least number of bytes per second, 0 if bytes give no more time. What was fast gives no time for later:
    an exchange of N bytes lasts at most `seconds + N / rate`, and no pause in it lasts longer than `seconds`.
    """

    def __init__(self, seconds: float, rate: float = 0.0, most_bytes: int | None = None) -> None:
        self._seconds, self._rate, self._most = seconds, rate, most_bytes
        self._moved = 0
        self._ends = time.monotonic() + seconds
        self._above: ExchangeLimit | None = None

    def left(self) -> float:
        """Return the seconds that are left. TimeoutError if none are."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "the answer takes too long")
        return min(left, self._above.left()) if self._above is not None else left

    def add(self, count: int, *, is_answer: bool = True) -> None:
        """Count bytes that were read or written. OSError if what was read is more than allowed."""
        if self._rate:
            self._ends = min(time.monotonic() + self._seconds, self._ends + count / self._rate)
        self._moved += count if is_answer else 0
        if self._most is not None and self._moved > self._most:
            raise OSError(errno.EMSGSIZE, f"the answer has more than {self._most} bytes")
        if self._above is not None:
            self._above.add(count, is_answer=is_answer)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Limit the timed sockets of this thread by this exchange inside the block."""
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
    """Limit the timed sockets of this thread inside the block. Their reads and writes raise OSError beyond a limit."""
    exchange = ExchangeLimit(seconds, rate, most_bytes)
    with exchange.applied():
        yield exchange


if TYPE_CHECKING:
    _Socket = socket.socket
else:
    _Socket = object


class Timed(_Socket):
    """Reads and writes of a socket, each with the time that is left of the thread's exchange."""

    _own: float | None = None
    """The timeout of one read, as the owner of the socket set it."""

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
    """A socket whose reads and writes end with the exchange of the thread."""


def timed(plain: socket.socket) -> TimedSocket:
    """Return the same connection as a timed socket; `plain` is closed by that."""
    if isinstance(plain, TimedSocket):
        return plain
    timeout = plain.gettimeout()
    made = TimedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
    made.settimeout(timeout)
    return made

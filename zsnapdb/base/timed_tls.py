"""TLS on timed sockets. This is a separate module, so that commands without TLS do not load the TLS library."""

from __future__ import annotations

import ssl

from zsnapdb.base.deadline import Timed


class TimedTlsSocket(Timed, ssl.SSLSocket):  # type: ignore[misc]
    """A TLS socket whose reads and writes are limited by the thread's exchange."""

    def do_handshake(self, block: bool = False) -> None:
        self._limit()
        super().do_handshake(block)


def with_timed_sockets(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make the context create timed sockets from now on, and return the context."""
    context.sslsocket_class = TimedTlsSocket
    return context

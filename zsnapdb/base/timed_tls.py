"""TLS on timed sockets. Apart from the others: many commands open plain sockets alone, and need no library for it."""

from __future__ import annotations

import ssl

from zsnapdb.base.deadline import Timed


class TimedTlsSocket(Timed, ssl.SSLSocket):  # type: ignore[misc]
    """A TLS socket whose reads and writes end with the exchange of the thread."""

    def do_handshake(self, block: bool = False) -> None:
        """Agree on the keys, with the time that is left."""
        self._limit()
        super().do_handshake(block)


def with_timed_sockets(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context, which makes timed sockets from now on."""
    context.sslsocket_class = TimedTlsSocket
    return context

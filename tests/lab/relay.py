"""Relay between ports of a guest and of this machine: guests have no network, so bytes pass through their agent."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

from .guest import Guest, Running
from .host import LabError

_HEAD = struct.Struct("!II")
_PIECE = 16384
_PROGRAM = "/checkout/tests/lab/inside/relay.py"


def to_host(guest: Guest, port: int, target: int) -> None:
    """Forward 127.0.0.1:port of the guest to the port `target` of this machine, until the guest is off.

    LabError if the relay does not start.
    """
    _HostEnd(guest, ("listen", str(port)), target)


def to_guest(guest: Guest, target: int) -> int:
    """Return a port of 127.0.0.1 on this machine that leads to the guest's port `target`, until the guest is off.

    LabError if the relay does not start.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    _HostEnd(guest, ("connect", str(target)), listener)
    return int(listener.getsockname()[1])


class _HostEnd:
    """The connections on this machine, by number. `meets`: the port to connect to, or the listening socket."""

    def __init__(self, guest: Guest, words: tuple[str, str], meets: int | socket.socket) -> None:
        """Return when the program in the guest is ready."""
        self._meets = meets
        self._sockets: dict[int, socket.socket] = {}
        self._opened: set[int] = set()
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._is_ready = threading.Event()
        self._running = guest.spawn(["/usr/bin/python3", "-S", _PROGRAM, *words], sink=self._hear, keep_stdin=True)
        _begin(self._carry_out)
        deadline = time.monotonic() + 60
        while not self._is_ready.wait(0.1):
            if self._running.done.is_set() or time.monotonic() > deadline:
                raise LabError(f"the relay did not start in the guest: {' '.join(words)}")
        _begin(lambda: self._close_with(self._running))
        if isinstance(meets, socket.socket):
            _begin(lambda: self._accept(meets))

    def _hear(self, descriptor: int, data: bytes) -> None:
        if descriptor == 1:
            self._came.put(data)
        elif b"ready" in data:
            self._is_ready.set()

    def _accept(self, listener: socket.socket) -> None:
        for number in itertools.count(1):
            try:
                own, _ = listener.accept()
            except OSError:
                return
            self._write(number, b"")
            self._keep(number, own)

    def _keep(self, number: int, own: socket.socket) -> None:
        self._sockets[number] = own
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _begin(lambda: self._carry_in(number, own))

    def _carry_out(self) -> None:
        pending = b""
        while data := self._came.get():
            pending += data
            while len(pending) >= _HEAD.size:
                number, length = _HEAD.unpack_from(pending)
                if len(pending) < _HEAD.size + length:
                    break
                frame, pending = pending[_HEAD.size : _HEAD.size + length], pending[_HEAD.size + length :]
                self._give(number, frame)

    def _give(self, number: int, frame: bytes) -> None:
        if isinstance(self._meets, int) and number not in self._opened:
            self._opened.add(number)
            try:
                self._keep(number, socket.create_connection(("127.0.0.1", self._meets)))
            except OSError:
                self._write(number, b"")
            return
        own = self._sockets.get(number)
        with contextlib.suppress(OSError):
            if own is not None and frame:
                own.sendall(frame)
            elif own is not None:
                own.shutdown(socket.SHUT_RDWR)

    def _carry_in(self, number: int, own: socket.socket) -> None:
        data = b"-"
        while data:
            try:
                data = own.recv(_PIECE)
            except OSError:
                data = b""
            self._write(number, data)

    def _write(self, number: int, data: bytes) -> None:
        with self._writing, contextlib.suppress(LabError):
            self._running.write(_HEAD.pack(number, len(data)) + data)

    def _close_with(self, running: Running) -> None:
        running.done.wait()
        self._came.put(b"")
        if isinstance(self._meets, socket.socket):
            self._meets.close()
        for own in list(self._sockets.values()):
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
            own.close()


def _begin(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()

"""A line as in life between a program and a local server: a rate for each connection, and a delay.

`line.py PORT RATE DELAY` prints a port of this host that leads to PORT. Each connection moves at most RATE bytes per
second in each direction; what follows a pause comes DELAY seconds late, as the first bytes of an answer do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.s3_server import Server
from tests.lab.host import LabError

RATE = 50e6
DELAY = 0.015
_PIECE = 128 << 10
_PAUSE = 0.002
"""Bytes that come later than this after those before them begin a new answer."""


def move(source: socket.socket, target: socket.socket, rate: float, delay: float) -> None:
    """Move bytes one way until the source ends. They stay in the kernel: splice(2)."""
    reader, writer = os.pipe()
    free = last = 0.0
    with contextlib.suppress(OSError):
        while size := os.splice(source.fileno(), writer, _PIECE):
            now = time.monotonic()
            begin = max(free, now + delay if now - last > _PAUSE else now)
            free = begin + size / rate
            if begin > now:
                time.sleep(begin - now)
            while size > 0:
                size -= os.splice(reader, target.fileno(), size)
            last = time.monotonic()
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    os.close(reader)
    os.close(writer)


def main() -> None:
    """Accept connections for ever."""
    port, rate, delay = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", port))
            for one in (here, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=move, args=(source, target, rate, delay), daemon=True).start()


@contextlib.contextmanager
def behind_a_line(server: Server, rate: float = RATE, delay: float = DELAY) -> Iterator[Server]:
    """Yield the server as it is reached over such a line, for the block."""
    argv = [sys.executable, __file__, str(server.port), str(rate), str(delay)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline()
            if not port:
                raise LabError("the line did not start")
            yield replace(server, port=int(port))
        finally:
            process.kill()


if __name__ == "__main__":
    main()

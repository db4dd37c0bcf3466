"""Relay between a port of a guest and a port of the machine, over stdin and stdout: guests have no network.

    relay.py listen|connect PORT

`listen` forwards connections to this port to the machine. `connect` forwards connections on the machine to this port. A
frame in either direction has the number of the connection and the length of the data, four bytes each, then the data.
The first frame with a number opens the connection, and may be empty. A later empty one closes it.

`tests/lab/relay.py` is the other end.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import sys

HEAD = struct.Struct("!II")
PIECE = 16384


class GuestEnd:
    """The connections of the port, by number."""

    def __init__(self, port: int, *, is_listening: bool) -> None:
        self._port, self._is_listening = port, is_listening
        self._numbers = itertools.count(1)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._opened: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, stdin: asyncio.StreamReader) -> None:
        """Forward until the other end has ended."""
        if self._is_listening:
            await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        print("ready", file=sys.stderr, flush=True)
        while True:
            try:
                number, length = HEAD.unpack(await stdin.readexactly(HEAD.size))
                data = await stdin.readexactly(length)
            except asyncio.IncompleteReadError:
                return
            await self._carry_in(number, data)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        self._writers[number] = writer
        tell(number, b"")
        await self._carry_out(number, reader)

    async def _carry_in(self, number: int, data: bytes) -> None:
        if not self._is_listening and number not in self._opened:
            self._opened.add(number)
            try:
                reader, self._writers[number] = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                tell(number, b"")
                return
            task = asyncio.create_task(self._carry_out(number, reader))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not data and (ended := self._writers.pop(number, None)) is not None:
            ended.close()
        if data and number in self._writers:
            self._writers[number].write(data)

    async def _carry_out(self, number: int, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(PIECE):
                tell(number, data)
        except OSError:
            pass
        tell(number, b"")


def tell(number: int, data: bytes) -> None:
    """Write a frame."""
    sys.stdout.buffer.write(HEAD.pack(number, len(data)) + data)
    sys.stdout.buffer.flush()


async def main(way: str, port: int) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    await GuestEnd(port, is_listening=way == "listen").serve(stdin)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

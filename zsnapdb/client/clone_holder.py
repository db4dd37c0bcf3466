"""The process that keeps a clone alive for this program: `zsnapdb clone keep`.

The process sends heartbeats, and resets the clone on request. Such a reset is faster than a separate command. If this
program is killed, the process's stdin is closed, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from zsnapdb.client.errors import CloneCommandError
from zsnapdb.client.models import CommandFailure, failure_in

NOT_INSTALLED = "install zsnapdb on this host; for clones of another host, set ZSNAPDB_URL"
_END_SECONDS = 30.0
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class CloneHolder:
    """The running process that holds a clone. Only one thread may use it at a time."""

    process: subprocess.Popen[bytes]
    _turn: threading.Lock = field(init=False, repr=False, compare=False, default_factory=threading.Lock)

    @property
    def is_there(self) -> bool:
        return self.process.poll() is None

    def ask(self, word: str, seconds: float) -> bytes:
        """Send the word to the process, and return the document that the process sends back.

        Raises: CloneCommandError if the document is an error, or if no answer comes in time.
        """
        with self._turn:
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(f"{word}\n".encode())
                self.process.stdin.flush()
                answer = self._line(time.monotonic() + seconds)
            except OSError as error:
                raise CloneCommandError(f"asking the process that holds the clone: {error}") from error
        with contextlib.suppress(ValidationError):
            CommandFailure.model_validate_json(answer)
            raise failure_in(answer, "", 1)
        return answer

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        descriptor, line = self.process.stdout.fileno(), b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            part = b""
            if left > 0 and select.select([descriptor], [], [], left)[0]:
                part = os.read(descriptor, 1 << 16)
            if not part or len(line) > _MOST_BYTES:
                # A late answer would be mistaken for the answer to the next word.
                self.process.kill()
                raise CloneCommandError("the process that holds the clone did not answer")
            line += part
        return line


@contextlib.contextmanager
def holding(argv: Sequence[str]) -> Iterator[CloneHolder]:
    """Run this command during the block, to keep a clone alive.

    Raises: CloneCommandError if the program does not exist.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ)
        )
    except OSError as error:
        raise CloneCommandError(f"running {argv[0]}: {error}", NOT_INSTALLED) from error
    try:
        yield CloneHolder(process)
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


HEARTBEAT = 30.0
"""Seconds after which a clone without a holder may be destroyed. If `reap` runs every 20 s, such a clone exists for
less than a minute.
"""
_PER_BEAT = 3
"""The number of heartbeats within HEARTBEAT, so that one late or lost heartbeat does not end the clone."""
_PATIENCE = 10.0
"""Maximum seconds to wait at the end for a heartbeat that is in progress."""


@contextlib.contextmanager
def beating(beat: Callable[[], None], seconds: float) -> Iterator[None]:
    """Send heartbeats from a thread during the block. Failed heartbeats are ignored."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds / _PER_BEAT):
            with contextlib.suppress(CloneCommandError):
                beat()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_PATIENCE)


@contextlib.asynccontextmanager
async def beating_task(beat: Callable[[], Awaitable[None]], seconds: float) -> AsyncIterator[None]:
    """Send heartbeats from a task during the block, like `beating`. The event loop must not be blocked for long."""

    async def run() -> None:
        while True:
            await asyncio.sleep(seconds / _PER_BEAT)
            with contextlib.suppress(CloneCommandError):
                await beat()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

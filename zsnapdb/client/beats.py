"""The heartbeats of a program for its clone: while it runs, and no longer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from zsnapdb.client.errors import CloneCommandError

HEARTBEAT = 30.0
"""Seconds after which a clone goes whose holder is gone. With a `zsnapdb reap` each 20 s none stays for a minute."""
_PER_BEAT = 3
"""So many beats fall into that time: one that is late, or lost, ends no clone."""
_PATIENCE = 10.0
"""How long the end waits for a beat that is under way, in seconds."""


@contextlib.contextmanager
def beating(beat: Callable[[], None], seconds: float) -> Iterator[None]:
    """Let a thread beat while the block runs. Whoever uses a clone that is gone learns it there."""
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
    """Let a task beat while the block runs, as `beating` does. The loop of the program must not be blocked for long."""

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

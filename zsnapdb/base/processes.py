"""A request to stop, and a child process, as long-running work uses them."""

from __future__ import annotations

from typing import Protocol


class Stop(Protocol):
    """A request to stop that may come at any moment."""

    def is_set(self) -> bool:
        """Whether the stop was requested."""

    def wait(self, seconds: float, /) -> bool:
        """Wait until the stop is requested, at most this long. Return whether it was requested."""


class Running(Protocol):
    """Something that was started, such as a Popen."""

    def poll(self) -> int | None:
        """Return its exit code, negative if a signal ended it; None while it runs."""


class Process(Running, Protocol):
    """A child process of this one. Only its creator waits for its end."""

    @property
    def pid(self) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

"""How whatever works on in a thread of the helper learns that it ends."""

from __future__ import annotations

from typing import Protocol


class StopServing(Protocol):
    """A request to stop."""

    def is_set(self) -> bool: ...

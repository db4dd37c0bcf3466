"""Snapshots that zsnapdb refused because the machine was too slow for `lock.deadline`: they are repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from zsnapdb.base.errors import LockError

T = TypeVar("T")


@dataclass
class Refusals:
    """Refused attempts so far. A refusal is not wrong, but a campaign with mostly refusals shows nothing."""

    most: int = 5
    """Limit of refusals in a row."""
    messages: list[str] = field(default_factory=list)

    def until_made(self, attempt: Callable[[], T]) -> T:
        """Return the result of the first attempt that was not refused. LockError after too many refusals in a row."""
        for left in reversed(range(self.most)):
            try:
                return attempt()
            except LockError as error:
                self.messages.append(error.message)
                print(f"refused: {error.message}; {left} attempts left", flush=True)
        return attempt()

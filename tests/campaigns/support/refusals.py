"""Snapshots that zsnapdb refused because the machine was too slow for `lock.deadline`: they are made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from zsnapdb.base.errors import LockError

T = TypeVar("T")


@dataclass
class Refusals:
    """Refused attempts so far. A refusal is no wrong answer, but a campaign in which most are refused shows nothing."""

    most: int = 5
    """The most refusals in a row."""
    messages: list[str] = field(default_factory=list)

    def until_made(self, attempt: Callable[[], T]) -> T:
        """Return the answer of the first attempt that was not refused. LockError after too many refusals in a row."""
        for left in reversed(range(self.most)):
            try:
                return attempt()
            except LockError as error:
                self.messages.append(error.message)
                print(f"refused: {error.message}; {left} attempts left", flush=True)
        return attempt()

"""Verbs on one copy: `--plan` shows the actions of a verb, and a run executes them. Both use the same decision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")
P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Verb(Generic[C, P, R]):
    """A verb on a copy. A plan uses the copy from `seen`; a run uses the copy from `held`, under its lock.

    `decide` returns the plan and the function that executes it. It changes nothing, and raises the errors of both.
    """

    seen: Callable[[], AbstractContextManager[C]]
    held: Callable[[], AbstractContextManager[C]]
    decide: Callable[[C], tuple[P, Callable[[], R]]]

    def plan(self) -> P:
        """Return the actions of a run now; change nothing."""
        with self.seen() as copy:
            return self.decide(copy)[0]

    def run(self) -> R:
        """Decide again under the lock of the copy, and execute the decision."""
        with self.held() as copy:
            return self.decide(copy)[1]()

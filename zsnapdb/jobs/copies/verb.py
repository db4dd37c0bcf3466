"""Verbs on one copy: `--plan` shows what a verb would do, and a run does it. One decision makes both."""

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
    """A verb on a copy that `seen` yields for a plan, and `held`, under the lock of the copy, for a run.

    `decide` returns the plan and the function that carries it out. It changes nothing, and raises the errors of both.
    """

    seen: Callable[[], AbstractContextManager[C]]
    held: Callable[[], AbstractContextManager[C]]
    decide: Callable[[C], tuple[P, Callable[[], R]]]

    def plan(self) -> P:
        """Return what a run would do now; change nothing."""
        with self.seen() as copy:
            return self.decide(copy)[0]

    def run(self) -> R:
        """Decide again under the lock of the copy, and carry that out."""
        with self.held() as copy:
            return self.decide(copy)[1]()

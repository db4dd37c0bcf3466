"""In which scheduling class of the kernel a run asks for the facts of a new set, and reads the tail of the binlog."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FEW_PROCESSORS = 2
"""With more of them the server has one to itself while this run uses another."""


class SchedulingClass(StrEnum):
    """Classes of sched(7). NORMAL: SCHED_OTHER, at a low priority; IDLE: SCHED_IDLE, below any priority."""

    NORMAL = "normal"
    IDLE = "idle"


@dataclass(frozen=True)
class SchedulingFacts:
    """How many processors this process may use, the class of its thread, and whether it may come back from idle.

    `present` None: a class that an administrator chose, such as a real-time class.
    """

    processors: int
    present: SchedulingClass | None
    may_return: bool


@dataclass(frozen=True)
class SchedulingChoice:
    """The chosen class, and why."""

    chosen: SchedulingClass
    reason: str


def choose_class(facts: SchedulingFacts) -> SchedulingChoice:
    """Return the class for a short piece of work after which nobody waits."""
    if facts.processors > FEW_PROCESSORS:
        return _normal(f"a low priority suffices: there are {facts.processors} processors")
    if facts.present is not SchedulingClass.NORMAL:
        return _normal("the scheduling class stays as it was set for this process")
    if not facts.may_return:
        return _normal("this account may not leave the idle class again, so it stays at a low priority")
    count = "one processor" if facts.processors == 1 else "two processors"
    return SchedulingChoice(
        SchedulingClass.IDLE,
        f"with {count} the server comes first: the facts of a set and the tail of the binlog are read in idle time",
    )


def _normal(reason: str) -> SchedulingChoice:
    return SchedulingChoice(SchedulingClass.NORMAL, reason)

"""Runs the steps of a plan in their order, each by the handler of its type, and notes in a journal what ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic

from zsnapdb.base.errors import UsageError
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.steps.journal import Done, J, JournalFolder, PlannedStep, SteppedPlan

Handlers = Mapping[type, Callable[[Any, Any], object]]
"""What carries out a step, by the type of the step. It gets the work under way and the step."""


def run_steps(work: Any, steps: Any, handlers: Handlers) -> None:
    """Carry out these steps without a journal. KeyError, before anything is done, for a step without a handler."""
    for step, handler in [(step, handlers[type(step)]) for step in steps]:
        handler(work, step)


def refuse_unknown(plan: SteppedPlan, stop_after: str | None) -> None:
    """Raise UsageError if the plan has no step of that name."""
    names = [step.name for step in plan.steps]
    if stop_after is not None and stop_after not in names:
        raise UsageError(f"the restore has no step {stop_after!r}", hint=f"its steps are: {', '.join(names)}")


@dataclass
class Executor(Generic[J]):
    """Runs the unfinished steps of a journal's plan, in order.

    `looks` are types of steps that change nothing: before them no journal is written. `journals` None: nothing is noted
    on disk. `noted` returns the journal in memory with what a step wrote into the one on disk. `outcome` is what the
    last handler returned.
    """

    journal: J
    work: Any
    handlers: Handlers
    events: Events
    now: Callable[[], datetime]
    journals: JournalFolder[J] | None = None
    looks: tuple[type, ...] = ()
    noted: Callable[[J, J], J] = lambda own, _: own
    outcome: object = None

    def go(self, confirm: Callable[[Any], bool], stop_after: str | None) -> PlannedStep | None:
        """Run the steps. Return the step before which it was stopped; None if the last one ended.

        UsageError if there is no step `stop_after`, KeyError for a step without a handler: then nothing is done.
        """
        steps = self.journal.plan.steps
        refuse_unknown(self.journal.plan, stop_after)
        for step, handler in [(step, self.handlers[type(step)]) for step in steps]:
            if self.journal.is_done(step.name):
                continue
            if not confirm(step):
                return step
            if self.journals is not None and not isinstance(step, self.looks):
                # From here on things are changed. The journal says what they are.
                self.journals.write(self.journal)
            self.events.tell(f"{step.name}: {step.describe()}")
            began = time.monotonic()
            self.outcome = handler(self.work, step)
            done = Done(step.name, self.now(), round(time.monotonic() - began, 3))
            self.journal = self._as_noted().with_done(done)
            following = self.journal.next_step
            self._note_end(following)
            if step.name == stop_after and following is not None:
                return following
        return None

    def _as_noted(self) -> J:
        on_disk = self.journals.read(self.journal.top) if self.journals is not None else None
        return self.noted(self.journal, on_disk) if on_disk is not None else self.journal

    def _note_end(self, following: PlannedStep | None) -> None:
        if self.journals is None:
            return
        if following is None:
            self.journals.finish(self.journal)
        else:
            self.journals.write(self.journal)

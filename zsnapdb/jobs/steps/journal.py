"""The journals of plans of steps: a file with the plan and its finished steps, durably written after every step.

<folder>/<target dataset, / as %>.json             a plan that is under way
<folder>/done/<restore id>.json                    a finished one, with the seconds of each step
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base import whole_file
from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError, UsageError
from zsnapdb.base.patterns import first_problem
from zsnapdb.jobs.base.events import Events


@dataclass(frozen=True)
class Done:
    """A finished step: when it finished (UTC), and how long it took in seconds."""

    step: str
    finished: datetime
    seconds: float


class PlannedStep(Protocol):
    """What every step of a plan has."""

    @property
    def name(self) -> str: ...
    def describe(self) -> str: ...


class SteppedPlan(Protocol):
    """What every plan with a journal has: its steps, each with a name of its own, in order."""

    @property
    def instance(self) -> str: ...
    @property
    def restore_id(self) -> str: ...
    @property
    def created(self) -> datetime: ...
    @property
    def top(self) -> str:
        """The dataset that the plan makes."""

    @property
    def steps(self) -> Sequence[PlannedStep]: ...


P_co = TypeVar("P_co", bound=SteppedPlan, covariant=True)


@dataclass(frozen=True)
class StepJournal(Generic[P_co]):
    """A plan that is carried out: the plan and its finished steps, in order. `run_id` is the run that began it."""

    plan: P_co
    done: tuple[Done, ...] = ()
    run_id: str = ""

    def is_done(self, step: str) -> bool:
        """Whether the step of that name is finished."""
        return any(done.step == step for done in self.done)

    def with_done(self, done: Done) -> Self:
        """Return the journal with one more finished step."""
        return replace(self, done=(*self.done, done))

    @property
    def top(self) -> str:
        """The dataset that the plan makes."""
        return self.plan.top

    @property
    def next_step(self) -> PlannedStep | None:
        """The first step that is not finished; None if all are."""
        return next((step for step in self.plan.steps if not self.is_done(step.name)), None)


def tops(folder: Path) -> list[str]:
    """Return the datasets that have a journal of an unfinished plan in the folder."""
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return [path.stem.replace("%", "/") for path in paths]


J = TypeVar("J", bound=StepJournal[SteppedPlan])


@dataclass(frozen=True)
class JournalFolder(Generic[J]):
    """The journals of one kind in a folder."""

    folder: Path
    form: Callable[[], TypeAdapter[J]]
    """Makes the schema of a journal, where there is one: that takes longer than to find none."""

    def path(self, top: str) -> Path:
        """Return the path of the journal of a restore to this dataset."""
        return self.folder / f"{top.replace('/', '%')}.json"

    def write(self, journal: J) -> None:
        """Write the journal durably: a power cut leaves the new or the old file, never a part of one."""
        self._write(self.path(journal.top), journal)

    def read(self, top: str) -> J | None:
        """Return the journal of an unfinished restore to this dataset, or None."""
        path = self.path(top)
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PreflightError(f"reading the journal {path}: {error.strerror}", hint="run zsnapdb as root") from error
        try:
            return self.form().validate_json(body)
        except ValidationError as error:
            raise DamagedError(
                f"the journal {path} cannot be read: {first_problem(error)}",
                hint=f"`zfs list -r {top}` shows what its restore has made: remove that by hand, then the journal",
            ) from error

    def tops(self) -> list[str]:
        """Return the datasets that have a journal of an unfinished plan."""
        return tops(self.folder)

    def all_under_way(self) -> list[J]:
        """Return the journals of all unfinished restores. DamagedError if one cannot be read."""
        journals = [self.read(top) for top in self.tops()]
        return [journal for journal in journals if journal is not None]

    def find(self, instance: str, top: str | None) -> J:
        """Return the restore under way to `top`, or the only one of the instance. NotThere names those under way.

        DamagedError if the journal of `top` cannot be read. One of another target stands in nobody's way.
        """
        if top is not None:
            own = self.read(top)
            known = [own] if own is not None and own.plan.instance == instance else []
        else:
            known = self.readable(instance)
        if len(known) != 1:
            listing = ", ".join(journal.top for journal in self.readable(instance)) or "none"
            torn = "".join(f"; {path} cannot be read" for path in self.unreadable())
            raise UnknownNameError(
                f"no single restore of {instance}{f' to {top}' if top else ''} is under way",
                hint=f"under way: {listing}{torn}; name the target with --target",
            )
        return known[0]

    def readable(self, instance: str) -> list[J]:
        """Return the journals of the instance's unfinished restores, without those that cannot be read."""
        journals = []
        for top in self.tops():
            with contextlib.suppress(DamagedError):
                journal = self.read(top)
                if journal is not None and journal.plan.instance == instance:
                    journals.append(journal)
        return journals

    def finished(self) -> list[J]:
        """Return the journals of finished restores, oldest first.

        Unreadable ones are left out, because nothing that is restored depends on them.
        """
        journals = []
        for path in sorted((self.folder / "done").glob("*.json")):
            with contextlib.suppress(OSError, ValidationError):
                journals.append(self.form().validate_json(path.read_bytes()))
        return journals

    def unreadable(self) -> list[str]:
        """Return the paths of the journals that cannot be read."""
        torn = []
        for top in self.tops():
            try:
                self.read(top)
            except DamagedError:
                torn.append(str(self.path(top)))
        return torn

    def finish(self, journal: J) -> None:
        """Keep the journal as that of a finished restore."""
        self._write(self.folder / "done" / f"{journal.plan.restore_id}.json", journal)
        self.forget(journal.top)

    def forget(self, top: str) -> None:
        """Remove the journal of a restore that was given up."""
        self.path(top).unlink(missing_ok=True)

    def _write(self, path: Path, journal: J) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole_file.replace(path, self.form().dump_json(journal, indent=1))
        except OSError as error:
            raise PreflightError(
                f"writing the journal {path}: {error.strerror}", hint="run zsnapdb as root, or set restore.journal"
            ) from error


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

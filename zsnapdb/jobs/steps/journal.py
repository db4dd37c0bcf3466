"""The journals of plans of steps: a file with the plan and its finished steps, durably written after every step.

<folder>/<target dataset, / as %>.json             a plan that is under way
<folder>/done/<restore id>.json                    a finished one, with the seconds of each step
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base import whole_file
from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.base.patterns import first_problem


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

"""Journals of plans. A journal is a file with a plan and its finished steps.

After every step, the file is written and synced to disk.

- `<folder>/<target dataset, with % for />.json`: an unfinished plan
- `<folder>/done/<restore id>.json`: a finished plan, with the duration of each step in seconds
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.base.patterns import first_problem

if TYPE_CHECKING:
    from zsnapdb.planning.restore.plan import AnyRestorePlan


@dataclass(frozen=True)
class CompletedStep:
    """The time (UTC) at which a step finished, and its duration in seconds."""

    step: str
    finished: datetime
    seconds: float


P_co = TypeVar("P_co", bound="AnyRestorePlan", covariant=True)


@dataclass(frozen=True)
class StepJournal(Generic[P_co]):
    """A plan with its finished steps, in order. The run `run_id` started the plan."""

    plan: P_co
    done: tuple[CompletedStep, ...] = ()
    run_id: str = ""

    def is_done(self, step: str) -> bool:
        """Return whether the step with that name is finished."""
        return any(done.step == step for done in self.done)

    def with_done(self, done: CompletedStep) -> Self:
        """Return the journal with the given step as its newest finished step."""
        return replace(self, done=(*self.done, done))

    @property
    def top(self) -> str:
        """The dataset that the plan creates."""
        return self.plan.top

    @property
    def next_step(self) -> Any:
        """The first step that is not finished; None if all steps are finished."""
        return next((step for step in self.plan.steps if not self.is_done(step.name)), None)


def tops(folder: Path) -> list[str]:
    """Return the target datasets of all unfinished plans with a journal in the folder."""
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return [path.stem.replace("%", "/") for path in paths]


J = TypeVar("J", bound=StepJournal[Any])


@dataclass(frozen=True)
class JournalFolder(Generic[J]):
    """The folder with the journals of one kind of plan."""

    folder: Path
    form: Callable[[], TypeAdapter[J]]
    """Function that creates the schema of a journal.

    The function is called only if a journal exists, because creating the schema takes longer than a lookup.
    """

    def path(self, top: str) -> Path:
        """Return the path of the journal of a restore to this dataset."""
        return self.folder / f"{top.replace('/', '%')}.json"

    def write(self, journal: J) -> None:
        """Write the journal and sync it to disk.

        After a power failure, the file has either the old or the new content.
        """
        self._write(self.path(journal.top), journal)

    def read(self, top: str) -> J | None:
        """Return the journal of an unfinished restore to this dataset; None if there is none."""
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
                hint=f"`zfs list -r {top}` shows the datasets that the restore created; destroy them by hand, then"
                " remove the journal",
            ) from error

    def tops(self) -> list[str]:
        """Return the target datasets of all unfinished plans."""
        return tops(self.folder)

    def all_under_way(self) -> list[J]:
        """Return the journals of all unfinished restores.

        Raises:
            DamagedError: a journal cannot be read.
        """
        journals = [self.read(top) for top in self.tops()]
        return [journal for journal in journals if journal is not None]

    def find(self, instance: str, top: str | None) -> J:
        """Return the unfinished restore to `top`. If `top` is None, return the only unfinished restore of the instance.

        Unreadable journals of other targets are ignored.

        Raises:
            UnknownNameError: there is no such restore, or there are several. The hint lists the unfinished restores.
            DamagedError: the journal of `top` cannot be read.
        """
        own = None if top is None else self.read(top)
        known = self.readable(instance) if top is None else [own] if own is not None else []
        known = [journal for journal in known if journal.plan.instance == instance]
        if len(known) != 1:
            readable, unreadable = self._readable_and_torn()
            listing = ", ".join(journal.top for journal in readable if journal.plan.instance == instance) or "none"
            torn = "".join(f"; {path} cannot be read" for path in unreadable)
            raise UnknownNameError(
                f"there is not exactly one unfinished restore of {instance}{f' to {top}' if top else ''}",
                hint=f"unfinished: {listing}{torn}; name the target with --target",
            )
        return known[0]

    def readable(self, instance: str) -> list[J]:
        """Return the readable journals of the instance's unfinished restores."""
        return [journal for journal in self._readable_and_torn()[0] if journal.plan.instance == instance]

    def _readable_and_torn(self) -> tuple[list[J], list[str]]:
        """Return the readable journals of all unfinished restores, and the paths of unreadable journals."""
        journals, torn = [], []
        for top in self.tops():
            try:
                journal = self.read(top)
            except DamagedError:
                torn.append(str(self.path(top)))
            else:
                journals += [] if journal is None else [journal]
        return journals, torn

    def finished(self) -> list[J]:
        """Return the journals of finished restores, oldest first.

        Unreadable journals are omitted, because no data depends on the journal of a finished restore.
        """
        journals = []
        for path in sorted((self.folder / "done").glob("*.json")):
            with contextlib.suppress(OSError, ValidationError):
                journals.append(self.form().validate_json(path.read_bytes()))
        return journals

    def finish(self, journal: J) -> None:
        """Store the journal as the journal of a finished restore."""
        self._write(self._done(journal), journal)
        self.forget(journal.top)

    def forget_finished(self, journal: J) -> None:
        """Remove the journal of a finished restore whose datasets were destroyed."""
        self._done(journal).unlink(missing_ok=True)

    def _done(self, journal: J) -> Path:
        return self.folder / "done" / f"{journal.plan.restore_id}.json"

    def forget(self, top: str) -> None:
        """Remove the journal of an abandoned restore."""
        self.path(top).unlink(missing_ok=True)

    def _write(self, path: Path, journal: J) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, self.form().dump_json(journal, indent=1))
        except OSError as error:
            raise PreflightError(
                f"writing the journal {path}: {error.strerror}", hint="run zsnapdb as root, or set restore.journal"
            ) from error


Handlers = Mapping[type, Callable[[Any, Any], object]]
"""For each type of step, the function that executes it.

The arguments of the function are the work in progress and the step.
"""


def run_steps(work: Any, steps: Any, handlers: Handlers) -> None:
    """Execute these steps without a journal.

    Raises:
        KeyError: a step has no handler; no step was executed.
    """
    for step, handler in [(step, handlers[type(step)]) for step in steps]:
        handler(work, step)

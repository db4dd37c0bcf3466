"""What a restore is going to do and what of it is done, in a file beside it, written through after every step.

<restore.journal>/<target dataset, / as %>.json             one under way
<restore.journal>/done/<restore id>.json                    one that came to its end; how long each step took
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from zsnapdb.errors import DamagedError, PreflightError
from zsnapdb.planning.restore.steps import RestorePlan


@dataclass(frozen=True)
class Done:
    """A step that is done: when it was (UTC), and how long it took in seconds."""

    step: str
    finished: datetime
    seconds: float


@dataclass(frozen=True)
class RestoreJournal:
    """A restore: its plan and the steps done so far, in order."""

    plan: RestorePlan
    done: tuple[Done, ...] = ()

    def is_done(self, step: str) -> bool:
        """Whether the step of that name is done."""
        return any(done.step == step for done in self.done)

    def with_done(self, done: Done) -> RestoreJournal:
        """Return the journal with one more step done."""
        return replace(self, done=(*self.done, done))


_FORM = TypeAdapter(RestoreJournal)


@dataclass(frozen=True)
class Journals:
    """The journals in a folder."""

    folder: Path

    def path(self, top: str) -> Path:
        """Return where the journal of a restore to this dataset is."""
        return self.folder / f"{top.replace('/', '%')}.json"

    def write(self, journal: RestoreJournal) -> None:
        """Write it durably: afterwards a power cut leaves this one or the one before, never half of one."""
        self._write(self.path(journal.plan.layout.top), journal)

    def read(self, top: str) -> RestoreJournal | None:
        """Return the journal of a restore to this dataset that has not come to its end, or None."""
        path = self.path(top)
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PreflightError(f"reading the journal {path}: {error.strerror}", hint="run zsnapdb as root") from error
        try:
            return _FORM.validate_json(body)
        except ValidationError as error:
            raise DamagedError(
                f"the journal {path} cannot be read: {error.errors()[0]['msg']}",
                hint="give the restore up with --abandon",
            ) from error

    def under_way(self, instance: str) -> list[RestoreJournal]:
        """Return those of the instance that have not come to their end."""
        if not self.folder.is_dir():
            return []
        found = [self.read(path.stem.replace("%", "/")) for path in sorted(self.folder.glob("*.json"))]
        return [journal for journal in found if journal is not None and journal.plan.instance == instance]

    def history(self, instance: str) -> list[RestoreJournal]:
        """Return those of the instance that came to their end, oldest first.

        Unreadable ones are left out: they are only of interest.
        """
        found = []
        for path in sorted((self.folder / "done").glob("*.json")):
            try:
                journal = _FORM.validate_json(path.read_bytes())
            except (OSError, ValidationError):
                continue
            if journal.plan.instance == instance:
                found.append(journal)
        return found

    def finish(self, journal: RestoreJournal) -> None:
        """Keep it as one that came to its end."""
        self._write(self.folder / "done" / f"{journal.plan.restore_id}.json", journal)
        self.forget(journal.plan.layout.top)

    def forget(self, top: str) -> None:
        """Remove the journal of a restore that was given up."""
        self.path(top).unlink(missing_ok=True)

    def _write(self, path: Path, journal: RestoreJournal) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = path.with_suffix(".new")
            with beside.open("wb") as file:
                file.write(_FORM.dump_json(journal, indent=1))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise PreflightError(
                f"writing the journal {path}: {error.strerror}", hint="run zsnapdb as root, or set restore.journal"
            ) from error

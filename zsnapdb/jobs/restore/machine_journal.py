"""The journal of a restore of a virtual machine: its plan and its finished steps.

<restore.journal>/machines/<target dataset, / as %>.json      a restore that is under way
<restore.journal>/machines/done/<restore id>.json             a finished restore
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from zsnapdb.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.jobs.restore_journal import Done, write_durably
from zsnapdb.planning.restore.machine import MachineRestorePlan


@dataclass(frozen=True)
class MachineJournal:
    """A restore of a machine: its plan and its finished steps, in order."""

    plan: MachineRestorePlan
    done: tuple[Done, ...] = ()

    def is_done(self, step: str) -> bool:
        """Whether the step of that name is finished."""
        return any(done.step == step for done in self.done)

    def with_done(self, done: Done) -> MachineJournal:
        """Return the journal with one more finished step."""
        return replace(self, done=(*self.done, done))


_FORM = TypeAdapter(MachineJournal)


@dataclass(frozen=True)
class MachineJournals:
    """The journals in a folder."""

    folder: Path

    @classmethod
    def below(cls, folder: Path) -> MachineJournals:
        """Return the journals of machines below the folder of all journals."""
        return cls(folder / "machines")

    def path(self, top: str) -> Path:
        """Return the path of the journal of a restore to this dataset."""
        return self.folder / f"{top.replace('/', '%')}.json"

    def write(self, journal: MachineJournal) -> None:
        """Write the journal durably."""
        write_durably(self.path(journal.plan.top), _FORM.dump_json(journal, indent=1))

    def read(self, top: str) -> MachineJournal | None:
        """Return the journal of an unfinished restore to this dataset, or None."""
        path = self.path(top)
        try:
            return _FORM.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PreflightError(f"reading the journal {path}: {error.strerror}", hint="run zsnapdb as root") from error
        except ValidationError as error:
            raise DamagedError(
                f"the journal {path} cannot be read: {error.errors()[0]['msg']}",
                hint="remove the restored datasets by hand, then the journal",
            ) from error

    def find(self, instance: str, top: str | None) -> MachineJournal:
        """Return the restore under way to `top`, or the only one of the instance. NotThere names those under way."""
        paths = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        journals = [self.read(path.stem.replace("%", "/")) for path in paths]
        known = [journal for journal in journals if journal is not None and journal.plan.instance == instance]
        chosen = [journal for journal in known if top in (None, journal.plan.top)]
        if len(chosen) != 1:
            listing = ", ".join(journal.plan.top for journal in known) or "none"
            raise UnknownNameError(
                f"no single restore of {instance}{f' to {top}' if top else ''} is under way",
                hint=f"under way: {listing}; name the target with --target",
            )
        return chosen[0]

    def finish(self, journal: MachineJournal) -> None:
        """Keep the journal as that of a finished restore."""
        write_durably(self.folder / "done" / f"{journal.plan.restore_id}.json", _FORM.dump_json(journal, indent=1))
        self.forget(journal.plan.top)

    def forget(self, top: str) -> None:
        """Remove the journal of a restore that was given up."""
        self.path(top).unlink(missing_ok=True)

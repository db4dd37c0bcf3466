"""The journal of a restore: a file with its plan and its finished steps, durably written after every step.

<restore.journal>/<target dataset, / as %>.json             a restore that is under way
<restore.journal>/done/<restore id>.json                    a finished restore, with the seconds of each step
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from zsnapdb.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.planning.restore.steps import RestorePlan


@dataclass(frozen=True)
class Done:
    """A finished step: when it finished (UTC), and how long it took in seconds."""

    step: str
    finished: datetime
    seconds: float


@dataclass(frozen=True)
class OldServer:
    """What a rewind changed at the server that it replaces. Whoever gives the rewind up takes it back.

    `option_file` is the file with the new server_id, and `option_text` what was in it before (None: it did not exist).
    `stopped` is since when the server is down (UTC); None: it was not stopped, or a server runs again. `down` is for
    how many seconds it was down before that.
    """

    option_file: str | None = None
    option_text: str | None = None
    stopped: datetime | None = None
    down: float = 0.0

    def stopped_at(self, moment: datetime) -> OldServer:
        """Return the record of a server that is stopped from that moment on, unless it was stopped before."""
        return self if self.stopped is not None else replace(self, stopped=moment)

    def up_at(self, moment: datetime) -> OldServer:
        """Return the record of a server that runs again from that moment on."""
        return replace(self, stopped=None, down=self.seconds_down(moment))

    def seconds_down(self, moment: datetime) -> float:
        """Return for how many seconds users had no server, over all runs, up to that moment."""
        now = (moment - self.stopped).total_seconds() if self.stopped is not None else 0.0
        return self.down + max(0.0, now)


@dataclass(frozen=True)
class RestoreJournal:
    """A restore: its plan and its finished steps, in order. `old_server`: what a rewind changed at the old server."""

    plan: RestorePlan
    done: tuple[Done, ...] = ()
    old_server: OldServer | None = None

    def is_done(self, step: str) -> bool:
        """Whether the step of that name is finished."""
        return any(done.step == step for done in self.done)

    def with_done(self, done: Done) -> RestoreJournal:
        """Return the journal with one more finished step."""
        return replace(self, done=(*self.done, done))

    @property
    def top(self) -> str:
        """The dataset that the restore makes."""
        return self.plan.layout.top


class KeptPlan(Protocol):
    """What every plan with a journal has."""

    @property
    def instance(self) -> str: ...
    @property
    def restore_id(self) -> str: ...


class KeptJournal(Protocol):
    """What every journal has."""

    @property
    def plan(self) -> KeptPlan: ...
    @property
    def top(self) -> str: ...


J = TypeVar("J", bound=KeptJournal)


@dataclass(frozen=True)
class JournalFolder(Generic[J]):
    """The journals of one form in a folder."""

    folder: Path
    form: TypeAdapter[J]

    def path(self, top: str) -> Path:
        """Return the path of the journal of a restore to this dataset."""
        return self.folder / f"{top.replace('/', '%')}.json"

    def write(self, journal: J) -> None:
        """Write the journal durably: a power cut leaves the new or the old file, never a part of one."""
        write_durably(self.path(journal.top), self.form.dump_json(journal, indent=1))

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
            return self.form.validate_json(body)
        except ValidationError as error:
            raise DamagedError(
                f"the journal {path} cannot be read: {error.errors()[0]['msg']}",
                hint=f"`zfs list -r {top}` shows what its restore has made: remove that by hand, then the journal",
            ) from error

    def _tops(self) -> list[str]:
        paths = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        return [path.stem.replace("%", "/") for path in paths]

    def all_under_way(self) -> list[J]:
        """Return the journals of all unfinished restores. DamagedError if one cannot be read."""
        journals = [self.read(top) for top in self._tops()]
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
        for top in self._tops():
            with contextlib.suppress(DamagedError):
                journal = self.read(top)
                if journal is not None and journal.plan.instance == instance:
                    journals.append(journal)
        return journals

    def unreadable(self) -> list[str]:
        """Return the paths of the journals that cannot be read."""
        torn = []
        for top in self._tops():
            try:
                self.read(top)
            except DamagedError:
                torn.append(str(self.path(top)))
        return torn

    def finish(self, journal: J) -> None:
        """Keep the journal as that of a finished restore."""
        write_durably(self.folder / "done" / f"{journal.plan.restore_id}.json", self.form.dump_json(journal, indent=1))
        self.forget(journal.top)

    def forget(self, top: str) -> None:
        """Remove the journal of a restore that was given up."""
        self.path(top).unlink(missing_ok=True)


_FORM = TypeAdapter(RestoreJournal)


class Journals(JournalFolder[RestoreJournal]):
    """The journals of restores of servers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORM)

    def under_way(self, instance: str) -> list[RestoreJournal]:
        """Return the journals of the instance's unfinished restores. DamagedError if a journal cannot be read."""
        return [journal for journal in self.all_under_way() if journal.plan.instance == instance]

    def at_mount(self, mount: str) -> RestoreJournal | None:
        """Return the journal of an unfinished restore that mounts its files there, or None.

        Unreadable journals are left out: that of another target must not stand in the way of a restore.
        """
        for top in self._tops():
            with contextlib.suppress(DamagedError):
                journal = self.read(top)
                if journal is not None and journal.plan.layout.mount == mount:
                    return journal
        return None

    def history(self, instance: str) -> list[RestoreJournal]:
        """Return the journals of the instance's finished restores, oldest first.

        Unreadable journals are left out, because nothing depends on them.
        """
        journals = []
        for path in sorted((self.folder / "done").glob("*.json")):
            try:
                journal = _FORM.validate_json(path.read_bytes())
            except (OSError, ValidationError):
                continue
            if journal.plan.instance == instance:
                journals.append(journal)
        return journals

    def note(self, top: str, old_server: OldServer) -> None:
        """Write durably what was changed at the old server. NotThere if no restore to this dataset is under way."""
        journal = self.read(top)
        if journal is None:
            raise UnknownNameError(
                f"the restore to {top} was finished or given up meanwhile", hint="see `zfs list`; nothing was changed"
            )
        self.write(replace(journal, old_server=old_server))


def write_durably(path: Path, body: bytes) -> None:
    """Write a journal: a power cut leaves the new or the old file, never a part of one. PreflightError if it fails."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(body)
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

"""What this host has read of the repositories of a fleet, and keeps in files of its own until it reads again.

Nothing in them is needed: a file that cannot be read, is of another version or was read with other keys counts as none.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from zsnapdb import __version__
from zsnapdb.base import whole_file
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.patterns import Attempt, Count, InstanceName, Moment, RepositoryId, Sha256, ShortLine, printable
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.planning.fleet.overview import InstanceFacts
from zsnapdb.planning.health.facts import HealthFacts
from zsnapdb.repository.objectives_part import ObjectivesPart
from zsnapdb.store.remembering import Remembered, Trace

_FORMAT = 3
LONGEST = 300
"""How many characters of a text are kept: one repository fills no answer about all. What zsnapdb writes is shorter."""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _with_cut_texts(facts: HealthFacts) -> HealthFacts:
    return replace(
        facts,
        unprotected=_cut(facts.unprotected),
        damage=tuple(_cut(text) for text in facts.damage),
        doubts=tuple(_cut(text) for text in facts.doubts),
    )


SeenText = Annotated[str, AfterValidator(_cut), AfterValidator(printable)]
"""A text that others wrote, or an error that may quote one: one line for people, which is not long."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class SeenInstance(_Part):
    """An instance as it was read at a time. `evidence` is the number of the newest record of evidence; 0: none.

    `future` counts what was from the future then: backups that are in none of the facts, and signs of life that are not
    the newest one.
    """

    read: Moment
    host: SeenText
    tool_version: SeenText
    server: SeenText
    objectives: ObjectivesPart | None
    heard: Moment | None
    oldest_point: Moment | None
    backups: Count
    backup_bytes: Count
    binlog_bytes: Count
    evidence: Count
    future: Count
    health: Annotated[HealthFacts, AfterValidator(_with_cut_texts)]

    def facts(self) -> InstanceFacts:
        """Return what it says about the instance."""
        return InstanceFacts(
            instance=self.health.instance,
            repository=self.health.repository,
            host=self.host,
            tool_version=self.tool_version,
            server=self.server,
            objectives=self.objectives,
            heard=self.heard,
            oldest_point=self.oldest_point,
            backups=self.backups,
            backup_bytes=self.backup_bytes,
            binlog_bytes=self.binlog_bytes,
            health=self.health,
        )


class SeenProblem(_Part):
    """Why something could not be read then: the text, the code (the class) and the exit code of that error.

    The text can name endpoint, bucket and folders.
    """

    message: SeenText
    code: Annotated[str, Field(pattern=r"^[a-z-]{1,40}$")]
    exit_code: Count

    @classmethod
    def of(cls, error: ZsnapdbError) -> Self:
        """Return the problem that an error is."""
        return cls(message=error.message, code=error.code, exit_code=error.exit_code)


class SeenRepository(_Part):
    """A repository as it was read at a time. `foreign` counts folders whose name is that of no instance.

    `problems` has why an instance could not be read, by name: what `instances` has of it is of an earlier reading.
    `reading` is random: by it the other file of the same reading is known.
    """

    read: Moment
    reading: Attempt
    id: RepositoryId
    is_encrypted: bool
    note: SeenText = ""
    foreign: Count = 0
    instances: dict[InstanceName, SeenInstance]
    problems: dict[InstanceName, SeenProblem] = {}


class FailedReading(_Part):
    """The newest reading of a repository, which failed: when, and why."""

    at: Moment
    problem: SeenProblem


class _Dependence(_Part):
    listings: dict[ShortLine, Sha256]
    objects: dict[ShortLine, Sha256 | Annotated[str, Field(pattern="^$")]]


class _Dependences(_Part):
    reading: Attempt
    instances: dict[InstanceName, _Dependence]


class _Body(_Part):
    size: Count
    tag: ShortLine
    text: str


class _Bodies(_Part):
    objects: dict[ShortLine, _Body]


class _Frame(_Part):
    """The first line of each file: what its content depends on beside the store."""

    format: int
    tool: str
    url: str
    trust: str


M = TypeVar("M", bound=BaseModel)


class SeenMemory:
    """What was read last of each repository, in memory for as long as its file is the same. For many threads."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[object, ...], SeenRepository | None]] = {}
        self._lock = threading.Lock()

    def repository(self, files: SeenFiles) -> SeenRepository | None:
        """Return `files.repository()`, which is parsed only if its file has changed."""
        with self._lock:
            version = files.version()
            if version is None:
                return None
            known = self._known.get(files.folder)
            if known is None or known[0] != version:
                known = self._known[files.folder] = (version, files.repository())
            return known[1]


@dataclass(frozen=True)
class SeenFiles:
    """The files about one repository, in a folder that only this account can use.

    `url` is the address of the repository; `trust` are the settings that say what is believed of it.
    """

    folder: Path
    url: str
    trust: str

    @classmethod
    def of(cls, fleet: FleetSettings, name: str) -> SeenFiles:
        """Return the files about a repository of the fleet."""
        settings = fleet.repository[name]
        return cls(fleet.cache / name, settings.url, settings.encryption.model_dump_json())

    @property
    def manifests(self) -> Path:
        """The folder of what was read of manifests (`repository/catalogue.py` has its files)."""
        return self.folder / "manifests"

    @property
    def _is_private(self) -> bool:
        """Whether only this account can change what lies in the folder."""
        try:
            status = [folder.lstat() for folder in (self.folder.parent, self.folder)]
        except OSError:
            return False
        own = os.geteuid()
        return all(stat.S_ISDIR(one.st_mode) and one.st_uid == own and not one.st_mode & 0o077 for one in status)

    def prepare(self) -> None:
        """Make the folders, so that only this account can use them. PreflightError if they are another account's."""
        for folder in (self.folder.parent, self.folder, self.manifests, self.folder / "objects"):
            make_private(folder)

    def repository(self) -> SeenRepository | None:
        """Return what was read last, None if nothing is known."""
        return self._read("seen.json", SeenRepository)

    def version(self) -> tuple[object, ...] | None:
        """Return what changes as soon as `repository` returns something else; None if nothing is known."""
        try:
            status = (self.folder / "seen.json").stat()
        except OSError:
            return None
        return (self.folder, self._frame(), status.st_ino, status.st_size, status.st_mtime_ns)

    def traces(self, seen: SeenRepository) -> dict[str, Trace]:
        """Return what the reading of each instance depended on, if it is known of the reading `seen`."""
        known = self._read("traces.json", _Dependences)
        if known is None or known.reading != seen.reading:
            return {}
        return {name: Trace(dict(one.listings), dict(one.objects)) for name, one in known.instances.items()}

    def bodies(self, instance: str) -> dict[str, Remembered]:
        """Return the objects that the readings of an instance fetched, by key."""
        known = self._read(f"objects/{instance}.json", _Bodies)
        if known is None:
            return {}
        return {key: Remembered(one.size, one.tag, one.text.encode()) for key, one in known.objects.items()}

    def keep(self, seen: SeenRepository, traces: dict[str, Trace]) -> None:
        """Replace what is known. A disk that refuses costs the next run time, and nothing else."""
        dependences = {name: _Dependence(listings=one.listings, objects=one.objects) for name, one in traces.items()}
        self._write("seen.json", seen)
        with contextlib.suppress(OSError):
            (self.folder / "failed.json").unlink(missing_ok=True)
        self._write("traces.json", _Dependences(reading=seen.reading, instances=dependences))

    def note_failure(self, error: ZsnapdbError, at: datetime) -> None:
        """Keep that the newest reading failed, beside what was read before, until one succeeds."""
        with contextlib.suppress(ZsnapdbError):
            self.prepare()
            self._write("failed.json", FailedReading(at=at, problem=SeenProblem.of(error)))

    def failure(self) -> FailedReading | None:
        """Return the newest reading if it failed."""
        return self._read("failed.json", FailedReading)

    def keep_bodies(self, instance: str, objects: dict[str, Remembered]) -> None:
        """Replace the objects of an instance. One that is no text is left out: it is fetched again."""
        texts = {}
        for key, one in objects.items():
            # The tag, too, is what a store says.
            with contextlib.suppress(UnicodeDecodeError, ValidationError):
                texts[key] = _Body(size=one.size, tag=one.tag, text=one.body.decode())
        self._write(f"objects/{instance}.json", _Bodies(objects=texts))

    def _frame(self) -> bytes:
        return _Frame(format=_FORMAT, tool=__version__, url=self.url, trust=self.trust).model_dump_json().encode()

    def _read(self, name: str, model: type[M]) -> M | None:
        if not self._is_private:
            return None
        with contextlib.suppress(OSError, ValidationError):
            frame, _, content = (self.folder / name).read_bytes().partition(b"\n")
            if frame == self._frame():
                return model.model_validate_json(content)
        return None

    def _write(self, name: str, content: BaseModel) -> None:
        with contextlib.suppress(OSError):
            body = self._frame() + b"\n" + content.model_dump_json().encode()
            whole_file.replace_disposable(self.folder / name, body)

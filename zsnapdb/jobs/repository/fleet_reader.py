"""Reads the state of all instances in one repository. Only instances that have changed are read again.

The code that judges an instance is the same as on the instance's own host. No host, server or pool is queried. The
repository is only listed and read, and its whole content is untrusted. If the name of a folder cannot be an instance
name, the folder is counted, but not read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import stat
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from zsnapdb import __version__
from zsnapdb.base import files, patterns
from zsnapdb.base.errors import NotFound, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.base.quantities import quantity
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health.recovery_coverage import Stored, read
from zsnapdb.jobs.repository.protection_status import status_of
from zsnapdb.planning.fleet.overview import InstanceFacts, judged_by, newest_sign
from zsnapdb.planning.health.facts import HealthFacts
from zsnapdb.planning.repository.known_backups import from_future
from zsnapdb.repository import evidence_log
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.manifest import ObjectivesPart
from zsnapdb.repository.manifest_source import MachineSourcePart, ServerSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Store
from zsnapdb.store.layers import Remembered, RememberingStore, Trace

_FORMAT = 3
LONGEST = 300
"""The maximum length of a text in characters. The limit prevents one repository from filling a whole answer.

All texts that zsnapdb writes are shorter.
"""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _with_cut_texts(facts: HealthFacts) -> HealthFacts:
    return replace(
        facts,
        unprotected=_cut(facts.unprotected),
        damage=tuple(_cut(text) for text in facts.damage),
        doubts=tuple(_cut(text) for text in facts.doubts),
    )


SeenText = Annotated[str, AfterValidator(_cut), AfterValidator(patterns.printable)]
"""An untrusted text, or the text of an error that may quote an untrusted text.

The text is cut to one short printable line.
"""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ReadInstance(_Part):
    """The state of an instance when it was read. `evidence` is the number of its newest evidence record, or 0.

    `future` is the number of backups and signs of life whose time was in the future when the instance was read. The
    other fields do not count such backups and signs of life.
    """

    read: patterns.Moment
    host: SeenText
    tool_version: SeenText
    server: SeenText
    objectives: ObjectivesPart | None
    heard: patterns.Moment | None
    oldest_point: patterns.Moment | None
    backups: patterns.Count
    backup_bytes: patterns.Count
    binlog_bytes: patterns.Count
    evidence: patterns.Count
    future: patterns.Count
    health: Annotated[HealthFacts, AfterValidator(_with_cut_texts)]

    def facts(self) -> InstanceFacts:
        own: dict[str, Any] = {
            one.name: getattr(self, one.name) for one in fields(InstanceFacts) if hasattr(self, one.name)
        }
        return InstanceFacts(instance=self.health.instance, repository=self.health.repository, **own)


class SeenProblem(_Part):
    """The reason why something could not be read: the text, the code (class) and the exit code of the error.

    The text may contain the endpoint, the bucket and folders.
    """

    message: SeenText
    code: Annotated[str, Field(pattern=r"^[a-z-]{1,40}$")]
    exit_code: patterns.Count

    @classmethod
    def of(cls, error: ZsnapdbError) -> Self:
        return cls(message=error.message, code=error.code, exit_code=error.exit_code)


class SeenRepository(_Part):
    """The state of a repository when it was read.

    `foreign` is the number of folders whose name cannot be an instance name.

    `problems` contains the errors of instances by name. If an instance has an error, its entry in `instances` comes
    from an earlier reading. `reading` is a random text that both files of one reading contain.
    """

    read: patterns.Moment
    reading: patterns.Attempt
    id: patterns.RepositoryId
    is_encrypted: bool
    note: SeenText = ""
    foreign: patterns.Count = 0
    instances: dict[patterns.InstanceName, ReadInstance]
    problems: dict[patterns.InstanceName, SeenProblem] = {}


class FailedReading(_Part):
    """The time and the problem of the newest reading of a repository, if it failed."""

    at: patterns.Moment
    problem: SeenProblem


class _Dependence(_Part):
    listings: dict[patterns.ShortLine, patterns.Sha256]
    objects: dict[patterns.ShortLine, patterns.Sha256 | Annotated[str, Field(pattern="^$")]]


class _Dependences(_Part):
    reading: patterns.Attempt
    instances: dict[patterns.InstanceName, _Dependence]


class _Body(_Part):
    size: patterns.Count
    tag: patterns.ShortLine
    text: str


class _Bodies(_Part):
    objects: dict[patterns.ShortLine, _Body]


class _Frame(_Part):
    """The first line of each cache file: the settings and the program version for which the file is valid."""

    format: int
    tool: str
    url: str
    trust: str


M = TypeVar("M", bound=BaseModel)


class SeenMemory:
    """The last reading of each repository, kept in memory until its cache file changes.

    Threads may share this object.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[object, ...], SeenRepository | None]] = {}
        self._lock = threading.Lock()

    def repository(self, files: SeenFiles) -> SeenRepository | None:
        """Return `files.repository()`. The file is parsed only if it has changed."""
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
    """The cache files about one repository, in a folder that only this account can use.

    `url` is the address of the repository. `trust` contains the settings that decide which documents are trusted.
    """

    folder: Path
    url: str
    trust: str

    @classmethod
    def of(cls, fleet: FleetSettings, name: str) -> SeenFiles:
        settings = fleet.repository[name]
        return cls(fleet.cache / name, settings.url, settings.encryption.model_dump_json())

    @property
    def manifests(self) -> Path:
        """The folder of the manifests that were read. `repository/catalogue.py` writes its files."""
        return self.folder / "manifests"

    @property
    def _is_private(self) -> bool:
        try:
            status = [folder.lstat() for folder in (self.folder.parent, self.folder)]
        except OSError:
            return False
        own = os.geteuid()
        return all(stat.S_ISDIR(one.st_mode) and one.st_uid == own and not one.st_mode & 0o077 for one in status)

    def prepare(self) -> None:
        """Create the folders for this account only. Raises PreflightError if they belong to another account."""
        for folder in (self.folder.parent, self.folder, self.manifests, self.folder / "objects"):
            make_private(folder)

    def repository(self) -> SeenRepository | None:
        """Return the last reading; None if there is no reading."""
        return self._read("seen.json", SeenRepository)

    def version(self) -> tuple[object, ...] | None:
        """Return a value that changes whenever the stored reading changes; None if there is no reading."""
        try:
            status = (self.folder / "seen.json").stat()
        except OSError:
            return None
        return (self.folder, self._frame(), status.st_ino, status.st_size, status.st_mtime_ns)

    def traces(self, seen: SeenRepository) -> dict[str, Trace]:
        """Return the objects and listings from which the instances in the reading `seen` were read, if known."""
        known = self._read("traces.json", _Dependences)
        if known is None or known.reading != seen.reading:
            return {}
        return {name: Trace(dict(one.listings), dict(one.objects)) for name, one in known.instances.items()}

    def bodies(self, instance: str) -> dict[str, Remembered]:
        """Return the objects that an earlier reading fetched for an instance, by object key."""
        known = self._read(f"objects/{instance}.json", _Bodies)
        if known is None:
            return {}
        return {key: Remembered(one.size, one.tag, one.text.encode()) for key, one in known.objects.items()}

    def keep(self, seen: SeenRepository, traces: dict[str, Trace]) -> None:
        """Replace the stored reading.

        If the file cannot be written, the next run takes longer, but has the same result.
        """
        dependences = {name: _Dependence(listings=one.listings, objects=one.objects) for name, one in traces.items()}
        self._write("seen.json", seen)
        with contextlib.suppress(OSError):
            (self.folder / "failed.json").unlink(missing_ok=True)
        self._write("traces.json", _Dependences(reading=seen.reading, instances=dependences))

    def note_failure(self, error: ZsnapdbError, at: datetime) -> None:
        """Record that the newest reading failed.

        The record stays until a reading succeeds. The last successful reading is kept.
        """
        with contextlib.suppress(ZsnapdbError):
            self.prepare()
            self._write("failed.json", FailedReading(at=at, problem=SeenProblem.of(error)))

    def failure(self) -> FailedReading | None:
        return self._read("failed.json", FailedReading)

    def keep_bodies(self, instance: str, objects: dict[str, Remembered]) -> None:
        """Replace the stored objects of an instance.

        Objects that are not text are left out, so the next run fetches them again.
        """
        texts = {}
        for key, one in objects.items():
            # The object's tag from the store is untrusted too.
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
            files.replace_disposable(self.folder / name, body)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE = 30.0
"""The time in seconds for which an unreachable repository is retried.

The time is short, because a person is waiting for the view.
"""


@dataclass(frozen=True)
class Reading:
    """The present state of a repository.

    `changed` is the number of changed instances, which were read again.
    """

    seen: SeenRepository
    changed: int


@dataclass(frozen=True)
class RepositoryReader:
    """A reader of the repository `name` of a fleet. `host` opens the store and provides the time."""

    name: str
    settings: RepositorySettings
    fleet: FleetSettings
    host: Host

    @property
    def keyring(self) -> Keyring:
        return Keyring.of(self.settings.encryption)

    @functools.cached_property
    def files(self) -> SeenFiles:
        """The files of earlier readings on this host."""
        return SeenFiles.of(self.fleet, self.name)

    def read(self) -> Reading:
        """Read the changed instances, and store the reading.

        Raises:
            RepositoryError: the repository cannot be listed
            PreflightError: the cache belongs to another account
        """
        files, at = self.files, self.host.now()
        files.prepare()
        # Each parallel reader needs its own connection.
        stream = self.settings.stream.model_copy(update={"concurrency": max(3, self.fleet.readers // 2)})
        patience = min(self.settings.patience, PATIENCE)
        own = self.settings.model_copy(update={"stream": stream, "patience": patience})
        store, prefix = self.host.open_store(own, None)
        unopened = Repository(store, prefix, "", self.keyring)
        folders = list(unopened.top_folders())
        names = [name for name in folders if re.fullmatch(patterns.INSTANCE, name)]
        repository = Repository.open(store, prefix, self.keyring, instances=tuple(names))
        past = files.repository()
        before = past if past is not None and past.id == repository.id else None
        known = before.instances if before is not None else {}
        traces = files.traces(before) if before is not None else {}
        results = self._read_all(repository, names, known, traces)
        instances = {one.name: one.seen for one in results if one.seen is not None}
        gone = _vanished_instances(past, instances)
        seen = SeenRepository(
            read=at,
            reading=secrets.token_hex(8),
            id=repository.id,
            is_encrypted=bool(repository.recipients),
            note=repository.note,
            foreign=len(folders) - len(names),
            instances={**gone, **instances},
            problems={
                **{name: SeenProblem.of(self._disappeared(one)) for name, one in gone.items()},
                **{one.name: SeenProblem.of(one.problem) for one in results if one.problem is not None},
            },
        )
        files.keep(seen, {one.name: one.trace for one in results if one.trace is not None})
        return Reading(seen, sum(one.is_new for one in results))

    def _disappeared(self, before: ReadInstance) -> NotFound:
        return NotFound(
            f"nothing of it is in the repository any more, which had {quantity(before.backups, 'backup')} of it at"
            f" {before.read:%Y-%m-%d %H:%M} UTC; if that was wanted, remove {self.files.folder}"
        )

    def _read_all(
        self, repository: Repository, names: list[str], known: Mapping[str, ReadInstance], traces: Mapping[str, Trace]
    ) -> list[_Result]:
        def one(name: str) -> _Result:
            before = known.get(name)
            try:
                return self._read_instance(repository, name, before, traces.get(name))
            except ZsnapdbError as error:
                # If no trace of the instance is stored, the next reading reads the instance again.
                return _Result(name, before, None, error)

        with ThreadPoolExecutor(self.fleet.readers, thread_name_prefix="fleet") as pool:
            return list(pool.map(one, names))

    def _read_instance(
        self, repository: Repository, name: str, before: ReadInstance | None, trace: Trace | None
    ) -> _Result:
        number = evidence_log.newest_number(repository, name, before.evidence if before is not None else 0)
        compared = _Remembering(repository)
        if before is not None and trace is not None and number == before.evidence and compared.store.is_as(trace):
            return _Result(name, before, trace)
        # Do not remember this object, because a reading depends only on the number of the newest evidence record.
        record = evidence_log.record(repository, name, number) if number else None
        written = _Written(number, *((record.finished, record.who.host) if record is not None else (None, "")))
        compared.store.known = self.files.bodies(name)
        seen, store = self._seen(compared.repository, name, written), compared.store
        if seen is not None and seen.health.damage:
            # Read the instance once more, because an object that seems damaged may have been replaced while it was
            # read.
            again = _Remembering(repository)
            again.store.known = store.kept
            seen, store = self._seen(again.repository, name, written), again.store
        if seen is None:
            return _Result(name, None, None)
        # Do not cache manifests, because they may be long, and their summaries are already cached
        # (`repository/catalogue.py`).
        own = {key: one for key, one in store.kept.items() if "/manifests/" not in key}
        self.files.keep_bodies(name, own)
        # Store no trace, because a time in the future becomes a time in the past even if the repository does not
        # change.
        return _Result(name, seen, None if seen.future else store.trace, is_new=True)

    def _seen(self, repository: Repository, name: str, written: _Written) -> ReadInstance | None:
        """Return the instance's state in the repository; None if the repository has no object of this instance."""
        unjudged = self._instance(name, ObjectiveSettings())
        known = unjudged.summaries(repository).backups
        future = from_future((backup.backup_id for backup in known), self.host.latest(), ())
        backups = [backup for backup in known if backup.backup_id not in future]
        newest = backups[-1] if backups else None
        carried = newest.objectives if newest is not None else None
        instance = self._instance(name, judged_by(carried or self.fleet.objectives))
        stored = read(instance, repository)
        status = status_of(instance, stored)
        facts = replace(status.health.facts, at=self.host.now())
        if not (stored.backups or stored.unreadable or stored.archive.incarnations or status.drill or written.number):
            return None
        host = newest.host if newest is not None else ""
        drilled = status.drill.finished if status.drill is not None and status.drill.host in (host, "") else None
        recorded = written.finished if written.host in (host, "") else None
        signs = (*(backup.created for backup in backups), facts.archived_until, drilled, recorded)
        heard = newest_sign(signs, self.host.now())
        ahead = sum(sign is not None and (heard is None or sign > heard) for sign in signs)
        return ReadInstance(
            read=self.host.now(),
            host=host,
            tool_version=newest.tool_version if newest is not None else "",
            server=_server(newest),
            objectives=carried,
            heard=heard,
            oldest_point=_oldest(stored),
            backups=len(backups),
            backup_bytes=sum(backup.stored_size for backup in backups),
            binlog_bytes=sum(file.stored_size for file in stored.archive.files),
            evidence=written.number,
            future=len(future) + ahead,
            health=facts,
        )

    def _instance(self, name: str, objectives: ObjectiveSettings) -> Instance:
        """Return the instance without the records of this host, so that all facts come from the repository."""
        settings = InstanceSettings(repository=self.name, objectives=objectives)
        nothing = Path("/nonexistent")
        host = replace(self.host, cache=self.files.manifests, records=nothing, journals=nothing)
        return Instance(name, settings, self.settings, host=host, is_own_repository=False)


@dataclass(frozen=True)
class _Written:
    """The newest evidence record: its number, or 0 if there is none.

    If the record is trusted, its end time and host are known too.
    """

    number: int
    finished: datetime | None
    host: str


class _Remembering:
    """A repository that fetches each object only once, and the store that keeps the fetched objects."""

    def __init__(self, repository: Repository) -> None:
        layers: list[RememberingStore] = []

        def layer(inner: Store) -> Store:
            layers.append(RememberingStore(inner))
            return layers[0]

        self.repository = repository.through(layer)
        (self.store,) = layers


@dataclass(frozen=True)
class _Result:
    """The state of an instance. If `is_new` is set, the instance had changed and was read again."""

    name: str
    seen: ReadInstance | None
    trace: Trace | None
    problem: ZsnapdbError | None = None
    is_new: bool = False


def _vanished_instances(past: SeenRepository | None, now: Collection[str]) -> dict[str, ReadInstance]:
    """Return the instances that had backups before and have no objects now.

    If these instances were left out, the view would turn from red to green after all backups were destroyed.
    """
    before = past.instances if past is not None else {}
    return {name: one for name, one in before.items() if one.backups and name not in now}


def _oldest(stored: Stored) -> datetime | None:
    if stored.window.ranges:
        # Use integers, because a fraction of a second could move the end of the year 9999 outside the valid dates.
        return _EPOCH + timedelta(microseconds=stored.window.ranges[0].start)
    restorable = stored.restorable
    return restorable[0].created if restorable else None


def _server(newest: Summary | None) -> str:
    if newest is None:
        return ""
    source = newest.source
    if isinstance(source, ServerSourcePart):
        return f"{source.server.flavour} {source.server.version}"
    if isinstance(source, MachineSourcePart):
        return f"machine {source.domain}"
    return source.kind

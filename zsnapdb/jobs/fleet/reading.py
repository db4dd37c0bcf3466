"""Reads all instances of one repository, as far as they have changed since the last reading.

An instance is judged by the code that judges it on its own host; here no host, server or pool is asked. The repository
is only listed and read. Everything in it was written by others: names that are not those of instances are counted and
not read.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from zsnapdb.base.errors import NotThere, ZsnapdbError
from zsnapdb.base.patterns import INSTANCE
from zsnapdb.base.quantities import counted
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.fleet.seen import SeenFiles, SeenInstance, SeenProblem, SeenRepository
from zsnapdb.jobs.health.recoverable import Stored, read
from zsnapdb.jobs.repository.status import status_of
from zsnapdb.planning.fleet.overview import judged_by, newest_sign
from zsnapdb.planning.repository.foreign import from_future
from zsnapdb.repository import evidence_log
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.machine_source import MachineSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.server_source import ServerSourcePart
from zsnapdb.store.base import Store
from zsnapdb.store.remembering import RememberingStore, Trace

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE = 30.0
"""For how many seconds a repository that does not answer is asked again: who looks wants to know now."""


@dataclass(frozen=True)
class Reading:
    """What a repository holds now. `changed` counts the instances that were read anew."""

    seen: SeenRepository
    changed: int


@dataclass(frozen=True)
class RepositoryReader:
    """Reads the repository `name` of a fleet. `host` opens its store and says what time it is."""

    name: str
    settings: RepositorySettings
    fleet: FleetSettings
    host: Host

    @property
    def keyring(self) -> Keyring:
        return Keyring.of(self.settings.encryption)

    @functools.cached_property
    def files(self) -> SeenFiles:
        """What this host keeps of earlier readings."""
        return SeenFiles.of(self.fleet, self.name)

    def read(self) -> Reading:
        """Read what has changed, and keep it.

        RepositoryError if the repository cannot be listed, PreflightError if the cache is another account's.
        """
        files, at = self.files, self.host.now()
        files.prepare()
        # Each reader has a connection of its own.
        stream = self.settings.stream.model_copy(update={"concurrency": max(3, self.fleet.readers // 2)})
        patience = min(self.settings.patience, PATIENCE)
        own = self.settings.model_copy(update={"stream": stream, "patience": patience})
        store, prefix = self.host.open_store(own, None)
        unopened = Repository(store, prefix, "", self.keyring)
        folders = list(unopened.top_folders())
        names = [name for name in folders if re.fullmatch(INSTANCE, name)]
        repository = Repository.open(store, prefix, self.keyring, instances=tuple(names))
        past = files.repository()
        before = past if past is not None and past.id == repository.id else None
        known = before.instances if before is not None else {}
        traces = files.traces(before) if before is not None else {}
        results = self._read_all(repository, names, known, traces)
        instances = {one.name: one.seen for one in results if one.seen is not None}
        gone = _gone(past, instances)
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

    def _disappeared(self, before: SeenInstance) -> NotThere:
        return NotThere(
            f"nothing of it is in the repository any more, which had {counted(before.backups, 'backup')} of it at"
            f" {before.read:%Y-%m-%d %H:%M} UTC; if that was wanted, remove {self.files.folder}"
        )

    def _read_all(
        self, repository: Repository, names: list[str], known: Mapping[str, SeenInstance], traces: Mapping[str, Trace]
    ) -> list[_Result]:
        def one(name: str) -> _Result:
            before = known.get(name)
            try:
                return self._read_instance(repository, name, before, traces.get(name))
            except ZsnapdbError as error:
                # Without a trace it is read anew next time.
                return _Result(name, before, None, error)

        with ThreadPoolExecutor(self.fleet.readers, thread_name_prefix="fleet") as pool:
            return list(pool.map(one, names))

    def _read_instance(
        self, repository: Repository, name: str, before: SeenInstance | None, trace: Trace | None
    ) -> _Result:
        number = evidence_log.newest_number(repository, name, before.evidence if before is not None else 0)
        compared = _Remembering(repository)
        if before is not None and trace is not None and number == before.evidence and compared.store.is_as(trace):
            return _Result(name, before, trace)
        # Not through the memory: a reading does not depend on it but for its number.
        record = evidence_log.record(repository, name, number) if number else None
        written = _Written(number, *((record.finished, record.who.host) if record is not None else (None, "")))
        compared.store.known = self.files.bodies(name)
        seen, store = self._seen(compared.repository, name, written), compared.store
        if seen is not None and seen.health.damage:
            # What seems to be damaged may have been replaced while it was read.
            again = _Remembering(repository)
            again.store.known = store.kept
            seen, store = self._seen(again.repository, name, written), again.store
        if seen is None:
            return _Result(name, None, None)
        # Manifests may be long. Their summaries are kept already (`repository/catalogue.py`).
        own = {key: one for key, one in store.kept.items() if "/manifests/" not in key}
        self.files.keep_bodies(name, own)
        # What is from the future counts when its time has come, although nothing changes in the repository.
        return _Result(name, seen, None if seen.future else store.trace, is_new=True)

    def _seen(self, repository: Repository, name: str, written: _Written) -> SeenInstance | None:
        """Return what the repository holds of the instance, None if there is nothing of it."""
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
        return SeenInstance(
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
        """Return the instance as this repository alone shows it. This host remembers nothing of it."""
        settings = InstanceSettings(repository=self.name, objectives=objectives)
        nothing = Path("/nonexistent")
        host = replace(self.host, cache=self.files.manifests, records=nothing, journals=nothing)
        return Instance(name, settings, self.settings, host=host, is_own_repository=False)


@dataclass(frozen=True)
class _Written:
    """The number of the newest record of evidence (0: there is none).

    If it can be believed: when its run ended, and on which host.
    """

    number: int
    finished: datetime | None
    host: str


class _Remembering:
    """A repository whose objects are asked for once, and the store that does it."""

    def __init__(self, repository: Repository) -> None:
        layers: list[RememberingStore] = []

        def layer(inner: Store) -> Store:
            layers.append(RememberingStore(inner))
            return layers[0]

        self.repository = repository.through(layer)
        (self.store,) = layers


@dataclass(frozen=True)
class _Result:
    """What is known of an instance after it was looked at. `is_new`: it was read, because something had changed."""

    name: str
    seen: SeenInstance | None
    trace: Trace | None
    problem: ZsnapdbError | None = None
    is_new: bool = False


def _gone(past: SeenRepository | None, now: Collection[str]) -> dict[str, SeenInstance]:
    """Return the instances of which there were backups, and now there is nothing.

    Whoever destroys what could be restored would else turn red into green.
    """
    before = past.instances if past is not None else {}
    return {name: one for name, one in before.items() if one.backups and name not in now}


def _oldest(stored: Stored) -> datetime | None:
    """Return the first point that can be restored."""
    if stored.window.ranges:
        # By whole numbers: as a fraction the last moments of the year 9999 are in no year of a date.
        return _EPOCH + timedelta(microseconds=stored.window.ranges[0].start)
    restorable = stored.restorable
    return restorable[0].created if restorable else None


def _server(newest: Summary | None) -> str:
    """Return the kind and the version of what was backed up."""
    if newest is None:
        return ""
    source = newest.source
    if isinstance(source, ServerSourcePart):
        return f"{source.server.flavour} {source.server.version}"
    if isinstance(source, MachineSourcePart):
        return f"machine {source.domain}"
    return source.kind

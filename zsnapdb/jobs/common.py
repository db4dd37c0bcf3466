"""What several jobs do the same way: open a session or a repository, tell progress, know local snapshot sets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.config import InstanceSettings, KeepSettings, RepositorySettings, Settings
from zsnapdb.errors import ConfigError, PreflightError
from zsnapdb.hooks import Hook, OnFailure, When
from zsnapdb.model import PROPERTY, SNAPSHOT_PREFIX, Progress, Snapshot, SnapshotSet, is_backup_id, new_backup_id
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.chain import ChainPolicy
from zsnapdb.repository.catalogue import Cache, Summaries, summaries
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.lease import lease
from zsnapdb.repository.repository import Repository
from zsnapdb.store.open import open_store
from zsnapdb.stream.chunks import Codec
from zsnapdb.stream.upload import UploadSettings
from zsnapdb.zfs import snapshots
from zsnapdb.zfs.streams import SEND_FLAGS

BACKUP_PROPERTY = f"{PROPERTY}:backup"
INSTANCE_PROPERTY = f"{PROPERTY}:instance"
POSITION_PROPERTY = f"{PROPERTY}:position"
STATE_PROPERTY = f"{PROPERTY}:state"
LOCK_PROPERTY = f"{PROPERTY}:lock"
VERSION_PROPERTY = f"{PROPERTY}:version"
REPOSITORY_PROPERTY = f"{PROPERTY}:repository"
"""The id of the repository that has the backup, set when it does."""
TAKEN = "taken"
"""State of a snapshot set from the command that makes it on: its backup is not in the repository yet."""
STORED = "stored"
"""State of a snapshot set whose backup is in the repository."""
LIVE = "live"
"""State of a snapshot set that was taken for a clone and is no backup."""

BASE_TAG = f"{PROPERTY}:base"
"""Hold tag of a snapshot that a running backup is an increment of."""

FIRST_LEVEL = 3
"""The zstd level that `level = "auto"` begins with."""

RUN_FOLDER = Path("/run/zsnapdb")

CACHE_FOLDER = Path("/var/cache/zsnapdb")
"""Holds nothing that the repositories do not hold; may be removed at any time."""

Report = Callable[[Progress], None]

Tell = Callable[[str], None]
"""Takes one line for the person who waits: what is going on and why it takes longer."""


def _silent(_text: str) -> None:
    pass


@dataclass(frozen=True)
class Instance:
    """A configured instance with the repository it backs up to; `tell` hears what is worth knowing about that one."""

    name: str
    settings: InstanceSettings
    repository: RepositorySettings
    tell: Tell = _silent

    @classmethod
    def of(cls, settings: Settings, name: str | None, tell: Tell = _silent) -> Instance:
        """Return the named (or only) instance. ConfigError if it is not configured."""
        found, instance = settings.one_instance(name)
        return cls(found, instance, settings.repository[instance.repository], tell)

    @classmethod
    def at(cls, settings: Settings, name: str | None, repository: str | None, tell: Tell = _silent) -> Instance:
        """Return the instance as it is in the named repository (None: its own), where the keep rules of that one come first."""
        own = cls.of(settings, name, tell)
        if repository is None or repository == own.settings.repository:
            return own
        if repository not in settings.repository:
            raise ConfigError(f"repository {repository!r} is not configured", hint=f"known: {', '.join(sorted(settings.repository))}")
        other = settings.repository[repository]
        return replace(own, settings=own.settings.model_copy(update={"repository": repository, "keep": other.keep or own.settings.keep}), repository=other)

    def keep_rules(self) -> KeepSettings:
        """Return the rules by which its backups are kept: its own, else those of its repository. ConfigError if there are none."""
        found = self.settings.keep or self.repository.keep
        if found is None:
            raise ConfigError(
                f"instance {self.name} has no keep rules, so none of its backups is ever removed",
                hint=f"say which stay in [instance.{self.name}.keep], such as last = 7",
            )
        return found

    @property
    def volumes(self) -> Mapping[str, str]:
        """Its volumes, role to dataset. PreflightError where they are not configured and nobody has looked yet."""
        if self.settings.volumes is None:
            raise PreflightError(
                f"the volumes of instance {self.name} are not configured, and its server was not asked for them", hint="name them under volumes"
            )
        return self.settings.volumes

    def with_volumes(self, volumes: Mapping[str, str]) -> Instance:
        """Return the instance with these volumes, as found on its server or in a backup."""
        return replace(self, settings=self.settings.model_copy(update={"volumes": dict(volumes)}))

    def hooks(self) -> tuple[Hook, ...]:
        """Return its hooks in the order of the configuration."""
        return tuple(Hook(When(h.when), h.run, h.timeout, OnFailure(h.on_failure)) for h in self.settings.hooks)

    def chain_policy(self) -> ChainPolicy:
        """Return when its next backup is a full one."""
        chain = self.settings.chain
        return ChainPolicy(chain.full_every or None, chain.longest or None)

    @property
    def address(self) -> Address:
        """How its server is reached."""
        s = self.settings
        return Address(user=s.user, socket=s.socket, host=s.host or "127.0.0.1", port=s.port)

    def session(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session to its server."""
        return Session.open(self.address, self.settings.password(), read_timeout=read_timeout)

    def open_repository(self) -> Repository:
        """Open its repository; NotThere if there is none yet. One that has lost its marker is opened from the instance's manifests."""
        found = Repository.open(*open_store(self.repository, self.tell), Keyring.of(self.repository.encryption), instances=(self.name,))
        if found.note:
            self.tell(found.note)
        return found

    def open_or_create_repository(self) -> Repository:
        """Open its repository, making its marker if there is none yet."""
        store, prefix = open_store(self.repository, self.tell)
        return Repository.open_or_create(store, prefix, secrets.token_hex(8), Keyring.of(self.repository.encryption), instances=(self.name,))

    def send_flags(self) -> tuple[str, ...]:
        """Return the options of its `zfs send`."""
        return SEND_FLAGS[self.repository.stream.send]

    def summaries(self, repository: Repository) -> Summaries:
        """Return its backups there, without their chunk tables; what was read of them once is known on this host."""
        return summaries(repository, self.name, Cache.of(CACHE_FOLDER, repository, self.name))

    def upload_settings(self) -> UploadSettings:
        """Return how its streams are cut and compressed."""
        stream = self.repository.stream
        level, adaptive = (FIRST_LEVEL, True) if stream.level == "auto" else (stream.level, False)
        codec = Codec.NONE if level == 0 or stream.send == "compressed" else Codec.ZSTD
        return UploadSettings(stream.chunk_size, codec, level, stream.concurrency, adaptive)


@contextlib.contextmanager
def exclusive(name: str, *, doing: str, patience: float = 0.0) -> Iterator[None]:
    """Be the only one on this host at what `name` stands for. PreflightError if another run is at it for `patience` seconds."""
    try:
        RUN_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        opened = (RUN_FOLDER / f"{name.replace('/', '-')}.lock").open("a+")
    except OSError as error:
        raise PreflightError(f"making a lock file in {RUN_FOLDER}: {error.strerror}", hint="run zsnapdb as root, or make the folder for its account") from error
    deadline = time.monotonic() + patience
    with opened as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    raise PreflightError(
                        f"another zsnapdb (process {file.read().strip() or 'unknown'}) is {doing}", hint="let it end, or look at it with `ps`"
                    ) from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def writing(instance: Instance, repository: Repository, doing: str, tell: Tell) -> Iterator[Callable[[], None]]:
    """Be the only one, on all hosts, who changes the instance's part of the repository. Yields what raises LeaseError once that is lost."""
    with (
        exclusive(f"backup-{instance.name}", doing=f"{doing} instance {instance.name}"),
        lease(repository, f"{instance.name}/writer", doing=f"{doing} {instance.name}", tell=tell) as held,
    ):
        yield held.check


def now() -> datetime:
    """Return the time, UTC. The only clock of the jobs."""
    return datetime.now(UTC)


def fresh_backup_id() -> str:
    """Return a new backup id for now."""
    return new_backup_id(now(), secrets.randbits(16))


def snapshot_name(backup_id: str) -> str:
    """Return the short name of a backup's snapshots."""
    return f"{SNAPSHOT_PREFIX}{backup_id}"


def local_sets(instance: Instance, *states: str) -> list[SnapshotSet]:
    """Return the instance's whole snapshot sets on this host, oldest first.

    A set counts if it is in one of the states (its backup was stored, if none is named), every volume has its member, and all are of one transaction group.
    """
    whole = []
    members_by_id = {backup_id: members for state in states or (STORED,) for backup_id, members in _members(instance, state).items()}
    for backup_id, members in sorted(members_by_id.items()):
        if set(members) == set(instance.volumes) and len({s.createtxg for s in members.values()}) == 1:
            whole.append(SnapshotSet(backup_id, members))
    return whole


def unfinished(instance: Instance) -> dict[str, list[str]]:
    """Return the snapshots, by backup id, that an interrupted backup left behind (or a running one is working on)."""
    return {backup_id: [s.full_name for s in members.values()] for backup_id, members in sorted(_members(instance, TAKEN).items())}


def _members(instance: Instance, state: str) -> dict[str, dict[str, Snapshot]]:
    """Return the instance's own snapshots in that state: by backup id and role."""
    by_id: dict[str, dict[str, Snapshot]] = {}
    for role, dataset in instance.volumes.items():
        for owned in snapshots.owned(dataset, [BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY]):
            found = owned.properties
            # The name must fit too: snapshots inherit the properties of their dataset, and a restored one carries some of these.
            is_own = owned.snapshot.name == snapshot_name(found[BACKUP_PROPERTY]) and is_backup_id(found[BACKUP_PROPERTY])
            if is_own and (found[INSTANCE_PROPERTY], found[STATE_PROPERTY]) == (instance.name, state):
                by_id.setdefault(found[BACKUP_PROPERTY], {})[role] = owned.snapshot
    return by_id


@contextlib.contextmanager
def undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails. The block's own error is what is raised; a failure of `undo` is noted on it."""
    try:
        yield
    except BaseException as error:
        try:
            undo()
        except Exception as second:
            error.add_note(f"and while undoing what was begun: {second}")
        raise


def find_set(instance: Instance, wanted: str) -> SnapshotSet:
    """Return the local snapshot set `wanted`: a backup id or `latest`. PreflightError names what there is."""
    sets = local_sets(instance)
    if not sets:
        raise PreflightError(f"no local snapshot set of instance {instance.name}", hint="make one: `zsnapdb backup`")
    if wanted == "latest":
        return sets[-1]
    for found in sets:
        if found.backup_id == wanted:
            return found
    newest = ", ".join(s.backup_id for s in sets[-5:])
    raise PreflightError(
        f"no local snapshot set {wanted} of instance {instance.name}", hint=f"the newest are {newest}; a backup only in the repository needs `zsnapdb restore`"
    )

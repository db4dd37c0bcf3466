"""Repositories of many hosts in folders, without any host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.unit.support.drilled import evidence as drilled
from tests.unit.support.manifests import manifest
from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.config import fleet as fleet_config
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.repository import fleet_status
from zsnapdb.jobs.repository.fleet_status import FleetRequest, FleetState
from zsnapdb.repository import drills
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.manifest import Manifest, ObjectivesPart
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Store, StoredObject
from zsnapdb.store.layers import Layer, open_store

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)


class CountingStore(Layer):
    """A store that counts its requests and records the objects that are read."""

    def __init__(self, inner: Store, asked: Counter[str], read: list[str]) -> None:
        super().__init__(inner)
        self.asked, self.read = asked, read

    def get(self, key: str) -> bytes:
        self.asked["get"] += 1
        self.read.append(key)
        return self.inner.get(key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self.asked["list"] += 1
        return self.inner.list(prefix)


@dataclass
class FleetYard:
    """A machine that shows a fleet, and the repositories of that fleet."""

    folder: Path
    names: Sequence[str] = ("here", "there")
    now: datetime = NOW
    more: str = ""
    keys: str = ""
    """A line in the table of each repository."""
    keys_of: dict[str, str] = field(default_factory=dict)
    """The same for one repository."""
    asked: Counter[str] = field(default_factory=Counter)
    read: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.names:
            (self.folder / name).mkdir()

    def repository(self, name: str = "here", keyring: Keyring | None = None) -> Repository:
        """Open the repository for writing."""
        store, prefix = open_store(RepositorySettings(url=f"file://{self.folder / name}"))
        return Repository.open_or_create(store, prefix, f"id-{name}", keyring)

    def backup(
        self,
        instance: str,
        hours: float,
        *,
        name: str = "here",
        host: str = "db-1",
        objectives: ObjectiveSettings | None = None,
        keyring: Keyring | None = None,
    ) -> Manifest:
        """Store a backup of that age. `objectives` None: it has none, as from an older zsnapdb."""
        repository, at = self.repository(name, keyring), self.now - timedelta(hours=hours)
        number = len(repository.backup_ids(instance))
        backup_id = new_backup_id(at, number)
        changes = {
            "repository_id": repository.id,
            "created": at,
            "createtxg": number + 1,
            "host": host if objectives is not None else "",
            "objectives": ObjectivesPart.of(objectives) if objectives is not None else None,
        }
        example = manifest(backup_id, instance)
        volumes = tuple(one.model_copy(update={"guid": number + 1}) for one in example.volumes)
        made = example.model_copy(update={**changes, "volumes": volumes})
        repository.commit(made)
        return made

    def drill(self, instance: str, hours: float, outcome: Outcome, name: str = "here", host: str = "lab-1") -> None:
        """Store the evidence of a drill that ended `hours` ago."""
        repository, at = self.repository(name), self.now - timedelta(hours=hours)
        made = drilled(outcome, repository.id, new_backup_id(at, 0))
        drills.write(
            repository, made.model_copy(update={"instance": instance, "host": host, "started": at, "finished": at})
        )

    @property
    def settings(self) -> FleetSettings:
        return fleet_config.parse(self.text(), "test")

    def text(self) -> str:
        lines = [f'cache = "{self.folder / "cache"}"', self.more]
        for name in self.names:
            lines += [
                f"[repository.{name}]",
                f'url = "file://{self.folder / name}"',
                "patience = 0",
                self.keys_of.get(name, self.keys),
            ]
        return "\n".join(lines)

    def status(self, *filters: str, order: str = "red", cached: bool = False) -> FleetState:
        """Return the state of the fleet. Afterwards `asked` has the requests."""
        self.asked.clear()
        self.read.clear()

        def opened(settings: RepositorySettings, tell: object) -> tuple[Store, str]:
            store, prefix = open_store(settings)
            return CountingStore(store, self.asked, self.read), prefix

        host = Host(now=lambda: self.now, open_store=opened)
        return fleet_status.status(self.settings, FleetRequest.parse(filters, order, cached=cached), host)

"""Backups of a server with simulated binlogs, in the repository of its archive."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.manifests import manifest
from tests.unit.support.stored_backups import Site
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import GtidSet
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository.protection_status import ProtectionStatus, status
from zsnapdb.jobs.restore import plan
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.mysql.binlog.tail import head_fingerprint
from zsnapdb.mysql.process import server as programs
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.server_facts import ServerPlugins
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.manifest_source import PositionPart, ServerPart, ServerSourcePart
from zsnapdb.zfs import datasets


@dataclass
class ProtectedServer:
    """A server, its archive and its backups. The host's clock stays one minute after the last change."""

    server: Server
    site: Site
    backups: list[str] = field(default_factory=list)
    objectives: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    plugins: ServerPlugins | None = None

    @classmethod
    def make(cls, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_gtids: bool = True) -> ProtectedServer:
        """Return a new server. Plans of restores find one empty pool, and a server program."""
        monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
        monkeypatch.setattr(datasets, "exists", lambda dataset: dataset == "tank")
        monkeypatch.setattr(programs, "find_binary", lambda *_: Path("/usr/sbin/mysqld"))
        monkeypatch.setattr(programs, "account", lambda *_: None)
        server = Server(folder, has_gtids=has_gtids, is_encrypted=False)
        return cls(server, Site(folder / "store", is_after_examples=True))

    def instance(self) -> Instance:
        self.site.ahead = datetime.fromtimestamp(self.server.clock + 60, UTC) - datetime.now(UTC)
        instance = self.site.instance()
        settings = instance.settings.model_copy(update={"objectives": self.objectives})
        return replace(instance, settings=settings)

    def back_up(self) -> str:
        """Store a full backup of the server, one second after its last transaction. Return its id."""
        server, number = self.server, len(self.backups)
        server.clock += 1
        made = datetime.fromtimestamp(server.clock, UTC)
        name = f"{made:%Y%m%dT%H%M%SZ}-{number:04x}"
        like = manifest(name)
        gtids = GtidSet.parse(f"{server.uuid}:1-{server.executed}") if server.executed else GtidSet()
        source = ServerSourcePart(
            server=ServerPart(
                flavour=Flavour.MYSQL,
                version="9.7.4",
                server_uuid=server.uuid,
                server_id=1,
                variables=VARIABLES,
                plugins=self.plugins,
            ),
            position=PositionPart(
                binlog_file=f"binlog.{server.number:06d}",
                binlog_offset=len(server.newest.data),
                gtids=str(gtids),
                source="tail",
                binlog_fingerprint=self._head(),
            ),
            lock=like.source.lock,  # type: ignore[union-attr]
        )
        volume = like.volumes[0].model_copy(update={"guid": number + 1})
        repository = self.instance().open_or_create_repository()
        repository.commit(
            like.model_copy(
                update={
                    "repository_id": repository.id,
                    "created": made,
                    "source": source,
                    "createtxg": number + 1,
                    "volumes": (volume,),
                }
            )
        )
        self.backups.append(name)
        return name

    def _head(self) -> str | None:
        name = f"binlog.{self.server.number:06d}"
        with (self.server.folder / name).open("rb") as opened:
            return head_fingerprint(opened, name)

    def back_up_from_here(self) -> str:
        """Store a backup as `back_up` does, and record it on this host."""
        name = self.back_up()
        instance, repository = self.instance(), self.instance().open_repository()
        host_backup_record.note_stored(instance, repository, *repository.digested_manifest("main", name))
        return name

    def look(self) -> None:
        """Archive the server's binlogs from this host."""
        archive = BinlogArchive(self.instance().open_or_create_repository(), "main")
        self.server.archiver(among=archive).look()

    def status(self) -> ProtectionStatus:
        return status(self.instance())

    def plan(self, to: str = "latest", **options: bool | str) -> RestorePlan:
        """Return the plan of `restore --plan`."""
        instance = self.instance()
        request = RestoreRequest(to=to, **options)  # type: ignore[arg-type]
        return plan.make(parse(self.site.text(), "test"), instance, instance.open_repository(), request)

    def objects(self, text: str) -> list[Path]:
        """Return the files of the repository's objects whose key contains `text`, in order."""
        folder = self.site.folder
        return sorted(path for path in folder.rglob("*") if path.is_file() and text in str(path.relative_to(folder)))


VARIABLES = {"datadir": "/var/lib/mysql/data/", "log_bin_basename": "/var/lib/mysql/data/binlog"}

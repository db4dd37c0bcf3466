"""A host that plans restores and records the executed plans."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.unit.support.manifests import manifest
from tests.unit.support.stored_backups import Site, id_of
from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import NotFound
from zsnapdb.config import settings
from zsnapdb.jobs.base import host as jobs_host
from zsnapdb.jobs.base import run_locks
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import source_fetch
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore import server_restore as restoring
from zsnapdb.jobs.restore import startup_steps
from zsnapdb.jobs.restore.handover import CompletedHandover
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.startup_steps import ServerWork
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.planning.backup.dataset_encryption import CLEAR
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import HandoverStep, MakeTop, MountVolumes, Preflight, Receive, Recover
from zsnapdb.repository import layout
from zsnapdb.repository.manifest_source import ServerSourcePart
from zsnapdb.zfs import datasets, encryption, snapshots

NOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
BACKUPS = [id_of(number, NOW, 3, timedelta(days=1)) for number in range(3)]
VARIABLES = {"datadir": "/var/lib/mysql/data/", "innodb_page_size": "16384"}


@dataclass
class PlanningHost:
    """A host with a pool and no server that records the plans whose steps it runs."""

    site: Site
    folder: Path
    datasets: set[str] = field(default_factory=lambda: {"tank"})
    executed: list[RestorePlan] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    plans_made: int = 0

    @property
    def settings(self) -> settings.Settings:
        restore = f'[restore]\nmount_root = "{self.folder}/mnt"\njournal = "{self.folder}/journal"\n'
        clones = f'[clones]\nmount_root = "{self.folder}/clones"\n'
        return settings.parse(self.site.text() + restore + clones, "test")

    @property
    def instance(self) -> Instance:
        return self.site.instance()

    def store(self, backup_id: str, createtxg: int = 2, gtids: str | None = None) -> None:
        """Store a full backup with this transaction group and these GTIDs (None: 0-1-2)."""
        repository = self.instance.open_or_create_repository()
        made = manifest(backup_id)
        assert isinstance(made.source, ServerSourcePart)
        server = made.source.server.model_copy(update={"variables": VARIABLES})
        position = made.source.position.model_copy(update={} if gtids is None else {"gtids": gtids})
        source = made.source.model_copy(update={"server": server, "position": position})
        repository.commit(
            made.model_copy(update={"repository_id": repository.id, "source": source, "createtxg": createtxg})
        )

    def remove(self, backup_id: str) -> None:
        """Remove a backup's manifest from the repository."""
        self.instance.open_repository().delete(layout.manifest("main", backup_id))

    def note(self, work: ServerWork, step: Any) -> None:
        """Record the executed plan, and the backup that a step receives."""
        self.executed.append(work.plan)
        if isinstance(step, Receive):
            self.received.append(step.backup_id)

    def plan(self, to: str = "latest-backup", **named: Any) -> RestorePlan:
        request = RestoreRequest(to, **named)
        return restore_plan.make(self.settings, self.instance, self.instance.open_repository(), request)


def no_snapshot(names: Sequence[str]) -> list[Snapshot]:
    """Answer for a host without any snapshot of a backup."""
    raise NotFound(f"{names[0]} does not exist")


def planning_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanningHost:
    """Return a host with one backup in its repository. Its steps change nothing and are only recorded."""
    made = PlanningHost(Site(tmp_path / "store", is_after_examples=True), tmp_path)
    for name in ("run", "store"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(run_locks, "THIS_HOST", jobs_host.Host(run=tmp_path / "run"))
    monkeypatch.setattr(datasets, "exists", lambda name: name in made.datasets)
    monkeypatch.setattr(encryption, "at_rest", lambda names: dict.fromkeys(names, CLEAR))
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(snapshots, "describe", no_snapshot)
    monkeypatch.setattr(
        "zsnapdb.mysql.process.server.find_binary", lambda configured, flavour: Path("/usr/sbin/mariadbd")
    )
    monkeypatch.setattr("zsnapdb.mysql.process.process_managers.version_of", lambda binary: "11.8.6-MariaDB")
    monkeypatch.setattr("zsnapdb.mysql.process.server.account", lambda user: (0, 0))
    monkeypatch.setattr("zsnapdb.mysql.process.programs.find", lambda *words: Path("/usr/bin/program"))
    plan_one = restore_plan.make

    def make(*words: Any) -> RestorePlan:
        made.plans_made += 1
        return plan_one(*words)

    monkeypatch.setattr(restore_plan, "make", make)
    monkeypatch.setattr(source_fetch, "make", make)

    def remember(work: ServerWork, step: Any) -> Any:
        made.note(work, step)
        return []

    noted = dict.fromkeys((Preflight, MakeTop, Receive, MountVolumes, Recover), remember)
    handed_over = dict.fromkeys(get_args(HandoverStep), lambda work, step: CompletedHandover(None))
    handlers = {**restoring.HANDLERS, **noted, **handed_over}
    monkeypatch.setattr(restoring, "SERVER", replace(restoring.SERVER, handlers=handlers))
    monkeypatch.setattr(restoring, "leave_to_trial", lambda work, step: CompletedHandover(None))
    monkeypatch.setattr(restoring, "preflight", remember)
    monkeypatch.setattr("zsnapdb.jobs.restore.preflight.preflight", remember)
    monkeypatch.setattr(startup_steps, "remove_all", lambda plan, copy: None)
    monkeypatch.setattr(restoring, "remove_all", lambda plan, copy: None)
    monkeypatch.setattr(scratch_datasets, "ephemeral", lambda *words: contextlib.nullcontext())
    monkeypatch.setattr("zsnapdb.zfs.version.userland", lambda: "zfs-2.3.9")
    made.store(BACKUPS[0])
    return made

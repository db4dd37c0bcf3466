"""The host of the tests of setup."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.support.setup_host import PROCESS, FakeHost, FakeSession, LookingSession
from zsnapdb.jobs.backup import preflight
from zsnapdb.jobs.backup.preflight import Examined
from zsnapdb.jobs.setup import discovery as job
from zsnapdb.jobs.setup import later_steps
from zsnapdb.jobs.setup import steps as setup_steps
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.trial import host_needs
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import RootObservation
from zsnapdb.planning.backup.dataset_encryption import CLEAR
from zsnapdb.planning.setup import layout
from zsnapdb.zfs import command, datasets, encryption, version
from zsnapdb.zfs.mounts import MountEntry


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHost:
    """A host on which nothing of zsnapdb is."""
    fake = FakeHost(tmp_path)
    (tmp_path / "backups").mkdir()
    FakeSession.host = fake
    (tmp_path / "cron.d").mkdir()
    for module in (job, layout):
        monkeypatch.setattr(module, "CRON_FOLDER", str(tmp_path / "cron.d"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(discovery, "server_processes", lambda: [PROCESS])
    monkeypatch.setattr(discovery, "seen_by_root", lambda socket: RootObservation(16384, False, False))
    monkeypatch.setattr(job, "greeting", lambda address: "8.4.6")
    monkeypatch.setattr(job, "find_binary", lambda configured, flavour: Path("/opt/x/mysqld"))
    monkeypatch.setattr(job, "mounted", lambda: [MountEntry("/var/lib/mysql/data", "zfs", "tank/mysql/data")])
    monkeypatch.setattr(encryption, "at_rest", lambda names: dict.fromkeys(names, CLEAR))
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(datasets, "available", lambda name: 1 << 40)
    monkeypatch.setattr(datasets, "exists", lambda name: False)
    monkeypatch.setattr(move_state, "journal", lambda: tmp_path / "no-move.json")
    monkeypatch.setattr(version, "kernel_release", lambda: (2, 3, 4))
    monkeypatch.setattr(setup_steps, "Session", FakeSession)
    monkeypatch.setattr(later_steps, "Session", LookingSession)
    monkeypatch.setattr(preflight, "examine", lambda instance, session: Examined((), None))
    monkeypatch.setattr(later_steps, "moved_fitness", lambda session, socket: [])
    monkeypatch.setattr(host_needs, "judge_host", lambda *about, **more: [])
    monkeypatch.setattr(host_needs, "judge_room", lambda *about: [])
    monkeypatch.setattr(host_needs, "referenced", lambda volumes: 0)
    monkeypatch.setattr(setup_steps, "exclusive", lambda name, doing: (tmp_path / "lock").open("a"))

    def run(argv: Sequence[str]) -> str:
        fake.step(" ".join(argv))
        fake.commands.append(" ".join(argv))
        return ""

    monkeypatch.setattr(command, "run", run)
    return fake

"""What setup writes on a host: an identity, and a configuration that is valid; nothing that is there is overwritten."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.config import load
from zsnapdb.errors import PreflightError
from zsnapdb.jobs import setup as job
from zsnapdb.model import Flavour
from zsnapdb.mysql import discovery
from zsnapdb.mysql.discovery import ServerProcess
from zsnapdb.planning.setup.facts import SetupAnswers
from zsnapdb.report.setup import SetupPlanView, SetupView
from zsnapdb.zfs import datasets, version
from zsnapdb.zfs.mounts import MountEntry

PROCESS = ServerProcess(812, "mysql", "/usr/sbin/mariadbd", ("/run/m.sock",), "/var/lib/mysql/data")
ANSWERS = SetupAnswers("file:///srv/backups")


@pytest.fixture
def configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with a pool and one MariaDB on it, and the path of a configuration that is not there."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(discovery, "server_processes", lambda: [PROCESS])
    monkeypatch.setattr(discovery, "page_size", lambda socket: 16384)
    monkeypatch.setattr(job, "greeting", lambda address: "5.5.5-11.8.2-MariaDB")
    monkeypatch.setattr(job, "mounted", lambda: [MountEntry("/var/lib/mysql/data", "zfs", "tank/mysql/data")])
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(datasets, "available", lambda name: 1 << 40)
    monkeypatch.setattr(version, "kernel_release", lambda: (2, 3, 4))
    return tmp_path / "etc" / "zsnapdb.toml"


def test_setup_writes_a_configuration_and_an_identity_that_belong_together(configuration: Path) -> None:
    result = job.setup(ANSWERS, configuration)
    settings = load(configuration)
    encryption = settings.repository["backups"].encryption
    assert encryption.recipients == (result.recipient,)
    assert encryption.identity_file == configuration.parent / "identity"
    assert (settings.instance["main"].user, str(settings.instance["main"].socket)) == ("root", "/run/m.sock")
    assert [oct(file.stat().st_mode & 0o777) for file in sorted(configuration.parent.iterdir())] == ["0o600", "0o640"]
    text = SetupView(result).text()
    assert f"its recipient is {result.recipient}" in text
    assert "Keep a copy where this host is not" in text
    assert (configuration.parent / "identity").read_text().split()[-1] not in text, "the secret itself is not printed"


def test_a_plan_changes_nothing_and_shows_every_step(configuration: Path) -> None:
    view = SetupPlanView(job.plan(ANSWERS, configuration))
    assert not configuration.parent.exists()
    for word in ("mariadb 5.5.5-11.8.2-MariaDB, process 812", "tank/mysql/data: they stay there", "zsnapdb drill main"):
        assert word in view.text()
    assert json.loads(view.document())["server"]["flavour"] == "mariadb"


def test_what_is_there_is_not_overwritten(configuration: Path) -> None:
    job.setup(ANSWERS, configuration)
    before = {file: file.read_bytes() for file in configuration.parent.iterdir()}
    with pytest.raises(PreflightError, match="is there already"):
        job.setup(ANSWERS, configuration)
    assert {file: file.read_bytes() for file in configuration.parent.iterdir()} == before


def test_a_configuration_of_comments_alone_is_replaced(configuration: Path) -> None:
    configuration.parent.mkdir()
    configuration.write_text("# The configuration of zsnapdb.\n\n")
    job.setup(replace(ANSWERS, encrypt=False), configuration)
    assert load(configuration).repository["backups"].encryption.recipients == ()


def test_an_answer_that_makes_no_valid_configuration_leaves_no_file(configuration: Path) -> None:
    with pytest.raises(Exception, match="neither s3://"):
        job.setup(replace(ANSWERS, repository="ftp://x"), configuration)
    assert list(configuration.parent.iterdir()) == []


def test_only_root_sees_every_server(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreflightError, match="sockets of every server"):
        job.plan(ANSWERS, configuration)


def test_a_server_that_says_nothing_is_known_by_its_program(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "server_processes", lambda: [replace(PROCESS, sockets=())])
    (server,) = job.gather(configuration).servers
    assert (server.flavour, server.version, server.page_size) == (Flavour.MARIADB, None, None)

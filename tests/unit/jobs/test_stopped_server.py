"""A server that does not answer is explained by the same facts and the same hint in every command."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import NotFound, ServerError
from zsnapdb.jobs.backup.server_source import open_server
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog import archive_run, purge, undo
from zsnapdb.jobs.host import volume_space
from zsnapdb.jobs.record import server_unit_record
from zsnapdb.jobs.record.server_unit_record import ServiceRecord, stopped_server
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.session import UNREACHABLE_HINT, Address, Session, _classified
from zsnapdb.planning.health.facts import MissingReason
from zsnapdb.zfs import datasets, mounts
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import MountEntry

FAKE = """#!/bin/sh
[ "$2" = --version ] && echo "$0  Ver 11.8.3-MariaDB for debian-linux-gnu" && exit 0
echo "[ERROR] $0: unknown variable 'sync_binlgo=1'" >&2
exit 7
"""
UNIT = "mariadb.service"
FIRST_CONTACTS = {
    "record/production_restores.py": "without an answer, the datasets are unknown, which is no error",
    "host/affected_replicas.py": "another finding explains the server",
    "restore/replaced_server.py": "the server was just started, or its check is skipped",
    "backup/replica_applier.py": "a second session beside the first one",
    "binlog/archiver.py": "a question while the archiver runs, whose error is skipped",
    "binlog/archive_run.py": "a question while the archiver runs, whose error is skipped",
    "setup/examples.py": "setup has found the running server",
    "backup/server_source.py": "a second session beside the first one",
    "binlog/undo.py": "a second session beside the first one, or its error is expected",
    "clone/undo_trial.py": "a second session; the command has found the transaction on the server",
}
"""The modules that open a session without an explanation of its error, and why."""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance whose server is down: its unit failed, and its files are on tank/mysql."""
    site = Site(tmp_path / "repository")
    site.host.services.mkdir(parents=True)
    record = ServiceRecord(unit=UNIT, datadir=str(tmp_path), volumes=("tank/mysql",))
    (site.host.services / "main.json").write_text(record.model_dump_json())
    program = tmp_path / "mariadbd"
    program.write_text(FAKE)
    program.chmod(0o755)
    answers = {
        "--property=LoadState,ActiveState,SubState": "LoadState=loaded ActiveState=failed SubState=failed",
        "--property=ExecStart": f"{{ path={program} ; argv[]={program} $OPTS ; ignore_errors=no ; }}",
    }
    run = process_managers.run
    asked = lambda argv, **k: answers[argv[2]] if argv[0] == "systemctl" else run(argv, **k)  # noqa: E731

    def refuse(address: Address, *_: object, **__: object) -> None:
        reason = OSError(2003, "Can't connect to MySQL server on '127.0.0.1' ([Errno 2] No such file or directory)")
        raise _classified(reason, "connecting", address)

    monkeypatch.setattr(process_managers, "run", asked)
    monkeypatch.setattr(process_managers, "account_words", lambda _: [])
    monkeypatch.setattr(Session, "open", refuse)
    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry("/", "ext4", "/dev/vda1")])
    monkeypatch.setattr(datasets, "pools", lambda: ["rpool"])
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1 << 50, f_frsize=1))
    own = site.instance()
    return replace(own, settings=own.settings.model_copy(update={"volumes": {"data": "tank/mysql"}}))


CONNECTS: dict[str, Callable[[Instance], object]] = {
    "backup": lambda instance: open_server(instance).__enter__(),
    "binlog purge": purge.plan_now,
    "binlog archive": archive_run.archive_once,
    "undo": lambda instance: undo.undo(instance, "0-1-1"),
    "undo --apply": lambda instance: undo.who_sees_triggers(instance, instance, is_named=True),
    "doctor": volume_space.open_session,
}


def mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry("/var/lib/mysql", "zfs", "tank/mysql")])


@pytest.mark.parametrize("is_mounted", [True, False])
@pytest.mark.parametrize("connects", CONNECTS.values(), ids=list(CONNECTS))
def test_every_command_explains_a_stopped_server_like_status(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, connects: Callable[[Instance], object], is_mounted: bool
) -> None:
    if is_mounted:
        mount(monkeypatch)
    stopped = stopped_server(instance)
    assert stopped is not None
    with pytest.raises(ServerError) as refusal:
        connects(instance)
    assert refusal.value.hint == stopped.hint("main")
    assert stopped.describe("main") in refusal.value.message
    cause = "unknown variable 'sync_binlgo'" if is_mounted else "tank/mysql, but its pool is not imported"
    assert cause in refusal.value.message
    assert "rewind" not in refusal.value.hint


def test_unmounted_volume_is_named_without_a_unit(instance: Instance) -> None:
    (instance.host.services / "main.json").unlink()
    with pytest.raises(ServerError, match="tank/mysql, but its pool is not imported") as refusal:
        volume_space.open_session(instance)
    assert refusal.value.hint.startswith(
        "`zpool import tank` (`zpool import` lists the pools), then start the server; if it is lost, "
    )


def test_unexplained_error_keeps_its_hint(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(monkeypatch)
    (instance.host.services / "main.json").unlink()
    with pytest.raises(ServerError) as refusal:
        volume_space.open_session(instance)
    assert refusal.value.hint == UNREACHABLE_HINT


@pytest.mark.parametrize("socket", [Path("/run/mysqld/mysqld.sock"), None])
def test_connection_error_names_only_the_used_address(socket: Path | None) -> None:
    address = Address("root", socket, "db1", 3306)
    error = OSError(2003, "Can't connect to MySQL server on '127.0.0.1' (refused)")
    text = _classified(error, "connecting", address).message
    assert text == f"connecting on {address}: Can't connect to the server (refused) (2003)"


@pytest.mark.parametrize(
    ("pools", "status", "reason"),
    [
        ([], None, MissingReason.POOL),
        (["tank"], None, MissingReason.ABSENT),
        (["tank"], "unavailable", MissingReason.KEY),
        (["tank"], "available", MissingReason.UNMOUNTED),
        (["tank"], "-", MissingReason.UNMOUNTED),
    ],
)
def test_reason_of_an_unmounted_volume_is_found(
    monkeypatch: pytest.MonkeyPatch, pools: list[str], status: str | None, reason: MissingReason
) -> None:
    def properties(name: str, keys: list[str]) -> dict[str, Property]:
        if status is None:
            raise NotFound(name, hint="")
        return {key: Property(status, "-") for key in keys}

    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry("/b", "zfs", "tank/b")])
    monkeypatch.setattr(datasets, "pools", lambda: pools)
    monkeypatch.setattr(datasets, "properties", properties)
    found = server_unit_record.find_missing_volume(["tank/b", "tank/a"])
    assert found is not None
    assert (found.dataset, found.reason) == ("tank/a", reason)
    assert server_unit_record.find_missing_volume(["tank/b"]) is None


def test_commands_open_their_first_session_with_the_explanation() -> None:
    jobs = Path(volume_space.__file__).parents[1]
    direct = {
        str(file.relative_to(jobs))
        for file in jobs.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "session"
        if ast.unparse(node.func.value) in ("instance", "self.instance", "own", "other", "work.instance")
    }
    assert direct == {*FIRST_CONTACTS, "host/volume_space.py"}

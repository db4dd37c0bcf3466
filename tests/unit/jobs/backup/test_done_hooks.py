"""`done` hooks run at the end of every run of a backup, and say how the run ended. Pings belong there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT
from tests.unit.support.events import Recorder
from tests.unit.support.fake_sources import FakeObservation, FakeServer
from tests.unit.support.world import World
from zsnapdb.base.errors import BusyError, HookError, PreflightError, RepositoryError
from zsnapdb.config.settings import HookSettings
from zsnapdb.jobs.backup import run as job
from zsnapdb.jobs.backup.preflight import _judge_hooks
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.store.local import LocalStore

LOG = 'echo "$ZSNAPDB_OUTCOME|$ZSNAPDB_STATUS|$ZSNAPDB_ERROR|$ZSNAPDB_BACKUP_ID|$ZSNAPDB_MESSAGE" >> {folder}/log\n'


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def with_hook(world: World, *, more: str = "", **settings: str) -> Instance:
    """Return the instance with a `done` hook that notes what it gets, and then runs `more`."""
    script = world.folder / "hook"
    script.write_text("#!/bin/sh\n" + LOG.format(folder=world.folder) + more)
    script.chmod(0o755)
    hook = HookSettings.model_validate({"when": "done", "run": str(script), **settings})
    instance = world.instance.with_events(Recorder(world.reported))
    return replace(instance, settings=instance.settings.model_copy(update={"hooks": (hook,)}))


def backup(world: World, instance: Instance) -> job.BackupResult:
    return job.backup(instance, opener=world.open_source)


def noted(world: World) -> list[list[str]]:
    return [line.split("|") for line in (world.folder / "log").read_text().splitlines()]


def test_a_done_hook_runs_after_the_manifest_is_stored(world: World) -> None:
    store = world.folder / "store"
    instance = with_hook(world, more=f'find {store} -path "*manifests*$ZSNAPDB_BACKUP_ID*" >> {world.folder}/found\n')
    result = backup(world, instance)
    assert noted(world) == [["ok", "0", "", result.manifest.backup_id, ""]]
    assert (world.folder / "found").read_text()


class Unfit(FakeServer):
    """A server that is not fit for a backup."""

    def observe(self) -> FakeObservation:
        raise PreflightError("the pool is too old", hint="upgrade the pool")


def test_a_done_hook_learns_that_the_backup_failed_in_preflight(world: World) -> None:
    world.source = Unfit
    with pytest.raises(PreflightError):
        backup(world, with_hook(world))
    assert noted(world) == [["failed", "4", "preflight", "", "the pool is too old hint: upgrade the pool"]]


def test_a_done_hook_learns_that_the_upload_failed_and_of_which_backup(world: World) -> None:
    def refuse(name: str, key: str) -> None:
        if name == "put" and "manifests" in key:
            raise RepositoryError("the bucket is read-only")

    world.on_call = refuse
    with pytest.raises(RepositoryError):
        backup(world, with_hook(world))
    [[outcome, status, error, backup_id, message]] = noted(world)
    assert (outcome, status, error, message) == ("failed", "6", "repository", "the bucket is read-only")
    assert backup_id in world.journals()


def test_a_done_hook_learns_of_a_signal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStore.put

    def interrupted(*words: object, **options: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return put(*words, **options)  # type: ignore[arg-type]

    instance = with_hook(world)
    monkeypatch.setattr(LocalStore, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backup(world, instance)
    assert noted(world)[0][:3] == ["failed", "130", "interrupted"]


def test_a_done_hook_learns_that_another_run_is_at_work(world: World) -> None:
    with exclusive("backup-main", doing="backing up", folder=world.folder / "run"), pytest.raises(BusyError):
        backup(world, with_hook(world))
    assert noted(world)[0][:3] == ["failed", "75", "busy"]


def test_a_done_hook_may_use_the_instance_since_no_lock_is_held_any_more(world: World) -> None:
    lock = world.folder / "run" / "backup-main.lock"
    backup(world, with_hook(world, more=f"flock --nonblock {lock} true && echo free > {world.folder}/free\n"))
    assert (world.folder / "free").read_text() == "free\n"


def test_a_failed_done_hook_is_a_warning_of_a_stored_backup(world: World) -> None:
    result = backup(world, with_hook(world, more="echo no route; exit 1\n"))
    assert result.manifest.backup_id in world.ids()
    assert len(result.warnings) == 1
    assert "ended with exit status 1; it printed: no route" in result.warnings[0]


def test_a_failed_done_hook_fails_the_run_where_that_is_configured_and_the_backup_is_named(world: World) -> None:
    with pytest.raises(HookError) as caught:
        backup(world, with_hook(world, more="exit 1\n", on_failure="abort"))
    assert caught.value.__notes__ == [f"backup {world.ids()[-1]} is in the repository"]


def test_a_failed_done_hook_does_not_hide_why_the_backup_failed(world: World) -> None:
    world.source = Unfit
    with pytest.raises(PreflightError) as caught:
        backup(world, with_hook(world, more="exit 1\n", on_failure="abort"))
    assert "exit status 1" in caught.value.__notes__[0]


def test_a_missing_done_hook_stops_no_backup(world: World) -> None:
    instance = with_hook(world)
    (world.folder / "hook").unlink()
    assert [finding.severity for finding in _judge_hooks(instance)] == [Severity.WARNING]
    assert backup(world, instance).manifest.backup_id in world.ids()


def test_the_ping_of_the_examples_sends_the_exit_code_and_keeps_the_url_out_of_every_argument(tmp_path: Path) -> None:
    (tmp_path / "curl").write_text(f'#!/bin/sh\ncat > {tmp_path}/stdin; echo "$@" > {tmp_path}/arguments\n')
    (tmp_path / "curl").chmod(0o755)
    (tmp_path / "url").write_text("https://ping.example/secret\n")
    environment = {"ZSNAPDB_INSTANCE": "main", "ZSNAPDB_BACKUP_ID": "b", "ZSNAPDB_OUTCOME": "failed"}
    for error, pings in (("busy", False), ("server", True)):
        subprocess.run(
            [CHECKOUT / "hooks" / "ping-service", tmp_path / "url"],
            env={
                **environment,
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "ZSNAPDB_STATUS": "5",
                "ZSNAPDB_ERROR": error,
                "ZSNAPDB_MESSAGE": "it is down",
            },
            check=True,
        )
        assert (tmp_path / "stdin").exists() == pings
    assert (tmp_path / "stdin").read_text() == 'url = "https://ping.example/secret/5"\n'
    assert (tmp_path / "arguments").read_text().endswith("backup b of main: failed it is down\n")
    assert "secret" not in (tmp_path / "arguments").read_text()

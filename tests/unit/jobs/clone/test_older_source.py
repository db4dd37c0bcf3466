"""Whoever is refused `latest` can use the option that the refusal names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.errors import DamagedError
from zsnapdb.cli.app import app
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import (
    cached_sets,
    data_replacement,
    reset,
    set_preparation,
    source_fetch,
    source_lookup,
    space_limits,
    upgrade,
)
from zsnapdb.jobs.clone.sources import RemoteBackup
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.repository import layout
from zsnapdb.store.local import LocalStore


class SourceFoundError(Exception):
    """Ends a job as soon as it has its source."""


def found(_settings: object, _instance: object, _home: str, source: RemoteBackup) -> Any:
    raise SourceFoundError(source.manifest.backup_id)


def asked_for(_settings: object, _instance: object, request: Any) -> Any:
    raise SourceFoundError(request.accepts_older)


def prepared(host: PlanningHost, accepts_older: bool) -> str:
    with pytest.raises(SourceFoundError) as ended:
        set_preparation.prepare(host.settings, host.instance, "latest", accepts_older=accepts_older).run()
    return str(ended.value)


def planned_preparation(host: PlanningHost, accepts_older: bool) -> str:
    planned = set_preparation.prepare(host.settings, host.instance, "latest", accepts_older=accepts_older).plan()
    return planned.steps[0].split()[2]


def planned_reset(host: PlanningHost, accepts_older: bool) -> str:
    settings, this_host = host.settings, host.instance.host
    planned = reset.reset_plan(settings, this_host, "clone", "latest", accepts_older=accepts_older).replaces
    assert planned is not None
    return planned.set_id


def reset_clone(host: PlanningHost, accepts_older: bool) -> str:
    with pytest.raises(SourceFoundError) as ended:
        reset.reset(host.settings, host.instance.host, "clone", "latest", SILENT, accepts_older=accepts_older)
    return str(ended.value)


@pytest.mark.parametrize("use", [prepared, planned_preparation, planned_reset, reset_clone])
def test_a_refused_latest_is_accepted_with_the_option(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, use: Callable[[PlanningHost, bool], str]
) -> None:
    host.store(BACKUPS[1])
    repository = host.instance.open_repository()
    for name in repository.backup_ids("main"):
        host_backup_record.note_stored(host.instance, repository, *repository.digested_manifest("main", name))
    LocalStore(host.folder / "store").delete(str(layout.manifest("main", BACKUPS[1])))
    facts = {
        "instance": "main",
        "source": "backup",
        "backup_id": BACKUPS[0],
        "original": BACKUPS[0],
        "original_key": "",
        "top": "tank/c",
    }
    lease = CloneLease(datetime(2099, 1, 1, tzinfo=UTC))
    times = {"lease": lease, "created": "2026-11-22T00:00:00Z", "label": "clone", "owner": "ada"}
    info = SimpleNamespace(**facts, **times, name="clone", asks_for_masking=False)
    monkeypatch.setattr(reset, "ready", lambda *_: info)
    monkeypatch.setattr(reset, "locked_clone", lambda *_: contextlib.nullcontext(info))
    instance = host.instance
    monkeypatch.setattr(Instance, "of", lambda *_: instance)
    monkeypatch.setattr(source_lookup, "find_local", lambda *_: None)
    monkeypatch.setattr(space_limits, "refuse_source", lambda *_: None)
    monkeypatch.setattr(cached_sets, "find_received", lambda *_: None)
    monkeypatch.setattr(source_fetch, "fetch", found)
    monkeypatch.setattr(data_replacement, "quota_beside", lambda *_: 0)
    with pytest.raises(DamagedError) as refused:
        use(host, False)
    assert "--accept-older" in refused.value.hint
    assert use(host, True) == BACKUPS[0]


def test_a_rehearsal_of_an_upgrade_passes_the_option_on(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "ephemeral_clone", asked_for)
    monkeypatch.setattr("os.access", lambda *_: True)
    for accepted in (False, True):
        with pytest.raises(SourceFoundError, match=str(accepted)):
            upgrade.rehearse(host.settings, host.instance, "latest", host.folder.absolute(), (), accepts_older=accepted)


COMMANDS = [
    "restore",
    "runbook",
    "rescue",
    "drill",
    "clone create",
    "clone prepare",
    "clone reset",
    "clone upgrade-test",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_takes_the_newest_state_has_the_option(command: str) -> None:
    chosen: Any = typer.main.get_command(app)
    for word in command.split():
        chosen = chosen.commands[word]
    assert any("--accept-older" in parameter.opts for parameter in chosen.params)

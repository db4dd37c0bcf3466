"""The conditions of a first drill, before there is a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.trial import host_needs, scratch_datasets
from zsnapdb.mysql.process import process_managers, programs, server
from zsnapdb.mysql.process.programs import ServerProgram
from zsnapdb.planning.server_space import START_BYTES
from zsnapdb.zfs import datasets
from zsnapdb.zfs.datasets import Property

TEXT = """
[instance.main]
repository = "r"
[instance.main.drill]
pages = "required"
[repository.r]
url = "file:///srv/backups"
[restore]
replay = "client"
"""
SETTINGS = parse(TEXT, "test")


def refuse(*_: Any, **__: Any) -> Any:
    raise PreflightError("is missing", hint="install it")


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has every program."""
    monkeypatch.setattr(server, "account", lambda user: (1, 1))
    monkeypatch.setattr(process_managers, "choose", lambda manager: None)
    monkeypatch.setattr(programs, "fitting_program", lambda *about: ServerProgram(Path("/m"), "8.4.6"))
    monkeypatch.setattr(programs, "choose_program", lambda *about: Path("/m"))
    monkeypatch.setattr(programs, "find", lambda *about: Path("/p"))


BREAKS: dict[str, tuple[object, str]] = {
    "account": (server, "account"),
    "manager": (process_managers, "choose"),
    "server program": (programs, "fitting_program"),
    "innochecksum and clients": (programs, "find"),
}


@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize("name", BREAKS)
def test_missing_program_of_a_drill_is_a_finding(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def findings(*, replays: bool = True) -> list[str]:
        instance = Instance.of(SETTINGS, "main")
        found = host_needs.judge_host(SETTINGS, instance, Flavour.MYSQL, "8.4.6", replays=replays)
        return [one.detail for one in found]

    assert findings() == []
    monkeypatch.setattr(*BREAKS[name], refuse)
    assert findings() == ["is missing"] * (2 if "clients" in name else 1)
    assert findings(replays=False) == ["is missing"]


@pytest.mark.parametrize(("free", "is_enough"), [(START_BYTES + 99, False), (START_BYTES + 100, True)])
def test_room_for_the_copy_of_a_drill_is_judged(monkeypatch: pytest.MonkeyPatch, free: int, is_enough: bool) -> None:
    def sizes(names: list[str], keys: list[str]) -> object:
        return {name: {"referenced": Property("50", "-")} for name in names}

    monkeypatch.setattr(datasets, "exists", lambda name: "/" not in name)
    monkeypatch.setattr(datasets, "available", lambda name: free)
    monkeypatch.setattr(datasets, "properties_of", sizes)
    monkeypatch.setattr(scratch_datasets, "home", lambda *about: "tank/zsnapdb/scratch/main")
    found = host_needs.judge_room(Instance.of(SETTINGS, "main"), ["tank/a", "tank/b"])
    assert [one.hint for one in found] == (
        [] if is_enough else ["free space, or name a dataset of another pool under [instance.main.drill]"]
    )

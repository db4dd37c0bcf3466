"""A person may rename datasets while a rewind runs: each rename and each mark is of the dataset that the plan saw."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.clone_pool import ClonePool, Thing
from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.restore import dataset_exchange
from zsnapdb.jobs.steps.exchange_state import look
from zsnapdb.jobs.steps.restore_journal import OldServer, RestoreJournal, ways_out_hint
from zsnapdb.planning.restore.steps import Promote, PromotePart, replaced_suffix
from zsnapdb.zfs import datasets, destruction, mounting

ID = "20261120T093000Z-5e75"
SUFFIX = replaced_suffix(ID)
STEP = Promote(
    tuple(
        PromotePart(role, f"tank/z/main/{role}", f"tank/{role}", f"tank/{role}{SUFFIX}", f"/{role}", guid, "on")
        for guid, role in ((1, "data"), (2, "logs"))
    ),
    (
        *((f"tank/{role}", f"tank/{role}{SUFFIX}") for role in ("data", "logs")),
        *((f"tank/z/main/{role}", f"tank/{role}") for role in ("data", "logs")),
    ),
    ID,
)
PLAN: Any = SimpleNamespace(
    restore_id=ID, instance="main", layout=SimpleNamespace(top="tank/z/main"), top="tank/z/main", promotion=STEP
)
STRANGER = 99


class Pool(ClonePool):
    """The datasets of production and of a restore. `stranger` gets the name of a dataset before its rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stranger: str = "") -> None:
        super().__init__()
        self.stranger = stranger
        self.things |= {"tank/z": Thing(txg=19), "tank/z/main": Thing(txg=20)}
        for part in STEP.parts:
            self.things[part.place] = Thing(txg=part.old_guid or 0)
            self.things[part.dataset] = Thing({"zsnapdb:restored": ID}, txg=10)
        self.install(monkeypatch)
        monkeypatch.setattr(datasets, "exists", self.is_there)
        monkeypatch.setattr(datasets, "rename", self.rename)
        monkeypatch.setattr(datasets, "unmount", lambda name: None)
        for name in ("refuse_running", "refuse_mounted_elsewhere"):
            monkeypatch.setattr(dataset_use_checks, name, lambda *_, **__: None)
        monkeypatch.setattr(dataset_exchange, "refuse_what_would_be_lost", lambda step: None)
        monkeypatch.setattr(mounting, "mount_all", lambda *_: None)
        monkeypatch.setattr(destruction, "is_ours", lambda *_: False)

    def is_there(self, name: str) -> bool:
        pairs = {*STEP.renames, *((new, old) for old, new in STEP.renames)}
        if (self.stranger, name) in pairs and name not in self.things:
            self.things["tank/elsewhere"] = self.things.pop(self.stranger)
            self.things[self.stranger], self.stranger = Thing(txg=STRANGER), ""
        return name in self.things

    def rename(self, old: str, new: str) -> None:
        self.things[new] = self.things.pop(old)
        assert self.things[new].txg != STRANGER


def test_exchange_without_a_stranger_goes_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch)
    dataset_exchange.swap(PLAN, STEP)
    assert {part.place: pool.things[part.place].txg for part in STEP.parts} == {"tank/data": 10, "tank/logs": 10}
    pool.rename("tank/logs", "tank/z/main/logs")
    dataset_exchange.swap_back(PLAN, STEP)
    assert {part.place: pool.things[part.place].txg for part in STEP.parts} == {"tank/data": 1, "tank/logs": 2}


@pytest.mark.parametrize("source", [old for old, _ in STEP.renames])
def test_exchange_renames_no_stranger(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    pool = Pool(monkeypatch, source)
    with pytest.raises(PreflightError, match=f"{source} cannot be renamed to"):
        dataset_exchange.swap(PLAN, STEP)
    assert pool.things[source].txg == STRANGER


@pytest.mark.parametrize("source", [new for _, new in STEP.renames[:3]])
def test_reversal_renames_no_stranger(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    pool = Pool(monkeypatch)
    dataset_exchange.swap(PLAN, STEP)
    pool.rename("tank/logs", "tank/z/main/logs")
    pool.stranger = source
    with pytest.raises(PreflightError, match=f"{source} cannot be renamed to"):
        dataset_exchange.swap_back(PLAN, STEP)
    assert pool.things[source].txg == STRANGER


def test_stranger_is_neither_marked_nor_remounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a marked dataset is removed after `restore.keep_replaced`."""
    pool = Pool(monkeypatch)
    dataset_exchange.swap(PLAN, STEP)
    pool.things[f"tank/logs{SUFFIX}"] = Thing(txg=STRANGER)
    with pytest.raises(PreflightError, match="is not the dataset that the restore saw"):
        dataset_use_checks.mark(STEP.parts, ID, "main", backup_time(ID))
    with pytest.raises(PreflightError, match="is not the dataset that the restore saw"):
        dataset_exchange.remount(STEP)
    assert not any("zsnapdb:replaced" in thing.properties for thing in pool.things.values())


def is_accepted(command: Callable[[], None]) -> bool:
    try:
        command()
    except PreflightError:
        return False
    return True


@pytest.mark.parametrize("lost", ["", *(part.dataset for part in STEP.parts), *(part.place for part in STEP.parts)])
@pytest.mark.parametrize("renames", range(len(STEP.renames) + 1))
def test_printed_ways_out_of_an_exchange_are_accepted(monkeypatch: pytest.MonkeyPatch, renames: int, lost: str) -> None:
    """The exchange stopped after so many renames, and a person may have destroyed a dataset."""
    pool = Pool(monkeypatch)
    for old, new in STEP.renames[:renames]:
        pool.rename(old, new)
    pool.things.pop(lost, None)
    hint = ways_out_hint(RestoreJournal(PLAN, old_server=OldServer()))
    goes_on = is_accepted(lambda: dataset_exchange.refuse_unclear(PLAN, look(PLAN, STEP)))
    goes_back = is_accepted(lambda: dataset_exchange.swap_back(PLAN, STEP))
    assert ("`zsnapdb restore main --abandon --target tank/z/main`" in hint) == goes_back
    # If neither is possible, the command says what a person must do.
    assert ("`zsnapdb rewind main --resume`" in hint) == (goes_on or not goes_back)
    assert hint.startswith("correct the cause of the error first") == (not goes_back)


def test_every_printed_abandon_command_names_its_target() -> None:
    package = Path(dataset_exchange.__file__).parents[2]
    texts = {
        (file.name, node.lineno): "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.JoinedStr)
    }
    commands = {place: text for place, text in texts.items() if "zsnapdb restore" in text and "--abandon" in text}
    assert commands
    assert {place for place, text in commands.items() if "--abandon --target" not in text} == set()

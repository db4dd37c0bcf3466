"""A finished restore is listed with the command that removes it, and only its own datasets are destroyed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.errors import PreflightError, UnknownNameError
from zsnapdb.jobs.base.snapshot_set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.restore import finished_restores, roll_forward, server_restore
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.mysql.process.service import ServingProcess
from zsnapdb.planning.restore.steps import (
    HandoverStep,
    LeaveStopped,
    MakeReplica,
    ParallelRun,
    Promote,
    PromotePart,
    ReadOnlyStart,
)
from zsnapdb.zfs import datasets, destruction
from zsnapdb.zfs.datasets import Property

TOP = "tank/again"
PART = PromotePart("data", f"{TOP}/data", "tank/mysql", "tank/mysql-old", "/var/lib/mysql")
HANDOVERS: tuple[HandoverStep, ...] = (
    LeaveStopped(1),
    ReadOnlyStart(1),
    ParallelRun(7, 33070),
    MakeReplica(7, 33070, "db1", 3306, "replica", "/etc/password"),
    Promote((PART,), (), "20261120T120000Z-0001"),
)


@pytest.fixture
def read() -> list[list[str]]:
    """The datasets of each program that read marks."""
    return []


@pytest.fixture
def destroyed(host: PlanningHost, monkeypatch: pytest.MonkeyPatch, read: list[list[str]]) -> list[str]:
    """The targets of the removed restores."""
    gone = list[str]()

    def marks(names: list[str], keys: list[str]) -> dict[str, dict[str, Property]]:
        read.append(names)
        ids = {one.top: one.plan.restore_id for one in Journals(host.settings.restore.journal).history("main")}
        return {name: {key: Property(ids[name], "local") for key in keys} for name in names}

    monkeypatch.setattr(
        finished_restores,
        "datasets",
        SimpleNamespace(exists=lambda name: name not in gone, properties_of=marks),
    )
    monkeypatch.setattr(ServerProcess, "pid", lambda *_: 4166)
    monkeypatch.setattr(finished_restores, "remove_all", lambda plan, copy: gone.append(plan.top))
    monkeypatch.setattr(finished_restores, "clear_foreign", lambda plan, **_: None)
    monkeypatch.setattr(finished_restores, "warn_remaining", lambda *_: None)
    return gone


def finish(host: PlanningHost, last: HandoverStep, top: str = TOP) -> RestoreJournal:
    """Return the journal of a finished restore with this handover."""
    done = server_restore.restore(host.settings, host.instance, RestoreRequest("latest-backup", top))
    journals = Journals(host.settings.restore.journal)
    journal = next(one for one in journals.history("main") if one.top == top)
    journals.finish(replace(journal, plan=replace(done.plan, steps=(*done.plan.steps[:-1], last))))
    return next(one for one in journals.history("main") if one.top == top)


@pytest.mark.parametrize("last", HANDOVERS, ids=lambda step: step.kind)
def test_finished_restore_is_removed_unless_it_is_production(
    host: PlanningHost, destroyed: list[str], last: HandoverStep
) -> None:
    finish(host, last)
    listed = finished_restores.existing(host.settings, host.instance)
    if isinstance(last, Promote):
        assert listed == []
        return
    (restore,) = listed
    assert "process 4166 serves it" in restore.describe()
    finished_restores.remove(host.settings, host.instance, restore)
    assert destroyed == [TOP]
    assert finished_restores.existing(host.settings, host.instance) == []
    assert Journals(host.settings.restore.journal).history("main") == []
    with pytest.raises(UnknownNameError, match="meanwhile"):
        finished_restores.remove(host.settings, host.instance, restore)


@pytest.mark.parametrize("last", HANDOVERS, ids=lambda step: step.kind)
def test_only_a_stopped_or_read_only_restore_continues_and_others_are_repeated(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, last: HandoverStep
) -> None:
    made = finish(host, last)
    monkeypatch.setattr(datasets, "exists", lambda _: True)
    monkeypatch.setattr(destruction, "is_ours", lambda *_: True)
    if isinstance(last, LeaveStopped | ReadOnlyStart):
        assert roll_forward.finished(host.settings, host.instance, None).top == made.top
        return
    with pytest.raises(UnknownNameError, match="left stopped or open for inspection") as caught:
        roll_forward.finished(host.settings, host.instance, None)
    assert "Repeat a restore that another handover started, such as `run`" in caught.value.hint


def test_datasets_that_were_put_into_use_by_hand_stay(
    host: PlanningHost, destroyed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(host, LeaveStopped(1))
    (restore,) = finished_restores.existing(host.settings, host.instance)
    for name in ("existing_production", "recorded_volumes"):
        with monkeypatch.context() as patch:
            patch.setattr(finished_restores, name, lambda instance: [f"{TOP}/data"])
            with pytest.raises(PreflightError, match=f"{TOP}/data belongs to instance main"):
                finished_restores.remove(host.settings, host.instance, restore)
    with monkeypatch.context() as patch:
        patch.setattr(finished_restores, "serving", lambda datadir: ServingProcess(99, ("mysqld",)))
        with pytest.raises(PreflightError, match="process 99 serves"):
            finished_restores.remove(host.settings, host.instance, restore)
        patch.setattr(finished_restores, "serving", lambda datadir: ServingProcess(4166, ("mysqld",)))
        finished_restores.remove(host.settings, host.instance, restore)
    assert destroyed == [TOP]


def test_continued_restore_is_not_removed_as_a_finished_one(host: PlanningHost, destroyed: list[str]) -> None:
    journal = finish(host, LeaveStopped(1))
    Journals(host.settings.restore.journal).write(journal)
    assert finished_restores.find(host.settings, host.instance, TOP) is None
    assert destroyed == []


def test_marks_of_all_finished_restores_are_read_at_once(
    host: PlanningHost, destroyed: list[str], read: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tops = [f"{TOP}{number}" for number in range(3)]
    for top in tops:
        finish(host, LeaveStopped(1), top)
    read.clear()
    assert [one.top for one in finished_restores.existing(host.settings, host.instance)] == tops
    assert read == [tops]
    foreign = {top: {RESTORED_PROPERTY: Property("", "-")} for top in tops}
    elsewhere = SimpleNamespace(exists=lambda _: True, properties_of=lambda *_: foreign)
    monkeypatch.setattr(finished_restores, "datasets", elsewhere)
    assert finished_restores.existing(host.settings, host.instance) == []
    assert destroyed == []

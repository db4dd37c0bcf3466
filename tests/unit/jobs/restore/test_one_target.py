"""Two restores to one target: the second never touches what the first made or handed over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.domain_types import Snapshot, new_backup_id
from zsnapdb.base.errors import NotFound, NotOursError, PreflightError
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.base.snapshot_set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.restore import run_lifecycle, volume_receive
from zsnapdb.jobs.restore import server_restore as restoring
from zsnapdb.jobs.restore.startup_steps import ServerWork, remove_all
from zsnapdb.jobs.restore.volume_receive import receive
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Receive
from zsnapdb.zfs import datasets, destruction, snapshots
from zsnapdb.zfs.datasets import Property


def _begin(host: PlanningHost, planned: RestorePlan) -> None:
    """Begin a restore and stop before its first volume is received."""
    restoring.execute(
        host.settings,
        host.instance,
        host.instance.open_repository(),
        planned,
        lambda step: not isinstance(step, Receive),
    )
    Journals(host.settings.restore.journal).write(RestoreJournal(planned))


@pytest.mark.parametrize("verb", ["resume", "abandon"])
def test_what_another_process_finished_while_this_one_waited_is_neither_resumed_nor_given_up(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    planned = host.plan()
    _begin(host, planned)
    removed: list[RestorePlan] = []
    monkeypatch.setattr(restoring, "remove_all", lambda plan, copy: removed.append(plan))

    @contextlib.contextmanager
    def after_the_other(name: str, **options: Any) -> Iterator[None]:
        journals = Journals(host.settings.restore.journal)
        journal = journals.read(planned.layout.top)
        if journal is not None:
            journals.finish(journal)
        with exclusive(name, **options):
            yield

    monkeypatch.setattr(run_lifecycle, "exclusive", after_the_other)
    before = list(host.executed)
    calls: dict[str, Callable[[], object]] = {
        "resume": lambda: restoring.resume(host.settings, host.instance, None),
        "abandon": lambda: restoring.abandon(host.settings, host.instance, None),
    }
    with pytest.raises(NotFound, match="finished or given up meanwhile"):
        calls[verb]()
    assert (host.executed, removed) == (before, [])


def test_a_restore_to_another_dataset_with_the_same_mount_point_waits_for_the_first(host: PlanningHost) -> None:
    host.datasets |= {"tank/a", "tank/b"}
    _begin(host, host.plan(top="tank/a/db"))
    second = host.plan(top="tank/b/db")
    with pytest.raises(PreflightError, match="tank/a/db uses the mount point"):
        restoring.execute(host.settings, host.instance, host.instance.open_repository(), second)


def _marked(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Every dataset exists and carries the mark of the restore with this id."""
    marked = {RESTORED_PROPERTY: Property(value, "local")}
    monkeypatch.setattr(datasets, "properties_of", lambda names, keys: dict.fromkeys(names, marked))


@pytest.mark.parametrize("verb", ["resume", "abandon"])
def test_snapshots_of_others_are_named_before_anything_is_done_and_go_if_that_was_requested(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    planned = host.plan()
    _begin(host, planned)
    top = planned.layout.top
    host.datasets.add(top)
    step = next(step for step in planned.steps if isinstance(step, Receive))
    theirs, stream = Snapshot(top, "autosnap_one", 1, 5), Snapshot(step.dataset, step.snapshot, step.guid, 4)
    own = Snapshot(top, "zsnapdb-restore-recover", 2, 6)

    def below(dataset: str, names: Sequence[str]) -> dict[Snapshot, dict[str, Property]]:
        unset = {name: Property("-", "-") for name in names} | {"userrefs": Property("0", "-")}
        return {theirs: unset, stream: unset, own: unset | {RESTORED_PROPERTY: Property(planned.restore_id, "local")}}

    monkeypatch.setattr(snapshots, "below", below)
    destroyed: list[str] = []
    monkeypatch.setattr(destruction, "destroy_snapshots_on", lambda names, *marks: destroyed.extend(names))

    def call(*, with_foreign_snapshots: bool) -> object:
        job: Any = restoring.resume if verb == "resume" else restoring.abandon
        return job(host.settings, host.instance, None, with_foreign_snapshots=with_foreign_snapshots)

    before = list(host.executed)
    with pytest.raises(PreflightError, match=r"autosnap_one \(made by sanoid\)"):
        call(with_foreign_snapshots=False)
    assert (host.executed, destroyed) == (before, [])
    call(with_foreign_snapshots=True)
    assert destroyed == [theirs.full_name]


class _NoServer:
    """A copy without a server."""

    def process(self) -> _NoServer:
        return self

    def kill_all(self) -> None:
        return


def test_undo_removes_what_carries_the_id_of_this_restore_and_nothing_of_another_restore_of_the_same_backup(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = host.plan()
    other = replace(planned, restore_id=new_backup_id(planned.created, 7))
    assert (other.backup_id, other.layout) == (planned.backup_id, planned.layout)
    destroyed: list[str] = []
    monkeypatch.setattr(destruction, "destroy_datasets", lambda names, *marks, **options: destroyed.extend(names))
    _marked(monkeypatch, other.restore_id)
    remove_all(planned, cast(Any, _NoServer()))
    assert destroyed == []
    remove_all(other, cast(Any, _NoServer()))
    assert set(destroyed) == {other.layout.top, *other.layout.datasets.values()}


def test_a_dataset_that_another_restore_received_is_not_taken_for_this_one(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = host.plan()
    step = next(step for step in planned.steps if isinstance(step, Receive))
    work = ServerWork(host.settings, host.instance, host.instance.open_repository(), planned)
    host.datasets.add(step.dataset)
    monkeypatch.setattr(snapshots, "by_guid", lambda dataset: {step.guid: f"{dataset}@{step.snapshot}"})
    monkeypatch.setattr(volume_receive, "ReceiveStream", None)
    _marked(monkeypatch, new_backup_id(planned.created, 7))
    with pytest.raises(NotOursError, match="not ours"):
        receive(work, step)
    _marked(monkeypatch, planned.restore_id)
    receive(work, step)

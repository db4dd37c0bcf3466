"""A restore executes the plan that was shown, whatever is stored in the repository meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.errors import ExistsError, PreflightError
from zsnapdb.jobs.restore import server_restore as restoring
from zsnapdb.jobs.restore.handover import CompletedHandover
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.restore.steps import LeaveStopped, Receive


def test_a_restore_executes_the_plan_that_was_shown_though_a_newer_backup_came(host: PlanningHost) -> None:
    planned = host.plan()
    host.store(BACKUPS[1])
    result = restoring.execute(
        host.settings, host.instance, host.instance.open_repository(), planned, lambda step: True
    )
    assert result.plan is planned
    assert all(plan is planned for plan in host.executed)
    assert host.received == [BACKUPS[0]]
    assert host.plans_made == 1


def test_zsnapdb_restore_plans_once_and_executes_that(host: PlanningHost) -> None:
    result = restoring.restore(host.settings, host.instance, RestoreRequest("latest-backup"))
    assert host.plans_made == 1
    assert all(plan is result.plan for plan in host.executed)


def test_a_plan_whose_target_was_made_since_is_refused_and_nothing_runs(host: PlanningHost) -> None:
    planned = host.plan()
    host.datasets.add(planned.layout.top)
    repository = host.instance.open_repository()
    calls: list[Callable[[], object]] = [
        lambda: restoring.execute(host.settings, host.instance, repository, planned),
        lambda: restoring.execute_without_journal(host.settings, host.instance, repository, planned),
    ]
    for call in calls:
        with pytest.raises(ExistsError, match="exists"):
            call()
    assert host.executed == []


def test_the_copy_of_a_trial_is_handed_over_to_nobody(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a boot mounts it nor another program makes snapshots of it: only `hand_over` allows that."""
    handed: list[str] = []

    def hand_over(_work: object, step: LeaveStopped) -> CompletedHandover:
        handed.append(step.name)
        return CompletedHandover(None)

    handlers = {**restoring.SERVER.handlers, LeaveStopped: hand_over}
    monkeypatch.setattr(restoring, "SERVER", replace(restoring.SERVER, handlers=handlers))
    planned, repository = host.plan(), host.instance.open_repository()
    restoring.execute_without_journal(host.settings, host.instance, repository, planned)
    assert handed == []
    restoring.execute(host.settings, host.instance, repository, planned)
    assert handed == ["handover"]


def test_a_plan_is_executed_once(host: PlanningHost) -> None:
    planned, repository = host.plan(), host.instance.open_repository()

    def stop(step: object) -> bool:
        return not isinstance(step, Receive)

    restoring.execute(host.settings, host.instance, repository, planned, stop)
    journal = Journals(host.settings.restore.journal)
    journal.write(journal.read(planned.layout.top) or RestoreJournal(planned))
    with pytest.raises(PreflightError, match="was started at"):
        restoring.execute(host.settings, host.instance, repository, planned)

"""A restore whose run has a chosen id is made once; a person alone continues the exchange of a server."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.idempotency_records import Action, OnceRecords
from zsnapdb.jobs.restore import run_results
from zsnapdb.jobs.restore import server_restore as restoring
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.server_restore import RestoreResult
from zsnapdb.jobs.steps.journal import CompletedStep
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.idempotency import RunState
from zsnapdb.planning.restore.steps import Promote, PromotePart

RUN, OTHER = "20261127T080000Z-0123abcd", "20261127T090000Z-0123abcd"
WHEN = datetime(2026, 11, 27, 8, tzinfo=UTC)


class Died(BaseException):
    """The process was killed."""


def of_run(host: PlanningHost, run: str = RUN) -> Instance:
    return replace(host.instance, host=replace(host.instance.host, run_id=lambda: run))


def repeat(host: PlanningHost, run: str = RUN) -> RestoreResult:
    """Do what `restore --once` does, but for the records of the command."""
    instance = of_run(host, run)
    known = run_results.restored(host.settings, instance)
    return known or restoring.restore(host.settings, instance, RestoreRequest("latest-backup"))


def killed_in(monkeypatch: pytest.MonkeyPatch, host: PlanningHost, step: str) -> None:
    """Let the host die in the step of that name."""
    note = host.note

    def dies(work: Any, begun: Any) -> None:
        if begun.name == step:
            raise Died
        note(work, begun)

    with monkeypatch.context() as patch:
        patch.setattr(host, "note", dies)
        # A killed process cleans nothing up.
        patch.setattr("zsnapdb.jobs.restore.run_lifecycle.RestoreRun._after_error", lambda *_: None)
        with pytest.raises(Died):
            repeat(host)


def test_killed_in_any_step_the_repetition_goes_on_and_makes_one_restore(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = Journals(host.settings.restore.journal)
    names = [step.name for step in host.plan().steps]
    for name in [one for one in names if one not in ("handover", "preflight")]:
        killed_in(monkeypatch, host, name)
        host.executed.clear()
        first = repeat(host)
        assert first.is_finished
        assert len(host.executed) == len(names) - 1 - names.index(name)
        (done,) = journals.finished()
        assert (done.run_id, done.plan.restore_id) == (RUN, first.plan.restore_id)
        host.executed.clear()
        assert repeat(host).plan == first.plan
        assert host.executed == []
        for file in (journals.folder / "done").iterdir():
            file.unlink()


def test_another_run_makes_its_own(host: PlanningHost) -> None:
    first = repeat(host)
    assert repeat(host, OTHER).plan.restore_id != first.plan.restore_id


def exchanging(host: PlanningHost) -> RestoreJournal:
    """Return the journal of a restore that is about to replace the server, or did."""
    planned = host.plan()
    top = planned.layout.top
    part = PromotePart("data", f"{top}/data", "tank/mysql", "tank/mysql-old", "/var/lib/mysql")
    last = Promote((part,), (("tank/mysql", "tank/mysql-old"),), planned.restore_id)
    steps = (*planned.steps[:-1], last)
    done = tuple(CompletedStep(step.name, WHEN, 1.0) for step in steps[:-1])
    return RestoreJournal(replace(planned, steps=steps), done, run_id=RUN)


def test_an_exchange_of_production_that_was_interrupted_waits_for_a_person(host: PlanningHost) -> None:
    journal = exchanging(host)
    Journals(host.settings.restore.journal).write(journal)
    with pytest.raises(PreflightError) as refused:
        run_results.restored(host.settings, of_run(host))
    assert refused.value.hint.endswith(f"`zsnapdb restore main --resume --target {journal.top}`")
    assert host.executed == []


@pytest.mark.parametrize(("hours", "is_refused"), [(0.9, False), (1.1, True), (700, True)])
def test_a_state_that_was_chosen_long_ago_replaces_the_server_only_if_a_person_says_so(
    host: PlanningHost, hours: float, is_refused: bool
) -> None:
    journal = replace(exchanging(host), done=())
    Journals(host.settings.restore.journal).write(journal)
    later = backup_time(journal.plan.restore_id) + timedelta(hours=hours)
    instance = of_run(host)
    instance = replace(instance, host=replace(instance.host, now=lambda: later))
    refusal = pytest.raises(PreflightError, match="more than an hour ago") if is_refused else contextlib.nullcontext()
    with refusal:
        run_results.restored(host.settings, instance)
    assert (host.executed == []) == is_refused


@pytest.mark.parametrize("back", [timedelta(hours=1), timedelta(days=2), timedelta(days=3000)])
@pytest.mark.parametrize("boot", ["same", "another"])
def test_a_clock_set_back_makes_no_state_young_enough_to_replace_the_server(
    host: PlanningHost, back: timedelta, boot: str
) -> None:
    """After a restart with a dead battery, nothing says how long ago the state was chosen."""
    journal = replace(exchanging(host), done=())
    Journals(host.settings.restore.journal).write(journal)
    planned = backup_time(journal.plan.restore_id)
    base = of_run(host).host
    removal_time(replace(base, now=lambda: planned, steady=lambda: ("same", 1000.0)))
    passed = 60.0 if boot == "another" else 1060.0 + back.total_seconds()
    later = replace(base, now=lambda: planned - back + timedelta(seconds=60), steady=lambda: (boot, passed))
    with pytest.raises(PreflightError, match=r"more than an hour ago|is not known"):
        run_results.restored(host.settings, replace(of_run(host), host=later))
    assert host.executed == []


def test_restart_of_the_host_keeps_a_young_state(host: PlanningHost) -> None:
    """The host was down for ten minutes, so that its clock is ahead of the time that it can prove."""
    journal = replace(exchanging(host), done=())
    Journals(host.settings.restore.journal).write(journal)
    planned = backup_time(journal.plan.restore_id)
    base = of_run(host).host
    removal_time(replace(base, now=lambda: planned, steady=lambda: ("same", 1000.0)))
    later = replace(base, now=lambda: planned + timedelta(minutes=11), steady=lambda: ("another", 60.0))
    assert removal_time(later).doubt
    run_results.restored(host.settings, replace(of_run(host), host=later))
    assert host.executed


def test_a_restore_that_was_given_up_is_not_begun_again(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = of_run(host)
    records = OnceRecords(instance.host)
    records.begin(RUN, Action("restore", "main to latest-backup, stopped"))
    killed_in(monkeypatch, host, "recover")
    restoring.abandon(host.settings, of_run(host, OTHER), None)
    known = records.read(RUN)
    assert known is not None
    assert known.state is RunState.GIVEN_UP
    assert run_results.restored(host.settings, instance) is None

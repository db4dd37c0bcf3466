"""A restore: `execute` runs exactly a plan that `plan.py` made, and `restore` does both for `zsnapdb restore`.

The plan has the steps (preflight, receive, first recovery, replay, check, handover). A journal notes the finished
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from zsnapdb.base.model import Position
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import readers
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.clone_volume import clone_snapshot
from zsnapdb.jobs.restore.handover import hand_over, leave_to_trial
from zsnapdb.jobs.restore.look import HandedOver
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.preflight import preflight
from zsnapdb.jobs.restore.receiving import make_top, receive
from zsnapdb.jobs.restore.replay import replay
from zsnapdb.jobs.restore.restore_run import Confirm, RestoreRun, always, refuse_unfit
from zsnapdb.jobs.restore.steps import ServerWork, check, mount, recover, take_up
from zsnapdb.jobs.restore.under_way import alone, alone_with_journal, clear_foreign, refuse_begun
from zsnapdb.jobs.restore.without_store import open_for_restore, reopen
from zsnapdb.jobs.steps.journal import Done, Executor, Handlers
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import (
    CheckServer,
    CloneSnapshot,
    HandoverStep,
    LeaveStopped,
    MakeTop,
    MountVolumes,
    Preflight,
    Receive,
    Recover,
    Replay,
    Step,
    TakeUp,
)
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.sources import PositionPart

__all__ = [
    "RestorePlan",
    "RestoreRequest",
    "RestoreResult",
    "Step",
    "execute",
    "execute_continued",
    "execute_without_journal",
    "restore",
    "result_of",
    "resume",
]


@dataclass(frozen=True)
class RestoreResult:
    """A restored instance: its datasets are mounted, and its server has recovered to `position`.

    `handed_over` says how the server is left. `is_finished` False: the restore was stopped before `next_step`, and
    continues with --resume. `done` has the seconds of each step.
    """

    plan: RestorePlan
    position: Position
    done: tuple[Done, ...]
    handed_over: HandedOver | None
    next_step: Step | None = None

    @property
    def is_finished(self) -> bool:
        return self.next_step is None

    @property
    def mount(self) -> Path:
        return Path(self.plan.layout.mount)

    @property
    def option_file(self) -> Path | None:
        """The option file to start the server with; None if the site starts the server."""
        return self.handed_over.option_file if self.handed_over is not None else None

    def seconds(self, *kinds: type) -> float:
        """Return how long the steps of these kinds took."""
        names = {step.name for step in self.plan.steps if isinstance(step, kinds)}
        return sum(done.seconds for done in self.done if done.step in names)

    @property
    def receive_seconds(self) -> float:
        return self.seconds(MakeTop, Receive, CloneSnapshot, MountVolumes)

    @property
    def recovery_seconds(self) -> float:
        return self.seconds(Recover, CheckServer)

    @property
    def replay_seconds(self) -> float:
        return self.seconds(Replay)


def restore(
    settings: Settings,
    instance: Instance,
    request: RestoreRequest,
    confirm: Confirm = always,
    stop_after: str | None = None,
) -> RestoreResult:
    """Plan a restore and execute that plan, as `zsnapdb restore` does. The errors are those of `plan` and `execute`."""
    repository = open_for_restore(instance, request.origin)
    planned = restore_plan.make(settings, instance, repository, request)
    return execute(settings, instance, repository, planned, confirm, stop_after)


def execute(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: RestorePlan,
    confirm: Confirm = always,
    stop_after: str | None = None,
) -> RestoreResult:
    """Carry out the steps of exactly this plan, with a journal; nothing is planned again.

    ExistsError if the target was made since the plan; PreflightError if a restore to the target is under way.
    `RestoreRun.carry_out` says what happens on other errors.
    """
    journals = Journals(settings.restore.journal)
    with alone(instance, planned):
        refuse_begun(journals, planned)
        restore_plan.refuse_existing(planned.layout)
        work = ServerWork(settings, instance, repository, planned, is_first_run=True)
        journal = RestoreJournal(planned, run_id=instance.host.run_id())
        return _result(_run(work).carry_out(journals, journal, confirm, stop_after))


def execute_continued(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    continued: RestoreJournal,
    confirm: Confirm = always,
    stop_after: str | None = None,
) -> RestoreResult:
    """Carry out the steps of a plan that goes on from a finished restore; `continued` says which steps are done.

    An error removes nothing: `resume` goes on, from the snapshots between the steps.
    """
    journals = Journals(settings.restore.journal)
    with alone(instance, continued.plan):
        refuse_begun(journals, continued.plan)
        clear_foreign(continued.plan, may_go=False)
        work = ServerWork(settings, instance, repository, continued.plan)
        return _result(_run(work).carry_out(journals, continued, confirm, stop_after))


def execute_without_journal(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan
) -> RestoreResult:
    """Carry out the steps of exactly this plan for an ephemeral copy. Any error removes everything that was made.

    ExistsError if the target was made since the plan.
    """
    with alone(instance, planned):
        restore_plan.refuse_existing(planned.layout)
        work = ServerWork(settings, instance, repository, planned, is_first_run=True)
        handlers = {**HANDLERS, LeaveStopped: leave_to_trial}
        return _result(_run(work, handlers).carry_out_once(RestoreJournal(planned)))


def resume(
    settings: Settings,
    instance: Instance,
    top: str | None,
    confirm: Confirm = always,
    stop_after: str | None = None,
    *,
    with_foreign_snapshots: bool = False,
    in_place: Callable[[], None] = lambda: None,
    judge: Callable[[RestoreJournal], None] = lambda _: None,
) -> RestoreResult:
    """Continue an interrupted restore. The interrupted step begins anew. `in_place` is that of `Work`.

    PreflightError, before anything is changed, if others made snapshots on its datasets and they are not let go, or if
    `judge` raises it of the journal as it is now that nobody else works on the restore.
    """
    journals = Journals(settings.restore.journal)
    with alone_with_journal(instance, journals, top) as journal:
        judge(journal)
        clear_foreign(journal.plan, may_go=with_foreign_snapshots)
        instance = instance.with_repository_of(settings, journal.plan.repository_name)
        work = ServerWork(settings, instance, reopen(instance, journal.plan), journal.plan, in_place)
        return _result(_run(work).carry_out(journals, journal, confirm, stop_after))


def _look_first(work: ServerWork, step: Preflight) -> None:
    """Check what the restore depends on. Nothing is changed before."""
    refuse_unfit(preflight(work, step), work.events)
    readers.prepare(work.instance, work.plan)


HANDLERS: Handlers = {
    Preflight: _look_first,
    MakeTop: make_top,
    Receive: receive,
    CloneSnapshot: clone_snapshot,
    MountVolumes: mount,
    Recover: recover,
    Replay: replay,
    TakeUp: take_up,
    CheckServer: check,
    **dict.fromkeys(get_args(HandoverStep), hand_over),
}
"""What carries out each step of the restore of a server."""


def _run(work: ServerWork, handlers: Handlers | None = None) -> RestoreRun[RestoreJournal]:
    """Return a run of the restore by these handlers (None: HANDLERS).

    What a handover notes about the old server, it writes into the journal on disk.
    """
    return RestoreRun(
        work, handlers or HANDLERS, (Preflight,), lambda own, on_disk: replace(own, old_server=on_disk.old_server)
    )


def _result(executor: Executor[RestoreJournal]) -> RestoreResult:
    return result_of(executor.journal, executor.outcome if isinstance(executor.outcome, HandedOver) else None)


def result_of(journal: RestoreJournal, handed_over: HandedOver | None = None) -> RestoreResult:
    """Return the restore of this journal. `handed_over` says how its server was left (None: that is not known)."""
    planned = journal.plan
    last = planned.point.last
    first = next(step for step in planned.steps if isinstance(step, Recover))
    at = (last.file, last.end) if last is not None else (first.binlog_file, first.binlog_offset)
    part = PositionPart(binlog_file=at[0], binlog_offset=at[1], gtids=planned.point.gtids, source="restore")
    step = None if journal.next_step is None else planned.step(journal.next_step.name)
    return RestoreResult(planned, part.position(planned.flavour), journal.done, handed_over, step)

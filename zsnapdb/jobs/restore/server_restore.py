"""Restores a server. `execute` runs exactly a plan from `plan.py`; `restore` makes a plan and executes it.

The steps of the plan are preflight, receive, first recovery, replay, check and handover. A journal records the finished
steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from zsnapdb.base.domain_types import Position
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import uninterrupted
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.host import affected_replicas
from zsnapdb.jobs.restore import dataset_exchange
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.handover import CompletedHandover, hand_over, leave_to_trial
from zsnapdb.jobs.restore.offline_repository import open_for_restore, reopen
from zsnapdb.jobs.restore.plan import RestoreRequest, copy_of
from zsnapdb.jobs.restore.preflight import preflight
from zsnapdb.jobs.restore.replaced_server import control_of
from zsnapdb.jobs.restore.replay import replay
from zsnapdb.jobs.restore.run_lifecycle import (
    Confirm,
    RestoreKind,
    RestoreRun,
    clear_foreign,
    confirm_every_step,
    exclusive_journal,
    give_up,
    lock_target,
    refuse_active,
    refuse_unfit,
)
from zsnapdb.jobs.restore.startup_steps import ServerWork, check, mount, recover, remove_all, take_up
from zsnapdb.jobs.restore.volume_receive import clone_snapshot, make_top, receive
from zsnapdb.jobs.steps.journal import CompletedStep, Handlers
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
    ResumedRun,
    Step,
)
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class RestoreResult:
    """A restored instance: its datasets are mounted, and its server has recovered to `position`.

    After the handover, the server has the state `handed_over`. If `is_finished` is False, the restore was stopped
    before `next_step`, and can be continued with --resume. `done` contains the duration of each step in seconds.
    """

    plan: RestorePlan
    position: Position
    done: tuple[CompletedStep, ...]
    handed_over: CompletedHandover | None
    next_step: Step | None = None

    @property
    def is_finished(self) -> bool:
        return self.next_step is None

    @property
    def mount(self) -> Path:
        return Path(self.plan.layout.mount)

    @property
    def option_file(self) -> Path | None:
        """The option file with which the server is started; None if the host's own unit starts it."""
        return self.handed_over.option_file if self.handed_over is not None else None

    def seconds(self, *kinds: type) -> float:
        """Return the total duration in seconds of all steps of the given kinds."""
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
    confirm: Confirm = confirm_every_step,
    stop_after: str | None = None,
) -> RestoreResult:
    """Plan a restore and execute that plan, as `zsnapdb restore` does. Raises the errors of `plan` and `execute`."""
    repository = open_for_restore(instance, request.origin)
    planned = restore_plan.make(settings, instance, repository, request)
    return execute(settings, instance, repository, planned, confirm, stop_after)


def execute(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: RestorePlan,
    confirm: Confirm = confirm_every_step,
    stop_after: str | None = None,
) -> RestoreResult:
    """Execute the steps of exactly this plan, with a journal. Raises the errors of `RestoreKind.execute`."""
    return SERVER.execute(ServerWork(settings, instance, repository, planned), confirm, stop_after)


def execute_continued(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    continued: RestoreJournal,
    confirm: Confirm = confirm_every_step,
    stop_after: str | None = None,
) -> RestoreResult:
    """Execute the steps of a plan that continues a finished restore. The journal `continued` has the finished steps.

    If an error occurs, nothing is removed, and `resume` continues from the snapshots between the steps.
    """
    journals = Journals(settings.restore.journal)
    with lock_target(instance, continued.plan):
        refuse_active(journals, continued.plan)
        clear_foreign(continued.plan, may_go=False)
        work = ServerWork(settings, instance, repository, continued.plan)
        return SERVER.result(RestoreRun(SERVER, work, continued, journals).carry_out(confirm, stop_after))


def execute_without_journal(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan
) -> RestoreResult:
    """Execute the steps of exactly this plan for an ephemeral copy. Raises the errors of `RestoreKind.execute_once`."""
    body = replace(SERVER, handlers={**SERVER.handlers, LeaveStopped: leave_to_trial})
    return body.execute_once(ServerWork(settings, instance, repository, planned))


def resume(
    settings: Settings,
    instance: Instance,
    top: str | None,
    confirm: Confirm = confirm_every_step,
    stop_after: str | None = None,
    *,
    with_foreign_snapshots: bool = False,
    in_place: Callable[[], None] = lambda: None,
    judge: Callable[[RestoreJournal], None] = lambda _: None,
) -> RestoreResult:
    """Continue an interrupted restore. For `in_place`, see `ServerWork`. Raises the errors of `RestoreKind.resume`."""

    def work(own: Instance, plan: RestorePlan) -> ServerWork:
        return ServerWork(settings, own, reopen(own, plan), plan, in_place)

    may_go = with_foreign_snapshots
    return SERVER.resume(settings, instance, top, work, confirm, stop_after, foreign_may_go=may_go, judge=judge)


@dataclass(frozen=True)
class AbandonedRun:
    """An abandoned restore. `left` describes the server that it would have replaced ("" if it would replace none)."""

    plan: RestorePlan
    left: str = ""


def abandon(
    settings: Settings, instance: Instance, top: str | None, *, with_foreign_snapshots: bool = False
) -> AbandonedRun:
    """Abandon an interrupted restore. Remove its journal and its datasets, if they belong to the restore.

    If a rewind stopped a server, the server is first started again on its own datasets, with its own option file.
    Renamed datasets get their names back. If the old server does not start, the restore stays unchanged.

    Raises:
        PreflightError: the datasets have foreign snapshots that must stay, or the restored datasets have replaced the
            server's own datasets. Nothing was changed.
    """
    journals = Journals(settings.restore.journal)
    before = journals.find(instance.name, top)
    with contextlib.ExitStack() as locked:
        if before.plan.promotion is not None:
            # While a rewind waits for the user's answer, it does not hold the lock of its restore.
            locked.enter_context(lock_instance(instance, "rewind", "giving a rewind up of"))
        journal = locked.enter_context(exclusive_journal(instance, journals, before.top))
        planned, left = journal.plan, ""
        clear_foreign(planned, may_go=with_foreign_snapshots)
        step = planned.promotion
        if step is not None:
            with uninterrupted(instance.events.warn):
                old = control_of(instance, journals, journal)
                if old is not None:
                    left = old.bring_back()
                else:
                    dataset_exchange.swap_back(planned, step)
        give_up(instance, journals, journal, lambda: remove_all(planned, copy_of(instance, planned)))
    return AbandonedRun(planned, left)


def _look_first(work: ServerWork, step: Preflight) -> None:
    refuse_unfit(preflight(work, step), work.events)
    affected_replicas.prepare(work.instance, work.plan)


HANDLERS: Handlers = {
    Preflight: _look_first,
    MakeTop: make_top,
    Receive: receive,
    CloneSnapshot: clone_snapshot,
    MountVolumes: mount,
    Recover: recover,
    Replay: replay,
    ResumedRun: take_up,
    CheckServer: check,
    **dict.fromkeys(get_args(HandoverStep), hand_over),
}
"""The function for each step of a server's restore."""


def result_of(journal: RestoreJournal, handed_over: CompletedHandover | None = None) -> RestoreResult:
    """Return the result of the restore that the journal records.

    If the state of the server is unknown, `handed_over` is None.
    """
    planned = journal.plan
    last = planned.point.last
    first = next(step for step in planned.steps if isinstance(step, Recover))
    at = (last.file, last.end) if last is not None else (first.binlog_file, first.binlog_offset)
    position = planned.position(planned.point.gtids, *at)
    return RestoreResult(planned, position, journal.done, handed_over, journal.next_step)


SERVER: RestoreKind[RestoreJournal, RestoreResult] = RestoreKind(
    Journals,
    RestoreJournal,
    HANDLERS,
    Preflight,
    lambda run: result_of(run.journal, run.outcome if isinstance(run.outcome, CompletedHandover) else None),
    # A handover records its changes to the old server only in the journal on disk.
    lambda own, on_disk: replace(own, old_server=on_disk.old_server),
)

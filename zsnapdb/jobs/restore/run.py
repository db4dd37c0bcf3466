"""A restore: `plan` makes its plan, `execute` runs exactly that plan, and `restore` does both for `zsnapdb restore`.

The plan has the steps (preflight, receive, first recovery, replay, check, handover). A journal notes the finished
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from zsnapdb.base.errors import DamagedError, PreflightError, ZsnapdbError
from zsnapdb.base.model import Position
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import readers
from zsnapdb.jobs.restore import foreign, stored_chain
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore.clone_volume import clone_snapshot
from zsnapdb.jobs.restore.exchange import look
from zsnapdb.jobs.restore.handover import hand_over
from zsnapdb.jobs.restore.look import HandedOver
from zsnapdb.jobs.restore.plan import RestoreRequest, copy_of, origin_of
from zsnapdb.jobs.restore.preflight import preflight
from zsnapdb.jobs.restore.replay import replay
from zsnapdb.jobs.restore.steps import (
    Work,
    check,
    make_top,
    mount,
    receive,
    recover,
    remove_all,
    take_up,
)
from zsnapdb.jobs.restore.under_way import alone, alone_with_journal, refuse_begun
from zsnapdb.jobs.restore.without_store import open_for_restore, reopen
from zsnapdb.jobs.steps.executor import Executor, Handlers, refuse_unknown
from zsnapdb.jobs.steps.journal import Done
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, objection
from zsnapdb.planning.restore.handover_steps import HandoverStep
from zsnapdb.planning.restore.steps import (
    CheckServer,
    CloneSnapshot,
    MakeTop,
    MountVolumes,
    Preflight,
    Receive,
    Recover,
    Replay,
    RestorePlan,
    Step,
    TakeUp,
)
from zsnapdb.repository.manifest import PositionPart
from zsnapdb.repository.repository import Repository

__all__ = [
    "RestorePlan",
    "RestoreRequest",
    "RestoreResult",
    "Step",
    "copy_of",
    "examine",
    "execute",
    "execute_continued",
    "execute_without_journal",
    "open_for_restore",
    "origin_of",
    "plan",
    "restore",
    "resume",
]

Confirm = Callable[[Step], bool]
"""Called before each step; False stops the restore before the step, to be resumed later."""


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


def plan(settings: Settings, instance: Instance, repository: Repository, request: RestoreRequest) -> RestorePlan:
    """Return the plan of a restore; nothing is changed."""
    return restore_plan.make(settings, instance, repository, request)


def examine(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan
) -> list[FitnessFinding]:
    """Return the findings of the plan's preflight; nothing is changed."""
    work = Work(settings, instance, repository, planned)
    return [finding for step in planned.steps if isinstance(step, Preflight) for finding in preflight(work, step)]


def expected_error(findings: Sequence[FitnessFinding]) -> type[ZsnapdbError] | None:
    """Return the error that a restore with these findings is expected to end with; None if no error is."""
    if stored_chain.is_damaged(findings):
        return DamagedError
    return PreflightError if any(finding.severity is Severity.UNFIT for finding in findings) else None


def restore(
    settings: Settings,
    instance: Instance,
    request: RestoreRequest,
    confirm: Confirm = lambda _step: True,
    stop_after: str | None = None,
) -> RestoreResult:
    """Plan a restore and execute that plan, as `zsnapdb restore` does. The errors are those of `plan` and `execute`."""
    repository = open_for_restore(instance, request.origin)
    planned = plan(settings, instance, repository, request)
    return execute(settings, instance, repository, planned, confirm, stop_after)


def execute(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: RestorePlan,
    confirm: Confirm = lambda _step: True,
    stop_after: str | None = None,
) -> RestoreResult:
    """Carry out the steps of exactly this plan, with a journal; nothing is planned again.

    ExistsError if the target was made since the plan; PreflightError if a restore to the target is under way. `resume`
    describes what happens on other errors.
    """
    journals = Journals(settings.restore.journal)
    with alone(instance, planned.layout):
        refuse_begun(journals, planned.layout)
        restore_plan.refuse_existing(planned.layout)
        return _carry_out(
            Work(settings, instance, repository, planned, is_first_run=True),
            journals,
            RestoreJournal(planned),
            confirm,
            stop_after,
        )


def execute_continued(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    continued: RestoreJournal,
    confirm: Confirm = lambda _step: True,
    stop_after: str | None = None,
) -> RestoreResult:
    """Carry out the steps of a plan that goes on from a finished restore; `continued` says which steps are done.

    An error removes nothing: `resume` goes on, from the snapshots between the steps.
    """
    journals = Journals(settings.restore.journal)
    with alone(instance, continued.plan.layout):
        refuse_begun(journals, continued.plan.layout)
        foreign.clear(continued.plan, may_go=False)
        return _carry_out(
            Work(settings, instance, repository, continued.plan), journals, continued, confirm, stop_after
        )


def execute_without_journal(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan
) -> RestoreResult:
    """Carry out the steps of exactly this plan for an ephemeral copy. Any error removes everything that was made.

    ExistsError if the target was made since the plan.
    """
    with alone(instance, planned.layout):
        restore_plan.refuse_existing(planned.layout)
        work = Work(settings, instance, repository, planned, is_first_run=True)
        try:
            return _go(_executor(work, None, RestoreJournal(planned)), lambda _step: True, None)
        except BaseException as error:
            _undo(work, error)
            raise


def resume(
    settings: Settings,
    instance: Instance,
    top: str | None,
    confirm: Confirm = lambda _step: True,
    stop_after: str | None = None,
    *,
    with_foreign_snapshots: bool = False,
    in_place: Callable[[], None] = lambda: None,
) -> RestoreResult:
    """Continue an interrupted restore. The interrupted step begins anew. `in_place` is that of `Work`.

    PreflightError, before anything is changed, if others made snapshots on its datasets and they are not let go.
    An error keeps the received volumes for another try, and an interruption keeps all. The datasets and the journal are
    removed only if an error came before a volume was received or a clone mounted, or if the repository is damaged.
    """
    journals = Journals(settings.restore.journal)
    with alone_with_journal(instance, journals, top) as journal:
        foreign.clear(journal.plan, may_go=with_foreign_snapshots)
        instance = instance.with_repository_of(settings, journal.plan.repository_name)
        work = Work(settings, instance, reopen(instance, journal.plan), journal.plan, in_place)
        return _carry_out(work, journals, journal, confirm, stop_after)


def _carry_out(
    work: Work, journals: Journals, journal: RestoreJournal, confirm: Confirm, stop_after: str | None
) -> RestoreResult:
    refuse_unknown(work.plan, stop_after)
    executor = _executor(work, journals, journal)
    try:
        return _go(executor, confirm, stop_after)
    except BaseException as error:
        # Clones are made again in a moment, and then perhaps of other snapshots.
        received = any(isinstance(work.plan.step(done.step), Receive | MountVolumes) for done in executor.journal.done)
        receives = any(isinstance(step, Receive) for step in work.plan.steps)
        has_begun = journals.path(work.plan.layout.top).exists()
        is_kept = received or (receives and isinstance(error, KeyboardInterrupt) and has_begun)
        # What was finished once is never removed because it could not be continued.
        if not _is_before_exchange(work.plan):
            error.add_note("datasets of the server were exchanged: continue with --resume")
        elif (isinstance(error, DamagedError) and not work.plan.is_continued) or not is_kept:
            _undo(work, error)
            journals.forget(work.plan.layout.top)
        else:
            error.add_note(
                f"the restored files in {work.plan.layout.top} are kept: continue with --resume, or give the restore up"
                " with --abandon"
            )
        raise


def _is_before_exchange(planned: RestorePlan) -> bool:
    """Whether no dataset of the server was exchanged, as far as the pool can say after an error.

    Of an exchange that has begun, no dataset may be removed: one of them is the server's only one.
    """
    step = planned.promotion
    if step is None:
        return True
    try:
        return not look(planned, step).has_begun
    except ZsnapdbError:
        return False


def _undo(work: Work, error: BaseException) -> None:
    try:
        remove_all(work.plan, work.copy)
    except Exception as second:
        error.add_note(f"removing the restored datasets failed too: {second}")


def _look_first(work: Work, step: Preflight) -> None:
    """Check what the restore depends on. Nothing is changed before."""
    findings = preflight(work, step)
    error = objection(findings)
    if error is not None:
        raise error
    for finding in findings:
        if finding.severity is Severity.WARNING:
            work.events.warn(f"{finding.detail}; {finding.hint}")
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


def _executor(work: Work, journals: Journals | None, journal: RestoreJournal) -> Executor[RestoreJournal]:
    """Return what runs the restore. What a handover notes about the old server, it writes into the journal on disk."""
    return Executor(
        journal,
        work,
        HANDLERS,
        work.events,
        work.instance.host.now,
        journals,
        looks=(Preflight,),
        noted=lambda own, on_disk: replace(own, old_server=on_disk.old_server),
    )


def _go(executor: Executor[RestoreJournal], confirm: Confirm, stop_after: str | None) -> RestoreResult:
    following = executor.go(confirm, stop_after)
    planned, journal = executor.journal.plan, executor.journal
    last = planned.point.last
    first = next(step for step in planned.steps if isinstance(step, Recover))
    at = (last.file, last.end) if last is not None else (first.binlog_file, first.binlog_offset)
    part = PositionPart(binlog_file=at[0], binlog_offset=at[1], gtids=planned.point.gtids, source="restore")
    handed_over = executor.outcome if isinstance(executor.outcome, HandedOver) else None
    step = None if following is None else planned.step(following.name)
    return RestoreResult(planned, part.position(planned.flavour), journal.done, handed_over, step)

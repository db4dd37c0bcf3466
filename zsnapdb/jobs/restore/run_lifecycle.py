"""Runs restores of servers and machines: starts, locks, resumes and removes them, and handles their errors.

A `RestoreKind` contains the functions that differ between restores of servers and of machines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from zsnapdb.base.errors import DamagedError, ExistsError, PreflightError, UnknownNameError, UsageError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.record.idempotency_records import OnceRecords
from zsnapdb.jobs.restore.volume_receive import RestoreWork, restored_mark, warn_remaining
from zsnapdb.jobs.steps.journal import CompletedStep, Handlers, J, JournalFolder
from zsnapdb.jobs.steps.restore_journal import give_up_command, ways_out_hint
from zsnapdb.planning import foreign_snapshots
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, require_fit
from zsnapdb.planning.restore.plan import AnyRestorePlan
from zsnapdb.planning.restore.steps import MountVolumes, Receive
from zsnapdb.zfs import datasets, destruction, streams
from zsnapdb.zfs import destruction as foreign

Confirm = Callable[[Any], bool]
"""Function that is called before each step.

If it returns False, the restore stops before the step, and can be resumed later.
"""


def confirm_every_step(_step: object) -> bool:
    """Return True, so that every step is executed."""
    return True


R = TypeVar("R")


@dataclass(frozen=True)
class RestoreKind(Generic[J, R]):
    """The types and functions that differ between restores of servers and machines.

    The first step of a plan has the type `look` and changes nothing; the journal is written only after this step.
    `result` returns the result of a run. A step can write records to the journal on disk. `noted` adds these records to
    the journal in memory.
    """

    journals: Callable[[Path], JournalFolder[J]]
    begin: Callable[..., J]
    handlers: Handlers
    look: type
    result: Callable[[RestoreRun[J]], R]
    noted: Callable[[J, J], J] = lambda own, _: own

    def execute(
        self, work: RestoreWork[Any], confirm: Confirm = confirm_every_step, stop_after: str | None = None
    ) -> R:
        """Execute exactly the steps of this plan, with a journal. No part of the plan is computed a second time.

        Also raises the errors of `RestoreRun.carry_out`.

        Raises:
            ExistsError: the target was created after the plan was made.
            PreflightError: a restore to the target is in progress.
        """
        plan, journals = work.plan, self.journals(work.settings.restore.journal)
        with lock_target(work.instance, plan):
            refuse_active(journals, plan)
            refuse_existing(plan.top, plan.mounts)
            journal = self.begin(plan, run_id=work.instance.host.run_id())
            run = RestoreRun(self, replace(work, is_first_run=True), journal, journals)
            return self.result(run.carry_out(confirm, stop_after))

    def execute_once(self, work: RestoreWork[Any]) -> R:
        """Execute the steps for an ephemeral copy. If any error occurs, remove everything that was created.

        Raises:
            ExistsError: the target was created after the plan was made.
        """
        with lock_target(work.instance, work.plan):
            refuse_existing(work.plan.top, work.plan.mounts)
            return self.result(RestoreRun(self, replace(work, is_first_run=True), self.begin(work.plan)).carry_out())

    def resume(
        self,
        settings: Settings,
        instance: Instance,
        top: str | None,
        work: Callable[[Instance, Any], RestoreWork[Any]],
        confirm: Confirm,
        stop_after: str | None,
        *,
        foreign_may_go: bool,
        judge: Callable[[J], None] = lambda _: None,
    ) -> R:
        """Continue an interrupted restore. The interrupted step is repeated.

        `work` creates the work object for the plan.

        Raises:
            PreflightError: the datasets have foreign snapshots that must stay, or `judge` refuses the journal. Nothing
                was changed.
        """
        journals = self.journals(settings.restore.journal)
        with exclusive_journal(instance, journals, top) as journal:
            judge(journal)
            clear_foreign(journal.plan, may_go=foreign_may_go)
            own = instance.with_repository_of(settings, journal.plan.repository_name)
            run = RestoreRun(self, work(own, journal.plan), journal, journals)
            return self.result(run.carry_out(confirm, stop_after))


@dataclass
class RestoreRun(Generic[J]):
    """One run of a restore. For an ephemeral copy, `journals` is None, and nothing is recorded on disk.

    `outcome` is the result of the last handler.
    """

    body: RestoreKind[J, Any]
    work: RestoreWork[Any]
    journal: J
    journals: JournalFolder[J] | None = None
    outcome: object = None

    def carry_out(self, confirm: Confirm = confirm_every_step, stop_after: str | None = None) -> Self:
        """Run the unfinished steps in order. The caller holds the locks of `lock_target`.

        If an error occurs, received volumes are kept for another attempt, even if a volume is incomplete. If the run is
        interrupted, everything is kept. Datasets and journal are removed only if no volume was received or mounted
        before the error, or if the repository is damaged. If the removal fails, the journal is kept, and --abandon
        removes the rest. If there is no journal, any error removes everything that was created.

        Raises:
            UsageError: `stop_after` is not the name of a step of the restore; nothing was done.
        """
        names = [step.name for step in self.work.plan.steps]
        if stop_after is not None and stop_after not in names:
            raise UsageError(f"the restore has no step {stop_after!r}", hint=f"its steps are: {', '.join(names)}")
        try:
            self._run_steps(confirm, stop_after)
        except BaseException as error:
            if self.journals is None:
                self._removes(error)
            else:
                self._after_error(self.journals, error)
            raise
        return self

    def _run_steps(self, confirm: Confirm, stop_after: str | None) -> None:
        """Run the unfinished steps.

        Raises:
            KeyError: a step has no handler; nothing was done.
        """
        instance, steps = self.work.instance, self.journal.plan.steps
        for step, handler in [(step, self.body.handlers[type(step)]) for step in steps]:
            if self.journal.is_done(step.name):
                continue
            if not confirm(step):
                return
            if self.journals is not None and not isinstance(step, self.body.look):
                # From here on, steps make changes, so the journal must exist.
                self.journals.write(self.journal)
            instance.events.tell(f"{step.name}: {step.describe()}")
            began = time.monotonic()
            self.outcome = handler(self.work, step)
            self._note(CompletedStep(step.name, instance.host.now(), round(time.monotonic() - began, 3)))
            if step.name == stop_after:
                return

    def _note(self, done: CompletedStep) -> None:
        on_disk = self.journals.read(self.journal.top) if self.journals is not None else None
        noted = self.body.noted(self.journal, on_disk) if on_disk is not None else self.journal
        self.journal = noted.with_done(done)
        if self.journals is not None:
            (self.journals.write if self.journal.next_step is not None else self.journals.finish)(self.journal)

    def _after_error(self, journals: JournalFolder[J], error: BaseException) -> None:
        journal, steps = self.journal, self.work.plan.steps
        # Volumes that were cloned need not be kept, because they can be cloned again quickly, perhaps from other
        # snapshots.
        received = any(journal.is_done(step.name) and isinstance(step, Receive | MountVolumes) for step in steps)
        receives = any(isinstance(step, Receive) for step in steps)
        has_begun = journals.path(journal.top).exists()
        is_kept = (
            received
            or (receives and isinstance(error, KeyboardInterrupt) and has_begun)
            or (has_begun and self._has_part())
        )
        if self._may_be_only_one():
            error.add_note("datasets of the server were exchanged: continue with --resume")
        # If a finished restore was being continued, it is not removed after an error.
        elif is_kept and (self.work.is_continued or not isinstance(error, DamagedError)):
            error.add_note(
                f"the restored volumes in {journal.top} are kept: continue with --resume, or give the restore up with"
                " --abandon"
            )
        elif self._removes(error):
            journals.forget(journal.top)
        elif has_begun:
            error.add_note(f"`{give_up_command(journal.plan)}` removes it")

    def _has_part(self) -> bool:
        """Return whether ZFS kept a partly received volume after the error. Return False if ZFS does not answer."""
        step = self.journal.next_step
        try:
            return isinstance(step, Receive) and streams.token(step.dataset) is not None
        except ZsnapdbError:
            return False

    def _may_be_only_one(self) -> bool:
        try:
            return self.work.is_irreversible()
        except ZsnapdbError:
            # The state of the pool does not show how far the exchange got.
            return True

    def _removes(self, error: BaseException) -> bool:
        """Remove everything that the restore created. If that fails, return False and add a note to the error."""
        try:
            self.work.remove()
        except Exception as second:
            error.add_note(f"removing the restored datasets failed too: {second}")
            return False
        return True


def refuse_unfit(findings: Sequence[FitnessFinding], events: Events) -> None:
    """Raise an error if one of the findings prevents the restore.

    If no finding prevents the restore, report the warnings.
    """
    require_fit(findings)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            events.warn(f"{finding.detail}; {finding.hint}")


@contextlib.contextmanager
def lock_target(instance: Instance, plan: AnyRestorePlan) -> Iterator[None]:
    """Hold the locks of the plan's target dataset and of its mount points."""
    with contextlib.ExitStack() as locked:
        doing, folder = f"restoring to {plan.top}", instance.host.run
        locked.enter_context(exclusive(f"restore-{plan.top}", doing=doing, folder=folder))
        for mount in plan.mounts:
            doing = f"using the mount point {mount}"
            locked.enter_context(exclusive(f"mount-{mount.strip('/')}", doing=doing, folder=folder))
        yield


@contextlib.contextmanager
def exclusive_journal(instance: Instance, journals: JournalFolder[J], top: str | None) -> Iterator[J]:
    """Take the restore's lock, read the journal of the unfinished restore again, and yield it.

    Raises:
        UnknownNameError: another process finished or abandoned the restore before this process got the lock.
    """
    before = journals.find(instance.name, top).plan
    with lock_target(instance, before):
        journal = journals.read(before.top)
        if journal is None or journal.plan.restore_id != before.restore_id:
            raise UnknownNameError(
                f"the restore to {before.top} was finished or given up meanwhile",
                hint="see `zfs list`; nothing was changed",
            )
        yield journal


def refuse_active(journals: JournalFolder[J], plan: AnyRestorePlan) -> None:
    """Raise PreflightError if there is an unfinished restore to this target or to one of its mount points.

    Unreadable journals of other targets are ignored, so that they do not block a restore.
    """
    started = journals.read(plan.top)
    if started is not None:
        raise PreflightError(
            f"a restore to {plan.top} was started at {started.plan.created:%Y-%m-%d %H:%M} UTC",
            hint=ways_out_hint(started),
        )
    for top in journals.tops() if plan.mounts else ():
        with contextlib.suppress(DamagedError):
            beside = journals.read(top)
            shared = [] if beside is None else [mount for mount in plan.mounts if mount in beside.plan.mounts]
            if shared:
                raise PreflightError(
                    f"the unfinished restore to {top} uses the mount point {shared[0]} too",
                    hint="choose a target whose last part differs",
                )


def refuse_existing(top: str, mounts: Sequence[str]) -> None:
    """Raise ExistsError if the target dataset exists or a target folder is not empty."""
    if datasets.exists(top):
        raise ExistsError(
            f"the target dataset {top} exists",
            hint="name a new dataset; to continue an unfinished restore, use --resume",
        )
    for mount in map(Path, mounts):
        if mount.exists() and any(mount.iterdir()):
            raise ExistsError(
                f"the mount point {mount} of the restored files is not empty",
                hint="name another target, or empty the folder",
            )


def clear_foreign(plan: AnyRestorePlan, *, may_go: bool) -> None:
    """Destroy the snapshots that other programs created on the restore's datasets, if `may_go` is set.

    ZFS cannot receive an increment or roll back while a dataset has later snapshots (zfs-receive(8), zfs-rollback(8)).

    Raises:
        PreflightError: the snapshots must stay; the message says which programs created them. Nothing was changed.
    """
    received = {(step.dataset, step.guid) for step in plan.receives}
    mark = restored_mark(plan)
    others = foreign.foreign_below(plan.top, [mark], lambda snapshot: (snapshot.dataset, snapshot.guid) in received)
    error = foreign_snapshots.objection(f"the restore to {plan.top}", others, may_go=may_go)
    if error is not None:
        raise error
    destruction.destroy_snapshots_on([snapshot.name for snapshot in others], mark)


def give_up(instance: Instance, journals: JournalFolder[J], journal: J, remove: Callable[[], None]) -> None:
    """Remove everything that an interrupted restore created, and its journal.

    The caller holds the locks of `lock_target`.
    """
    OnceRecords(instance.host).note_given_up(journal.run_id)
    remove()
    warn_remaining(instance.events, journal.plan.targets)
    journals.forget(journal.top)

"""Carries out the plan of a restore, of a server or a machine, and says what happens to its datasets after an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from zsnapdb.base.errors import DamagedError, ZsnapdbError
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore.under_way import PlacedPlan
from zsnapdb.jobs.steps.journal import Executor, Handlers, J, JournalFolder, refuse_unknown
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, objection
from zsnapdb.planning.restore.steps import MountVolumes, Receive
from zsnapdb.zfs import streams

Confirm = Callable[[Any], bool]
"""Called before each step; False stops the restore before the step, to be resumed later."""


def always(_step: object) -> bool:
    """Confirm every step."""
    return True


class RestoreWork(Protocol):
    """A restore that is being executed, whatever it restores."""

    @property
    def instance(self) -> Instance: ...
    @property
    def plan(self) -> PlacedPlan: ...

    def remove(self) -> None:
        """Remove everything that the restore made, each dataset proved to be its own."""

    def is_irreversible(self) -> bool:
        """Whether one of the restored datasets may be the only one that a server has: then nothing is removed."""

    @property
    def is_continued(self) -> bool:
        """Whether the plan goes on from a restore that was finished before."""


@dataclass(frozen=True)
class RestoreRun(Generic[J]):
    """One run of a restore: its work, and how the steps of its plan are carried out.

    `looks` are the steps that change nothing. `noted` is that of the executor.
    """

    work: RestoreWork
    handlers: Handlers
    looks: tuple[type, ...]
    noted: Callable[[J, J], J] = lambda own, _: own

    def carry_out(
        self, journals: JournalFolder[J], journal: J, confirm: Confirm, stop_after: str | None
    ) -> Executor[J]:
        """Run the unfinished steps in order, with a journal. The caller has the locks of `under_way.alone`.

        An error keeps what was received for another try, a part of a volume too, and an interruption keeps all.
        Datasets and journal are removed only if the error came before anything was received or mounted, or if the
        repository is damaged. What could not be removed keeps its journal: --abandon removes it.
        """
        refuse_unknown(self.work.plan, stop_after)
        executor = self._executor(journals, journal)
        try:
            executor.go(confirm, stop_after)
        except BaseException as error:
            self._after_error(journals, executor.journal, error)
            raise
        return executor

    def carry_out_once(self, journal: J) -> Executor[J]:
        """Run all steps, without a journal on disk, for an ephemeral copy. Any error removes all that was made."""
        executor = self._executor(None, journal)
        try:
            executor.go(always, None)
        except BaseException as error:
            self._removes(error)
            raise
        return executor

    def _executor(self, journals: JournalFolder[J] | None, journal: J) -> Executor[J]:
        instance = self.work.instance
        return Executor(
            journal, self.work, self.handlers, instance.events, instance.host.now, journals, self.looks, self.noted
        )

    def _after_error(self, journals: JournalFolder[J], journal: J, error: BaseException) -> None:
        steps, done = self.work.plan.steps, {part.step for part in journal.done}
        # Clones are made again in a moment, and then perhaps of other snapshots.
        received = any(step.name in done and isinstance(step, Receive | MountVolumes) for step in steps)
        receives = any(isinstance(step, Receive) for step in steps)
        has_begun = journals.path(journal.top).exists()
        is_kept = (
            received
            or (receives and isinstance(error, KeyboardInterrupt) and has_begun)
            or (has_begun and self._has_part(journal))
        )
        if self._may_be_only_one():
            error.add_note("datasets of the server were exchanged: continue with --resume")
        # What was finished once is never removed because it could not be continued.
        elif is_kept and (self.work.is_continued or not isinstance(error, DamagedError)):
            error.add_note(
                f"the restored volumes in {journal.top} are kept: continue with --resume, or give the restore up with"
                " --abandon"
            )
        elif self._removes(error):
            journals.forget(journal.top)
        elif has_begun:
            error.add_note(f"`zsnapdb restore {journal.plan.instance} --abandon --target {journal.top}` removes it")

    def _has_part(self, journal: J) -> bool:
        """Whether ZFS kept a part of the volume that was being received. If ZFS does not say, there is none."""
        step = journal.next_step
        try:
            return isinstance(step, Receive) and streams.token(step.dataset) is not None
        except ZsnapdbError:
            return False

    def _may_be_only_one(self) -> bool:
        try:
            return self.work.is_irreversible()
        except ZsnapdbError:
            # The pool does not say how far it came.
            return True

    def _removes(self, error: BaseException) -> bool:
        """Remove what the restore made; return False, with a note on the error, if that failed too."""
        try:
            self.work.remove()
        except Exception as second:
            error.add_note(f"removing what was restored failed too: {second}")
            return False
        return True


def refuse_unfit(findings: Sequence[FitnessFinding], events: Events) -> None:
    """Raise the objection to a restore with these findings of its preflight, if there is one; else warn."""
    error = objection(findings)
    if error is not None:
        raise error
    for finding in findings:
        if finding.severity is Severity.WARNING:
            events.warn(f"{finding.detail}; {finding.hint}")

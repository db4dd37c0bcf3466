"""Restores under way, of servers and of machines: which there are, and that each has one process and its own places."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.exclusion import exclusive, for_instance
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.interruption import uninterrupted
from zsnapdb.jobs.record.once_record import OnceRecords
from zsnapdb.jobs.restore import exchange
from zsnapdb.jobs.restore.old_server import control_of
from zsnapdb.jobs.restore.plan import copy_of
from zsnapdb.jobs.restore.receiving import restored_mark, tell_what_stays
from zsnapdb.jobs.restore.steps import remove_all
from zsnapdb.jobs.steps.journal import JournalFolder, StepJournal, SteppedPlan
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.foreign_snapshots import objection
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Receive
from zsnapdb.zfs import foreign, owned


class PlacedPlan(SteppedPlan, Protocol):
    """A plan of a restore: what it receives below the dataset that it makes, and the folders where it mounts files."""

    @property
    def mounts(self) -> tuple[str, ...]: ...
    @property
    def receives(self) -> Sequence[Receive]: ...


K = TypeVar("K", bound=StepJournal[PlacedPlan])


@contextlib.contextmanager
def alone(instance: Instance, plan: PlacedPlan) -> Iterator[None]:
    """Be the only restore to this target dataset, and the only restore that uses its mount points."""
    with contextlib.ExitStack() as locked:
        doing, folder = f"restoring to {plan.top}", instance.host.run
        locked.enter_context(exclusive(f"restore-{plan.top}", doing=doing, folder=folder))
        for mount in plan.mounts:
            doing = f"using the mount point {mount}"
            locked.enter_context(exclusive(f"mount-{mount.strip('/')}", doing=doing, folder=folder))
        yield


@contextlib.contextmanager
def alone_with_journal(instance: Instance, journals: JournalFolder[K], top: str | None) -> Iterator[K]:
    """Yield the journal of a restore under way, read again now that no other process works on this restore.

    NotThere if another process finished the restore, or gave it up, before this process had the lock.
    """
    before = journals.find(instance.name, top).plan
    with alone(instance, before):
        journal = journals.read(before.top)
        if journal is None or journal.plan.restore_id != before.restore_id:
            raise UnknownNameError(
                f"the restore to {before.top} was finished or given up meanwhile",
                hint="see `zfs list`; nothing was changed",
            )
        yield journal


def refuse_begun(journals: JournalFolder[K], plan: PlacedPlan) -> None:
    """Raise PreflightError if a restore to this target, or to one of its mount points, is under way.

    Journals of other targets that cannot be read are left out: they must not stand in the way of a restore.
    """
    started = journals.read(plan.top)
    if started is not None:
        raise PreflightError(
            f"a restore to {plan.top} was begun at {started.plan.created:%Y-%m-%d %H:%M} UTC",
            hint="continue with --resume, or give the restore up with --abandon",
        )
    for top in journals.tops() if plan.mounts else ():
        with contextlib.suppress(DamagedError):
            beside = journals.read(top)
            shared = [] if beside is None else [mount for mount in plan.mounts if mount in beside.plan.mounts]
            if shared:
                raise PreflightError(
                    f"the restore to {top}, which is under way, uses the mount point {shared[0]} too",
                    hint="choose a target whose last part differs",
                )


def clear_foreign(plan: PlacedPlan, *, may_go: bool) -> None:
    """Destroy the snapshots that others made on the restore's datasets, if `may_go`; nothing happens without any.

    ZFS neither receives an increment nor rolls back over a later snapshot (zfs-receive(8), zfs-rollback(8)).
    PreflightError, before anything is changed, says whose they are if they must stay.
    """
    received = {(step.dataset, step.guid) for step in plan.receives}
    mark = restored_mark(plan)
    others = foreign.foreign_below(plan.top, [mark], lambda snapshot: (snapshot.dataset, snapshot.guid) in received)
    error = objection(f"the restore to {plan.top}", others, may_go=may_go)
    if error is not None:
        raise error
    owned.destroy_snapshots_on([snapshot.name for snapshot in others], mark)


@dataclass(frozen=True)
class GivenUp:
    """A restore that was given up. `left` says how the server is that it was to replace; "" if it replaced none."""

    plan: RestorePlan
    left: str = ""


def abandon(
    settings: Settings, instance: Instance, top: str | None, *, with_foreign_snapshots: bool = False
) -> GivenUp:
    """Give an interrupted restore up: remove its datasets, each proved to be ours, and its journal.

    A server that a rewind stopped runs again before anything is removed, from its own datasets and with its own option
    file; datasets that were renamed have their names again. PreflightError, before anything is changed, if others made
    snapshots on the datasets and they are not let go, or if the restored datasets are in place of the server's own. An
    error of the old server's start leaves the restore as it is.
    """
    journals = Journals(settings.restore.journal)
    before = journals.find(instance.name, top)
    with _alone(instance, before), alone_with_journal(instance, journals, before.plan.layout.top) as journal:
        planned, left = journal.plan, ""
        clear_foreign(planned, may_go=with_foreign_snapshots)
        step = planned.promotion
        if step is not None:
            with uninterrupted(instance.events.warn):
                old = control_of(instance, journals, journal)
                if old is not None:
                    left = old.bring_back()
                else:
                    exchange.swap_back(planned, step)
        OnceRecords(instance.host).note_given_up(journal.run_id)
        remove_all(planned, copy_of(instance, planned))
        tell_what_stays(instance.events, {planned.layout.top, *planned.layout.datasets.values()})
        journals.forget(planned.layout.top)
    return GivenUp(planned, left)


@contextlib.contextmanager
def _alone(instance: Instance, journal: RestoreJournal) -> Iterator[None]:
    """Be the only run that exchanges the datasets of the instance, if this restore would.

    A rewind waits for an answer without the lock of its restore.
    """
    if journal.plan.promotion is None:
        yield
        return
    with for_instance(instance, "rewind", "giving a rewind up of"):
        yield

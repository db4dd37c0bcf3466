"""Finished restores whose datasets still exist on this host, with their servers, and the removal of one of them.

A restore that replaced production is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.errors import PreflightError, UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import RESTORED_PROPERTY
from zsnapdb.jobs.record.idempotency_records import OnceRecords
from zsnapdb.jobs.record.production_restores import existing_production
from zsnapdb.jobs.record.server_unit_record import recorded_volumes
from zsnapdb.jobs.restore.plan import copy_of
from zsnapdb.jobs.restore.run_lifecycle import clear_foreign, lock_target
from zsnapdb.jobs.restore.startup_steps import remove_all
from zsnapdb.jobs.restore.volume_receive import restored_mark, warn_remaining
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.mysql.process.service import serving
from zsnapdb.zfs import datasets


@dataclass(frozen=True)
class FinishedRestore:
    """A finished restore whose datasets exist, and the process of its server (None if it does not run)."""

    journal: RestoreJournal
    pid: int | None

    @property
    def top(self) -> str:
        return self.journal.top

    @property
    def finished(self) -> datetime:
        return self.journal.done[-1].finished

    def describe(self) -> str:
        """Return a text with the dataset, the time, the point and the server."""
        server = f"process {self.pid} serves it" if self.pid is not None else "its server is stopped"
        return f"{self.top}: restored at {self.finished:%Y-%m-%d %H:%M} UTC to {self.journal.plan.requested}; {server}"


def existing(settings: Settings, instance: Instance) -> list[FinishedRestore]:
    """Return the finished restores of the instance whose datasets exist, in the order of their targets.

    Raises NotFound if one of the datasets is destroyed during the call.
    """
    journals = Journals(settings.restore.journal)
    finished = [journal for journal in journals.history(instance.name) if journal.plan.promotion is None]
    # Most datasets of old restores no longer exist. This check starts no program.
    there = sorted(top for top in {journal.top for journal in finished} if datasets.exists(top))
    marks = datasets.properties_of(there, [RESTORED_PROPERTY]) if there else {}
    known = {
        journal.top: journal
        for journal in finished
        if journal.top in marks and restored_mark(journal.plan).is_on(marks[journal.top])
    }
    return [
        FinishedRestore(journal, copy_of(instance, journal.plan).process().pid())
        for top, journal in sorted(known.items())
        if not journals.path(top).exists()
    ]


def find(settings: Settings, instance: Instance, top: str | None) -> FinishedRestore | None:
    """Return the finished restore to the dataset `top`; None if there is none, or if it is None."""
    return next((one for one in existing(settings, instance) if one.top == top), None)


def _refuse_used(settings: Settings, instance: Instance, restore: FinishedRestore) -> None:
    """Raise PreflightError if the datasets were put into use by hand: by an instance, or by a server of its own."""
    plan = restore.journal.plan
    for name, one in settings.instance.items():
        if one.vm is not None:
            continue
        other = Instance.of(settings, name)
        used = {*existing_production(other), *recorded_volumes(other)}
        mine = [dataset for dataset in used if any(f"{dataset}/".startswith(f"{top}/") for top in plan.targets)]
        if mine:
            raise PreflightError(
                f"{', '.join(sorted(mine))} belongs to instance {name}, and was restored by {plan.restore_id}",
                hint="remove the instance from the configuration, or keep the datasets",
            )
    copy = copy_of(instance, plan)
    server = serving(copy.datadir)
    if server is not None and server.pid != copy.process().pid():
        raise PreflightError(
            f"process {server.pid} serves {copy.datadir}, and zsnapdb did not start it",
            hint="stop that server, if nobody needs its data any more",
        )


def remove(
    settings: Settings, instance: Instance, restore: FinishedRestore, *, with_foreign_snapshots: bool = False
) -> None:
    """End the server of the finished restore, and destroy its datasets, snapshots and journal.

    Raises:
        UnknownNameError: another command removed or continued the restore meanwhile.
        PreflightError: the datasets are production of an instance, another server uses them, or they have foreign
            snapshots that must stay. Nothing was changed.
    """
    journals, plan = Journals(settings.restore.journal), restore.journal.plan
    with lock_target(instance, plan):
        if find(settings, instance, restore.top) is None:
            raise UnknownNameError(
                f"the restore to {restore.top} was removed or continued meanwhile", hint="see `zfs list`"
            )
        _refuse_used(settings, instance, restore)
        clear_foreign(plan, may_go=with_foreign_snapshots)
        OnceRecords(instance.host).note_given_up(restore.journal.run_id)
        remove_all(plan, copy_of(instance, plan))
        warn_remaining(instance.events, plan.targets)
        journals.forget_finished(restore.journal)

"""Restores under way: which there are, and that each has one process, one dataset and one mount point."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zsnapdb.base.errors import PreflightError, UnknownNameError
from zsnapdb.jobs.base.exclusion import exclusive
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.planning.restore.steps import RestoreLayout


@contextlib.contextmanager
def alone(instance: Instance, layout: RestoreLayout) -> Iterator[None]:
    """Be the only restore to this target dataset, and the only restore that uses this mount point."""
    doing, folder = f"restoring to {layout.top}", instance.host.run
    mount = f"mount-{layout.mount.strip('/')}"
    with (
        exclusive(f"restore-{layout.top}", doing=doing, folder=folder),
        exclusive(mount, doing=f"using the mount point {layout.mount}", folder=folder),
    ):
        yield


@contextlib.contextmanager
def alone_with_journal(instance: Instance, journals: Journals, top: str | None) -> Iterator[RestoreJournal]:
    """Yield the journal of a restore under way, read again now that no other process works on this restore.

    NotThere if another process finished the restore, or gave it up, before this process had the lock.
    """
    before = journals.find(instance.name, top).plan
    with alone(instance, before.layout):
        journal = journals.read(before.layout.top)
        if journal is None or journal.plan.restore_id != before.restore_id:
            raise UnknownNameError(
                f"the restore to {before.layout.top} was finished or given up meanwhile",
                hint="see `zfs list`; nothing was changed",
            )
        yield journal


def refuse_begun(journals: Journals, layout: RestoreLayout) -> None:
    """Raise PreflightError if a restore to this target, or to this mount point, is under way."""
    begun = journals.read(layout.top)
    if begun is not None:
        raise PreflightError(
            f"a restore to {layout.top} was begun at {begun.plan.created:%Y-%m-%d %H:%M} UTC",
            hint="continue with --resume, or give the restore up with --abandon",
        )
    beside = journals.at_mount(layout.mount)
    if beside is not None:
        raise PreflightError(
            f"the restore to {beside.plan.layout.top}, which is under way, uses the mount point {layout.mount} too",
            hint="choose a target whose last part differs",
        )

"""The step of a restore that clones a volume from its snapshot on this host."""

from __future__ import annotations

from zsnapdb.base.errors import ConsistencyError, NotThere, PreflightError
from zsnapdb.jobs.restore.receiving import restored_mark, restored_property
from zsnapdb.jobs.restore.steps import ServerWork
from zsnapdb.planning.dataset_properties import explicit_values
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.steps import CloneSnapshot
from zsnapdb.zfs import datasets, owned, snapshots


def clone_snapshot(work: ServerWork, step: CloneSnapshot) -> None:
    """Clone one volume from its snapshot on this host, unless this restore cloned it before.

    PreflightError if that snapshot is gone, or is not the backup's. NotOursError if somebody else made the dataset.
    """
    mark = restored_mark(work.plan)
    if not datasets.exists(step.dataset):
        _refuse_another_origin(step)
        datasets.ensure(step.dataset.rpartition("/")[0])
        datasets.clone(
            step.origin,
            step.guid,
            step.dataset,
            {
                **explicit_values(),
                "canmount": "noauto",
                "mountpoint": step.mountpoint,
                **NO_SNAPSHOTS,
                **restored_property(work.plan),
            },
        )
    owned.prove([step.dataset], mark)
    if datasets.origin_guid(step.dataset) != step.guid:
        raise ConsistencyError(
            f"{step.dataset} is not a clone of {step.origin} as it was when the restore was planned",
            hint=f"give it up with `zsnapdb restore {work.plan.instance} --abandon`, and start again",
        )
    start = f"{step.dataset}@{step.snapshot}"
    if start not in snapshots.by_guid(step.dataset).values():
        made = snapshots.PendingSnapshots.of([start], restored_property(work.plan))
        made.start()
        made.finish()


def _refuse_another_origin(step: CloneSnapshot) -> None:
    """Raise PreflightError unless the snapshot is on this host as it was when the restore was planned."""
    try:
        is_same = datasets.guid(step.origin) == step.guid
    except NotThere:
        is_same = False
    if not is_same:
        raise PreflightError(
            f"the snapshot {step.origin} was destroyed after the restore was planned",
            hint="start again: the restore is then planned from what is there",
        )

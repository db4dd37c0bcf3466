"""Snapshots that others made on the datasets of a restore that is under way."""

from __future__ import annotations

from zsnapdb.jobs.restore.steps import restored_mark
from zsnapdb.planning.foreign_snapshots import objection
from zsnapdb.planning.restore.steps import Receive, RestorePlan
from zsnapdb.zfs import foreign, owned


def clear(planned: RestorePlan, *, may_go: bool) -> None:
    """Destroy the snapshots that others made on the restore's datasets, if `may_go`; nothing happens without any.

    ZFS neither receives an increment nor rolls back over a later snapshot (zfs-receive(8), zfs-rollback(8)).
    PreflightError, before anything is changed, says whose they are if they must stay.
    """
    received = {(step.dataset, step.guid) for step in planned.steps if isinstance(step, Receive)}
    top, mark = planned.layout.top, restored_mark(planned)
    others = foreign.below(top, [mark], lambda snapshot: (snapshot.dataset, snapshot.guid) in received)
    error = objection(f"the restore to {top}", others, may_go=may_go)
    if error is not None:
        raise error
    owned.destroy_snapshots_on([snapshot.name for snapshot in others], mark)

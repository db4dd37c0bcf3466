"""One consistent snapshot set: lock, one command over all volumes, unlock, proof. Nothing unproved is kept."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb import __version__, gtid
from zsnapdb.errors import ConsistencyError, LockError
from zsnapdb.jobs.common import BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY, TAKEN, Instance, snapshot_name, undone_on_error
from zsnapdb.jobs.observe import Observed, role_of
from zsnapdb.model import PROPERTY, Position, Snapshot, SnapshotSet
from zsnapdb.mysql import locks
from zsnapdb.mysql.binlog import position_in
from zsnapdb.mysql.probe import published_position
from zsnapdb.mysql.session import Session
from zsnapdb.planning.identity import binlog_paths
from zsnapdb.zfs import snapshots

_CATCH_UP_SECONDS = 30.0


@dataclass(frozen=True)
class Taken:
    """A proved snapshot set: its position and how long the lock was held, in milliseconds."""

    set: SnapshotSet
    position: Position
    held_ms: float


def take(instance: Instance, observed: Observed, session: Session, backup_id: str) -> Taken:
    """Make the instance's snapshot set `backup_id` and prove it. On any error its snapshots are gone again.

    LockError if the lock was not to be had, was lost, or the snapshot took longer than the deadline;
    ConsistencyError if the snapshots are not one, or the position does not contain what was published before.
    """
    short = snapshot_name(backup_id)
    names = {role: f"{dataset}@{short}" for role, dataset in sorted(instance.settings.volumes.items())}
    properties = {
        BACKUP_PROPERTY: backup_id,
        INSTANCE_PROPERTY: instance.name,
        STATE_PROPERTY: TAKEN,
        f"{PROPERTY}:lock": observed.choice.name,
        f"{PROPERTY}:version": __version__,
    }
    with undone_on_error(lambda: snapshots.destroy_made(list(names.values()), backup_id)):
        before = published_position(session, observed.facts)
        held_ms = _snapshot_under_lock(instance, observed, session, list(names.values()), properties)
        made = snapshots.describe(list(names.values()))
        snapshots.check_one_group(made)
        position = _prove_position(instance, observed, session, dict(zip(names, made, strict=True)), before)
        snapshots.hold(list(names.values()))
    return Taken(SnapshotSet(backup_id, dict(zip(names, made, strict=True))), position, held_ms)


def _snapshot_under_lock(instance: Instance, observed: Observed, session: Session, names: list[str], properties: dict[str, str]) -> float:
    deadline = instance.settings.lock.deadline
    strategy = locks.strategy(observed.choice.name, deadline)
    pending: snapshots.PendingSnapshots | None = None
    try:
        with locks.held(strategy, session, deadline) as hold:
            pending = snapshots.PendingSnapshots.start(names, properties)
            in_time = pending.done_within(hold.remaining())
            if in_time:
                hold.check()
    finally:
        # The lock is gone. The kernel finishes the snapshots whatever became of us, and only then can they be removed.
        if pending is not None:
            pending.finish()
    if not in_time:
        raise LockError(
            f"the snapshot of {len(names)} volumes was not made within lock.deadline = {deadline:g} s; the lock was let go",
            hint="the pool is slow to sync, see `zpool iostat -l`; or raise lock.deadline",
        )
    return hold.held_ms


def _prove_position(instance: Instance, observed: Observed, session: Session, made: dict[str, Snapshot], before: Position) -> Position:
    """Return the position from the snapshot's own binlog. What was published before must be in it; it must be published soon."""
    facts = observed.facts
    paths = binlog_paths(facts.variables, "log_bin")
    if not facts.has_binlog or paths is None:
        return before
    base, index = paths
    position = position_in(
        _in_snapshot(index, observed, instance, made),
        _in_snapshot(os.path.dirname(base), observed, instance, made),
        facts.flavour,
        has_gtids=before.gtids is not None,
    )
    if isinstance(position.gtids, gtid.GtidSet):
        # Transactions that are in no binlog at all (gtid_purged) are part of the state too (refman 8.4, "gtid_purged").
        position = replace(position, gtids=position.gtids.union(facts.gtid_purged))
    if not _covers(position, before):
        raise ConsistencyError(
            f"the server had published {before.describe()} before the snapshot, whose binlog ends at {position.describe()}",
            hint="do all paths of the server lie on the snapshotted volumes? the snapshots were removed",
        )
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while not _covers(published_position(session, facts), position):
        if time.monotonic() > deadline:
            raise ConsistencyError(
                f"the snapshot's binlog ends at {position.describe()}, which the server has not published {_CATCH_UP_SECONDS:.0f} s later",
                hint="did the server restart, or was its binlog reset, during the backup? run it again",
            )
        time.sleep(0.05)
    return position


def _covers(later: Position, earlier: Position) -> bool:
    """Whether all of `earlier` is in `later`, by GTIDs and by binlog coordinates."""
    if later.gtids is not None and earlier.gtids is not None and not gtid.contains(later.gtids, earlier.gtids):
        return False
    if later.coordinates is None or earlier.coordinates is None:
        return True
    there, here = later.coordinates, earlier.coordinates
    return (_number(there.file), there.offset) >= (_number(here.file), here.offset)


def _number(file: str) -> int:
    """Return the number a binlog file's name ends in."""
    return int(file.rpartition(".")[2])


def _in_snapshot(path: str, observed: Observed, instance: Instance, made: dict[str, Snapshot]) -> Path:
    """Return where the snapshot shows a path of the server (zfsconcepts(7): .zfs/snapshot)."""
    real = os.path.realpath(path)
    role = role_of(real, observed, instance)
    root = observed.mountpoints[role]
    return Path(root) / ".zfs" / "snapshot" / made[role].name / os.path.relpath(real, root)

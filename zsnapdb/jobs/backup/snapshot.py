"""One consistent snapshot set: hooks, lock, one request over all volumes, unlock, proof. Nothing unproved is kept."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb import __version__, gtid
from zsnapdb.errors import ConsistencyError, LockError, LockNotGranted, PreflightError
from zsnapdb.jobs.backup import applier
from zsnapdb.jobs.backup.hooks import Hooked
from zsnapdb.jobs.backup.low_priority import stepped_back
from zsnapdb.jobs.backup.preflight import Observed, role_of
from zsnapdb.jobs.instance import Instance, Tell
from zsnapdb.jobs.set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    LOCK_PROPERTY,
    POSITION_PROPERTY,
    STATE_PROPERTY,
    TAKEN,
    VERSION_PROPERTY,
    snapshot_name,
)
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import Flavour, Position, Snapshot, SnapshotSet
from zsnapdb.mysql import locks
from zsnapdb.mysql.binlog import position_in
from zsnapdb.mysql.ddl_log import statements_half_done
from zsnapdb.mysql.paths import absolute_tablespaces
from zsnapdb.mysql.probe import published_position, what_may_have_changed
from zsnapdb.mysql.session import Session
from zsnapdb.planning.backup.fitness import judge_durability, objection
from zsnapdb.planning.backup.lock_strategy import LockChoice, still_enough
from zsnapdb.planning.backup.lock_wait import delays
from zsnapdb.planning.facts import Channel
from zsnapdb.planning.server_copy.identity import binlog_paths
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY, Origin
from zsnapdb.zfs import owned, snapshots

_CATCH_UP_SECONDS = 30.0
_AT_ONCE_SECONDS = 1.0
"""How long a lock that can be done without is waited for: the least lock_wait_timeout there is."""
_POSITION_BYTES = 4096


@dataclass(frozen=True)
class Taken:
    """A proved snapshot set: its position, the lock it was made under and for how many milliseconds, the replication channels' positions."""

    set: SnapshotSet
    position: Position
    choice: LockChoice
    held_ms: float
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class _Made:
    """What came of the lock: which one, for how many milliseconds, what the server published just before the snapshot."""

    choice: LockChoice
    held_ms: float
    before: Position
    channels: tuple[Channel, ...]


def take(
    instance: Instance, observed: Observed, session: Session, backup_id: str, tell: Tell, state: str = TAKEN
) -> Taken:
    """Make the instance's snapshot set `backup_id` and prove it. On any error its snapshots are gone again.

    `state` is what the set is marked as from the request on. `session` asks the server; the lock is held by a
    connection of its own. LockError if the lock was not to be had within its budget, was lost, or the snapshot took
    longer than the deadline; HookError if a hook aborts; ConsistencyError if the snapshots are not one, or the position
    does not contain what was published before.
    """
    short = snapshot_name(backup_id)
    names = {role: f"{dataset}@{short}" for role, dataset in sorted(observed.volumes.items())}
    hooked = Hooked(instance.name, instance.hooks(), backup_id, tuple(names.values()), tell)
    origin = Origin.of(observed.facts, observed.volumes, observed.mountpoints, absolute_tablespaces(observed.facts))
    marks = {STATE_PROPERTY: state, ORIGIN_PROPERTY: origin.encode()}
    with undone_on_error(lambda: owned.destroy_set(list(names.values()), backup_id)):
        with hooked.around():
            done = _under_least_lock(instance, observed, session, hooked, backup_id, marks)
        with stepped_back():
            made = snapshots.describe(list(names.values()))
            snapshots.check_one_group(made)
            position = _prove_position(instance, observed, session, dict(zip(names, made, strict=True)), done.before)
            snapshots.hold(list(names.values()))
            snapshots.set_on(list(names.values()), {POSITION_PROPERTY: position.short(_POSITION_BYTES)})
    return Taken(
        SnapshotSet(backup_id, dict(zip(names, made, strict=True))), position, done.choice, done.held_ms, done.channels
    )


def _under_least_lock(
    instance: Instance, observed: Observed, session: Session, hooked: Hooked, backup_id: str, marks: Mapping[str, str]
) -> _Made:
    """Make the snapshots under the chosen lock.

    One that is not granted is done without where that is right, else tried again within lock.budget.
    """
    give_up = time.monotonic() + instance.settings.lock.budget
    choice = observed.choice
    pauses = delays()
    while True:
        try:
            with applier.stopped(instance, session, observed.facts) as channels:
                try:
                    return _attempt(instance, observed, session, hooked, choice, channels, backup_id, marks)
                except LockNotGranted as error:
                    if choice.fallback is None:
                        raise
                    hooked.tell(f"{choice.name}: {error.message}; going on with {choice.fallback.name}")
                    choice = replace(
                        choice.fallback, reason=f"{choice.fallback.reason}; {choice.name} was not granted at once"
                    )
        except LockNotGranted as error:
            pause = next(pauses)
            if time.monotonic() + pause > give_up:
                raise
            hooked.tell(f"{choice.name}: {error.message}; trying again in {pause:g} s")
            time.sleep(pause)


def _attempt(
    instance: Instance,
    observed: Observed,
    session: Session,
    hooked: Hooked,
    choice: LockChoice,
    channels: tuple[Channel, ...],
    backup_id: str,
    marks: Mapping[str, str],
) -> _Made:
    """Take the lock once and make the snapshots under it.

    Everything slow is done before the first statement that holds anything.
    """
    settings = instance.settings.lock
    deadline = settings.deadline
    strategy = locks.strategy(choice.name, longest=settings.longest_statement, kill=settings.kill)
    terms = locks.Terms(deadline, _AT_ONCE_SECONDS if choice.fallback is not None else deadline)
    in_time = False
    with (
        _courteous(choice, hooked) as hurried,
        instance.session(read_timeout=deadline + 30) as owner,
        instance.session() as second,
    ):
        before = published_position(session, observed.facts)
        _refuse_change(session, observed, choice)
        properties = {
            BACKUP_PROPERTY: backup_id,
            INSTANCE_PROPERTY: instance.name,
            **marks,
            LOCK_PROPERTY: choice.name,
            VERSION_PROPERTY: __version__,
            # A lower bound, so that even a set whose taker died says where it stands; the exact one is set once it is
            # proved.
            POSITION_PROPERTY: f"at least {before.short(_POSITION_BYTES)}",
        }
        pending = snapshots.PendingSnapshots.of(hooked.snapshots, properties)
        try:
            with hurried(), locks.held(strategy, owner, locks.Watchdog(second), terms) as hold:
                hooked.locked(choice.name, hold.remaining())
                pending.start()
                in_time = pending.done_within(hold.remaining())
        except LockNotGranted:
            raise
        except LockError:
            if in_time or not pending.is_started:
                raise
            # The watchdog was first to see that the deadline has passed; that is told below.
        finally:
            # The lock is gone. The kernel finishes the snapshots whatever became of us, and only then can they be
            # removed.
            pending.finish()
        if not in_time:
            raise LockError(
                f"the snapshot of {len(hooked.snapshots)} volumes was not made within lock.deadline = {deadline:g} s;"
                " the lock was let go",
                hint="the pool is slow to sync, see `zpool iostat -l`; or raise lock.deadline",
            )
        _refuse_change(session, observed, choice)
        _refuse_half_done_ddl(instance, observed, choice, hooked.snapshots, backup_id)
    return _Made(choice, hold.held_ms, before, channels)


@contextlib.contextmanager
def _courteous(choice: LockChoice, hooked: Hooked) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Step back as far as nothing is held by us.

    Hooks may hold anything from the first to the last; with them there is no stepping back.

    What is yielded is for the time of the lock; without one, nobody waits for us even then.
    """
    if hooked.is_any:
        yield contextlib.nullcontext
        return
    with stepped_back() as courtesy:
        yield contextlib.nullcontext if not choice.lock.holds_ddl else courtesy.interrupted


def _refuse_change(session: Session, observed: Observed, choice: LockChoice) -> None:
    """Raise PreflightError if the server has been changed since it was found fit, so that a snapshot now would lie."""
    facts = what_may_have_changed(session, observed.facts, engines=choice.lock.needs_crash_safe)
    error = objection(judge_durability(facts))
    if error is not None:
        raise error
    reason = still_enough(choice, facts)
    if reason is not None:
        raise PreflightError(
            f"{choice.name} is no longer enough: {reason}", hint="run the backup again: the lock is chosen anew"
        )


def _refuse_half_done_ddl(
    instance: Instance, observed: Observed, choice: LockChoice, names: tuple[str, ...], backup_id: str
) -> None:
    """Raise LockNotGranted, with the snapshots gone, if MariaDB's recovery would finish a DDL statement and write it to its binlog.

    The recovered server would then be one transaction past the recorded position. Every lock keeps DDL out; without one
    it is a matter of chance.
    """
    if choice.lock.holds_ddl or observed.facts.flavour is not Flavour.MARIADB:
        return
    half_done = statements_half_done(
        _in_snapshot(observed.facts.variables["datadir"], observed, instance, snapshot_name(backup_id))
    )
    if half_done:
        owned.destroy_set(names, backup_id)
        raise LockNotGranted(
            f"{half_done} DDL statement(s) were half done in the snapshot",
            hint="use lock.strategy = 'stage', which waits for them",
        )


def _prove_position(
    instance: Instance, observed: Observed, session: Session, made: dict[str, Snapshot], before: Position
) -> Position:
    """Return the position from the snapshot's own binlog.

    What was published before must be in it; it must be published soon.
    """
    facts = observed.facts
    paths = binlog_paths(facts.variables, "log_bin")
    if not facts.has_binlog or paths is None:
        return before
    base, index = paths
    short = next(iter(made.values())).name
    position = position_in(
        _in_snapshot(index, observed, instance, short),
        _in_snapshot(os.path.dirname(base), observed, instance, short),
        facts.flavour,
        has_gtids=before.gtids is not None,
    )
    if isinstance(position.gtids, gtid.GtidSet):
        # Transactions that are in no binlog at all (gtid_purged) are part of the state too (refman 8.4, "gtid_purged").
        position = replace(position, gtids=position.gtids.union(facts.gtid_purged))
    if not _covers(position, before):
        raise ConsistencyError(
            f"the server had published {before.describe()} before the snapshot, whose binlog ends at"
            f" {position.describe()}",
            hint="do all paths of the server lie on the snapshotted volumes? the snapshots were removed",
        )
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while not _covers(published_position(session, facts), position):
        if time.monotonic() > deadline:
            raise ConsistencyError(
                f"the snapshot's binlog ends at {position.describe()}, which the server has not published"
                f" {_CATCH_UP_SECONDS:.0f} s later",
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


def _in_snapshot(path: str, observed: Observed, instance: Instance, short: str) -> Path:
    """Return where the snapshot of that short name shows a path of the server (zfsconcepts(7): .zfs/snapshot)."""
    real = os.path.realpath(path)
    root = observed.mountpoints[role_of(real, observed, instance)]
    return Path(root) / ".zfs" / "snapshot" / short / os.path.relpath(real, root)

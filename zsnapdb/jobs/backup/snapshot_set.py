"""Makes one consistent snapshot set of a source.

Hold the source still, make all snapshots in one request, let the source go, prove the set. A set without a proof is
removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from zsnapdb.base.errors import LockError, LockNotGranted, ServerError, ZsnapdbError
from zsnapdb.base.model import Flavour, SnapshotSet
from zsnapdb.jobs.backup.source import H, O, P, SnapshotRequest, Source
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.interruption import undone_on_error
from zsnapdb.jobs.base.set_properties import BASE_TAG, TAKEN
from zsnapdb.mysql.probe import channels, flavour_and_dialect
from zsnapdb.mysql.replication import applier as statements
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import Channel, Dialect, ServerFacts
from zsnapdb.zfs import holds, snapshots
from zsnapdb.zfs.command import run

_STEPS = 10
"""Added to the nice value: a busy thread then gets about a tenth of a contended processor (sched(7))."""
_THIS_THREAD = 0


class LowPriority:
    """The low priority of a block, the priority of the thread before it, and a high one (all the same: none is set)."""

    def __init__(self, before: int, low: int, high: int) -> None:
        self._before = before
        self._low = low
        self._high = high

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Run the block at a high priority, if this account may, or else at the former one.

        Use this while others wait for a lock of this thread: each moment in which it waits for a processor, they wait.
        """
        _set(self._before)
        with contextlib.suppress(PermissionError):
            _set(self._high)
        try:
            yield
        finally:
            _set(self._low)


@contextlib.contextmanager
def at_low_priority(*, may_stay_low: bool = False) -> Iterator[LowPriority]:
    """Run the block at low priority: this thread, and the threads and processes that the thread starts.

    See setpriority(2), "C library/kernel differences". Where the kernel schedules by session or control group, the
    priority counts only within the group of this process (sched(7)). Take a lock inside `hurried`, as others wait for
    the holder of a lock. An account that may not raise its priority again keeps its priority, unless the priority may
    stay low after the block (`may_stay_low`).
    """
    before = os.getpriority(os.PRIO_PROCESS, _THIS_THREAD)
    can_restore = _may_restore(before)
    if not (can_restore or may_stay_low):
        yield LowPriority(before, before, before)
        return
    low = min(19, before + _STEPS)
    _set(low)
    try:
        yield LowPriority(before, low, max(-20, before - _STEPS)) if can_restore else LowPriority(low, low, low)
    finally:
        if can_restore:
            _set(before)


def lower_for_good() -> None:
    """Run the rest of this thread, and what it starts from now on, at low priority. Nobody waits for it any more."""
    _set(min(19, os.getpriority(os.PRIO_PROCESS, _THIS_THREAD) + _STEPS))


def _set(priority: int) -> None:
    os.setpriority(os.PRIO_PROCESS, _THIS_THREAD, priority)


def _may_restore(before: int) -> bool:
    """Whether this account may raise a priority that it lowered: by CAP_SYS_NICE (capabilities(7)) or RLIMIT_NICE.

    A short-lived thread tries this.
    """
    allowed: list[bool] = []

    def attempt() -> None:
        try:
            _set(min(19, before + 1))
            _set(before)
            allowed.append(True)
        except PermissionError:
            pass

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(allowed)


@dataclass(frozen=True)
class Taken(Generic[P]):
    """A snapshot set, and what its source proved of the set. `holds_bases`: whether what it is sent from is held."""

    set: SnapshotSet
    proof: P
    holds_bases: bool = False


def take(
    source: Source[O, H, P],
    observed: O,
    instance: str,
    backup_id: str,
    events: Events,
    state: str = TAKEN,
    *,
    run_id: str,
    bases: Sequence[str] = (),
) -> Taken[P]:
    """Make the snapshot set `backup_id` of the source of an instance, and prove the set.

    The request marks the snapshots with `state`. Afterwards those that a backup is made of are held and bookmarked, so
    that the next increment is possible even if they are removed, and the snapshots `bases` that it is sent from are
    held; others need no hold, as ZFS destroys no snapshot that has clones. On an error the snapshots are removed. The
    errors are those of the source; ConsistencyError if the snapshots are not of one transaction group.
    """
    request = SnapshotRequest(instance, backup_id, dict(observed.volumes), state, run_id)
    with undone_on_error(request.withdraw):
        hold = source.hold(observed, request, events)
        with at_low_priority():
            made = request.made()
            proof = source.prove(observed, hold, made)
            if state != TAKEN:
                snapshots.set_on(request.names, proof.properties)
                return Taken(made, proof)
            return Taken(made, proof, holds.keep(request.names, proof.properties, dict.fromkeys(bases, BASE_TAG)))


_STOP_SECONDS = 60.0
_START_ATTEMPTS = 3


def _marker(instance: Instance) -> Path:
    """Return the file that names the stopped channels, so that the next run can start them if this run is killed.

    A reboot removes the file. The reboot also restarts the server.
    """
    return instance.host.run / f"applier-{instance.name}"


def is_forgotten(instance: Instance) -> bool:
    """Whether a killed run left the applier stopped, or a running backup has stopped the applier."""
    return _marker(instance).exists()


def start_forgotten(instance: Instance, session: Session) -> str | None:
    """Start the channels that a killed run left stopped. Return the text of a warning, None if there were none.

    The caller holds the lock of the instance.
    """
    if not is_forgotten(instance):
        return None
    names = json.loads(_marker(instance).read_text() or "[]")
    _start(instance, *flavour_and_dialect(session), names)
    return "a killed run had left the applier stopped; zsnapdb started the applier again"


@contextlib.contextmanager
def stopped(instance: Instance, session: Session, facts: ServerFacts) -> Iterator[tuple[Channel, ...]]:
    """Stop the applier for the block if lock.stop_applier is set, and yield the channels with their positions.

    Only channels that were applying are stopped, and only these channels are started again. The start uses a new
    connection, as the connection that stopped the channels may be lost. LockNotGranted while replicated temporary
    tables are open: a restored replica could not continue from there (refman 8.4, "Replication and Temporary Tables").
    """
    running = channels(session, facts.dialect) if facts.channels else ()
    names = [channel.name for channel in running if channel.applying]
    if not (instance.settings.lock.stop_applier and names):
        yield running
        return
    _marker(instance).write_text(json.dumps(names))
    try:
        _stop(instance, facts, names)
        yield _at_rest(session, facts)
    except BaseException as error:
        try:
            _start(instance, facts.flavour, facts.dialect, names)
        except ServerError as second:
            error.add_note(f"the applier could not be started again: {second.message}; the next run tries again")
        raise
    _start(instance, facts.flavour, facts.dialect, names)


def _stop(instance: Instance, facts: ServerFacts, names: Sequence[str]) -> None:
    """Stop the channels. The statement waits for the current transaction; the read timeout bounds the wait."""
    with instance.session(read_timeout=_STOP_SECONDS) as session:
        statements.stop(session, facts.flavour, facts.dialect, names)


def _start(instance: Instance, flavour: Flavour, dialect: Dialect, names: Sequence[str]) -> None:
    """Start the channels and remove the marker. The server first completes a stop that still runs."""
    for attempt in range(_START_ATTEMPTS):
        try:
            with instance.session(read_timeout=_STOP_SECONDS) as session:
                statements.start(session, flavour, dialect, names)
        except ServerError:
            if attempt == _START_ATTEMPTS - 1:
                raise
            time.sleep(1.0)
        else:
            _marker(instance).unlink(missing_ok=True)
            return


def _at_rest(session: Session, facts: ServerFacts) -> tuple[Channel, ...]:
    open_tables = statements.open_temporary_tables(session)
    if open_tables:
        raise LockNotGranted(
            f"the applier stopped with {open_tables} replicated temporary table(s) open, which a restored replica would"
            " not have",
            hint="zsnapdb tries again within lock.budget; set binlog_format = ROW on the source to avoid such tables",
        )
    return channels(session, facts.dialect)


_SWITCHES = ("myisam_use_mmap", "rocksdb_allow_mmap_writes")
_AHEAD_SECONDS = 60.0
"""How long the first of two writes may take, which happens without a lock. Most pages are written by it."""


def is_written_through_memory(facts: ServerFacts) -> bool:
    """Whether the server may change files of tables through its memory.

    A table that was opened while a switch was on stays mapped, so MyISAM tables are enough.
    """
    return "MyISAM" in facts.engines or any(facts.variables.get(name) == "ON" for name in _SWITCHES)


def write_back(mountpoints: Iterable[str], seconds: float = _AHEAD_SECONDS) -> None:
    """Write the changed pages of the file systems back; afterwards a snapshot has them (sync(1), syncfs(2)).

    LockError if that takes longer than `seconds`, or fails.
    """
    places = sorted(set(mountpoints))
    try:
        run(["sync", "--file-system", "--", *places], timeout=max(seconds, 0.1))
    except ZsnapdbError as error:
        raise LockError(
            f"writing mapped files of {', '.join(places)} back: {error.message}",
            hint=f"raise lock.deadline, or switch off on the server: {', '.join(_SWITCHES)}",
        ) from error

"""A backup source that is a database server on filesystems of this host.

During the snapshot, hooks, a stopped applier and a lock prevent writes. The binlog in the snapshot proves the position
of the backup.

A snapshot contains a change through mapped memory only after the kernel has written the change back. With the setting
myisam_use_mmap, MyISAM changes rows directly in the mapped file. FLUSH TABLES unmaps the file without a sync
(storage/myisam/mi_dynrec.c of MySQL and MariaDB). After FLUSH TABLES, the changed pages are only in the page cache, so
a ZFS snapshot does not contain them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import gtid
from zsnapdb.base.domain_types import Position, SnapshotSet
from zsnapdb.base.errors import ConsistencyError, LockError, LockNotGranted, PreflightError, ZsnapdbError
from zsnapdb.jobs.backup import replica_applier
from zsnapdb.jobs.backup.hooks import Hooked
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.preflight import Observed, observe, role_of
from zsnapdb.jobs.backup.source_interface import AnySource, SnapshotRequest, SourceDescription
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import LOCK_PROPERTY, POSITION_PROPERTY, snapshot_name
from zsnapdb.jobs.host.dataset_tuning import volume_facts
from zsnapdb.jobs.host.site_dataset_settings import recorded_settings
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.jobs.record import binlog_tail_record, server_unit_record
from zsnapdb.mysql import locks
from zsnapdb.mysql.binlog.tail import KnownTail, find_position, tail_near_end
from zsnapdb.mysql.probe import published_position, refresh_facts
from zsnapdb.mysql.process.server import owner_of_files
from zsnapdb.mysql.process.written_paths import absolute_tablespaces, keyring_paths, statements_half_done
from zsnapdb.mysql.session import Session
from zsnapdb.planning.backup.fitness import judge_durability, require_fit, unlogged_changes
from zsnapdb.planning.backup.lock_strategy import LockChoice, delays, still_enough
from zsnapdb.planning.server_copy.copy_options import binlog_paths
from zsnapdb.planning.server_copy.source_facts import (
    ORIGIN_PROPERTY,
    SourceServer,
    recorded_origins,
    recorded_variables,
)
from zsnapdb.planning.server_facts import Channel, ServerFacts
from zsnapdb.planning.server_family import family
from zsnapdb.repository.manifest import FilesystemType
from zsnapdb.repository.manifest_source import (
    ChannelPart,
    FileOwnerPart,
    LockPart,
    PositionPart,
    ServerPart,
    ServerSourcePart,
)
from zsnapdb.zfs import snapshot_files
from zsnapdb.zfs.command import run

_SWITCHES = ("myisam_use_mmap", "rocksdb_allow_mmap_writes")
_AHEAD_SECONDS = 60.0
"""The time limit in seconds of the first of two write-backs.

The first write-back runs without a lock and writes most of the pages.
"""
_CATCH_UP_SECONDS = 30.0


def is_written_through_memory(facts: ServerFacts) -> bool:
    """Return whether the server may change table files through mapped memory.

    A table that was opened while myisam_use_mmap was on stays mapped, so the result is True if any MyISAM table exists.
    """
    return "MyISAM" in facts.engines or any(facts.variables.get(name) == "ON" for name in _SWITCHES)


def write_back(mountpoints: Iterable[str], seconds: float = _AHEAD_SECONDS) -> None:
    """Write changed pages back to the file systems, so that a snapshot contains them (sync(1), syncfs(2)).

    Raises:
        LockError: the write-back fails or takes longer than `seconds`.
    """
    places = sorted(set(mountpoints))
    try:
        run(["sync", "--file-system", "--", *places], timeout=max(seconds, 0.1))
    except ZsnapdbError as error:
        raise LockError(
            f"could not write back the memory-mapped files of {', '.join(places)}: {error.message}",
            hint=f"raise lock.deadline, or switch off on the server: {', '.join(_SWITCHES)}",
        ) from error


def tail_before(instance: Instance, observed: Observed) -> KnownTail | None:
    """Return the known end of the server's newest binlog. Call this before the server is locked.

    If the server has written little since the recorded tail, return the recorded tail. Otherwise read the server's own
    files after the recorded tail. `prove_position` uses a tail only if the binlog in the snapshot contains it too, and
    only `prove_position` records a tail. Errors are ignored here, because `prove_position` reports the same errors.
    """
    known = binlog_tail_record.read(instance, observed.facts.flavour)
    paths = binlog_paths(observed.facts.variables, "log_bin")
    is_walked_whole = observed.binlog_key is not None and family(observed.facts.flavour).encrypts_each_event
    if not observed.facts.has_binlog or paths is None or is_walked_whole:
        return known
    base, index = (Path(path) for path in paths)
    has_gtids = observed.position.gtids is not None
    with at_low_priority(), contextlib.suppress(OSError, ZsnapdbError):
        return tail_near_end(index, base.parent, known, observed.facts.flavour, has_gtids=has_gtids, keys=observed.keys)
    return known


def prove_position(
    instance: Instance, observed: Observed, session: Session, backup_id: str, before: Position, known: KnownTail | None
) -> Position:
    """Return the position in the snapshot's own binlog.

    If the binlog contains the `known` tail, only the bytes after that tail are read. The position must contain every
    transaction that the server had published before the snapshot, and the server must publish that position within a
    short time. Afterwards the tail of the snapshot is recorded.

    Raises:
        ConsistencyError: a published transaction is missing, or the server does not publish the position.
    """
    facts = observed.facts
    paths = binlog_paths(facts.variables, "log_bin")
    if not facts.has_binlog or paths is None:
        return before
    base, index = paths
    with in_snapshot([index, os.path.dirname(base)], observed, instance, backup_id) as (its_index, folder):
        found = find_position(
            its_index, folder, facts.flavour, known, has_gtids=before.gtids is not None, keys=observed.keys
        )
    position = found.position
    if isinstance(position.gtids, gtid.GtidSet):
        # The data also contains transactions that are in no binlog (refman 8.4, "gtid_purged").
        position = replace(position, gtids=position.gtids.union(facts.gtid_purged))
    if not _covers(position, before):
        raise ConsistencyError(
            f"the server had published {before.describe()} before the snapshot, but the binlog in the snapshot ends at"
            f" {position.describe()}",
            hint="check that all paths of the server are on the volumes; the snapshots were removed",
        )
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while not _covers(published_position(session, facts), position):
        if time.monotonic() > deadline:
            raise ConsistencyError(
                f"the snapshot's binlog ends at {position.describe()}, which the server has not published"
                f" {_CATCH_UP_SECONDS:.0f} s later",
                hint="check whether the server restarted or its binlog was reset; run the backup again",
            )
        time.sleep(0.05)
    if found.tail is not None:
        binlog_tail_record.write(instance, facts.flavour, found.tail)
    return position


def _covers(later: Position, earlier: Position) -> bool:
    """Return whether the position `later` includes the position `earlier`, by GTIDs and by binlog coordinates."""
    if later.gtids is not None and earlier.gtids is not None and not gtid.contains(later.gtids, earlier.gtids):
        return False
    if later.coordinates is None or earlier.coordinates is None:
        return True
    there, here = later.coordinates, earlier.coordinates
    return (_number(there.file), there.offset) >= (_number(here.file), here.offset)


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])


@contextlib.contextmanager
def in_snapshot(paths: Sequence[str], observed: Observed, instance: Instance, backup_id: str) -> Iterator[list[Path]]:
    """Yield the paths of the server's files in the snapshot set of the backup, valid during the block."""
    roots: dict[str, Path] = {}
    with contextlib.ExitStack() as opened:
        inside = []
        for path in paths:
            real = os.path.realpath(path)
            role = role_of(real, observed, instance)
            mountpoint = observed.mountpoints[role]
            if role not in roots:
                name = f"{observed.volumes[role]}@{snapshot_name(backup_id)}"
                roots[role] = opened.enter_context(snapshot_files.root_of(name, Path(mountpoint)))
            inside.append(roots[role] / os.path.relpath(real, mountpoint))
        yield inside


_AT_ONCE_SECONDS = 1.0
"""The time in seconds to wait for a lock that has a fallback. It is the smallest lock_wait_timeout of MySQL."""
_POSITION_BYTES = 4096


@dataclass(frozen=True)
class ServerHold:
    """The result of holding the server: the lock, and the time in milliseconds for which the lock was held.

    The server published the position `before` just before the snapshot. Its replication channels at that time are
    `channels`. The tail `known` of the newest binlog was read before the hold.
    """

    choice: LockChoice
    held_ms: float
    before: Position
    channels: tuple[Channel, ...]
    known: KnownTail | None = None


@dataclass(frozen=True)
class ServerProof:
    """The proved position of a set, its lock, and the positions of the replication channels.

    The time for which the lock was held is in milliseconds.
    """

    position: Position
    choice: LockChoice
    held_ms: float
    channels: tuple[Channel, ...]

    @property
    def properties(self) -> Mapping[str, str]:
        """The snapshot properties that contain the exact position."""
        return {POSITION_PROPERTY: self.position.short(_POSITION_BYTES)}


@contextlib.contextmanager
def open_server(instance: Instance) -> Iterator[ServerSource]:
    """Yield the server of the instance with an open session.

    Raises:
        ServerError: the server cannot be reached.
    """
    with open_session(instance) as session:
        yield ServerSource(instance, session)


@dataclass(frozen=True)
class ServerSource:
    """The server of an instance. The session `session` is used for queries. A different connection holds the lock."""

    instance: Instance
    session: Session

    def recover(self) -> str | None:
        """If a killed run left the applier stopped, start it. The caller holds the lock of the instance."""
        return replica_applier.start_forgotten(self.instance, self.session)

    def observe(self) -> Observed:
        """Check the server, its files and its datasets.

        Raises:
            PreflightError: the instance is not fit for a backup; the message lists every objection.
        """
        return observe(self.instance, self.session)

    def hold(self, observed: Observed, request: SnapshotRequest, events: Events) -> ServerHold:
        """Create the snapshots between the hooks, with the applier stopped, under the weakest sufficient lock.

        Raises:
            LockError: the lock was lost or was not acquired within `lock.budget`, or the snapshot took longer than
                `lock.deadline`.
            HookError: a hook aborts the backup.
            PreflightError: the server has changed since it was observed.
        """
        hooked = Hooked(self.instance.name, self.instance.hooks(), request.backup_id, request.names, events)
        origin = origin_of(observed)
        known = tail_before(self.instance, observed)
        with hooked.around():
            held = _under_least_lock(
                self.instance, observed, self.session, hooked, request, {ORIGIN_PROPERTY: origin.encode()}
            )
        return replace(held, known=known)

    def prove(self, observed: Observed, hold: ServerHold, made: SnapshotSet) -> ServerProof:
        """Return the position that the binlog in the snapshot set proves.

        Raises:
            ConsistencyError: the binlog lacks published transactions.
        """
        position = prove_position(self.instance, observed, self.session, made.backup_id, hold.before, hold.known)
        return ServerProof(position, hold.choice, hold.held_ms, hold.channels)

    def describe(self, observed: Observed, proof: ServerProof) -> SourceDescription:
        """Return the manifest's description of the server with its lock, position and filesystems."""
        facts = observed.facts
        seen, site = volume_facts(observed.volumes.values()), recorded_settings(observed.volumes.values())
        volumes = {role: seen[dataset] for role, dataset in observed.volumes.items()}
        owner = owner_of_files(facts.variables["datadir"])
        server_unit_record.note(self.instance, Path(facts.variables["datadir"]), observed.volumes.values())
        source = ServerSourcePart(
            position=PositionPart.of(proof.position),
            lock=LockPart(
                strategy=proof.choice.name,
                reason=proof.choice.reason,
                held_ms=round(proof.held_ms, 3),
                waited=proof.choice.lock.waited,
            ),
            channels=tuple(ChannelPart.of(channel) for channel in proof.channels),
            server=ServerPart(
                flavour=facts.flavour,
                version=facts.version,
                server_uuid=facts.server_uuid,
                server_id=facts.server_id,
                variables=recorded_variables(facts.variables, facts.origins),
                origins=recorded_origins(facts.origins),
                absolute_tablespaces=absolute_tablespaces(facts),
                engines=dict(facts.engines),
                key_files=tuple(path.path for path in keyring_paths(facts.variables)),
                binlog_key=observed.binlog_key,
                plugins=facts.plugins,
                zone=facts.zone,
                file_owner=FileOwnerPart(uid=owner[0], gid=owner[1]) if owner is not None else None,
                unlogged=tuple(found.sentence for found in unlogged_changes(facts)),
            ),
        )
        return SourceDescription(
            source,
            {
                role: FilesystemType(
                    mountpoint=observed.mountpoints[role],
                    properties=seen.properties,
                    encryption=seen.encryption,
                    site=site[observed.volumes[role]],
                )
                for role, seen in volumes.items()
            },
        )


def origin_of(observed: Observed) -> SourceServer:
    """Return the facts about the observed server that are needed to start a copy of it."""
    key_files = [str(file) for file in observed.keys.files]
    strays = absolute_tablespaces(observed.facts)
    key = observed.binlog_key
    return SourceServer.of(observed.facts, observed.volumes, observed.mountpoints, strays, key_files, key)


def _under_least_lock(
    instance: Instance,
    observed: Observed,
    session: Session,
    hooked: Hooked,
    request: SnapshotRequest,
    marks: Mapping[str, str],
) -> ServerHold:
    """Create the snapshots under the chosen lock, or its fallback. Without a fallback, retry within `lock.budget`."""
    give_up = time.monotonic() + instance.settings.lock.budget
    choice = observed.choice
    pauses = delays()
    while True:
        try:
            with replica_applier.stopped_applier(instance, session, observed.facts) as channels:
                try:
                    return _attempt(instance, observed, session, hooked, choice, channels, request, marks)
                except LockNotGranted as error:
                    if choice.fallback is None:
                        raise
                    hooked.events.warn(f"{choice.name}: {error.message}; continuing with {choice.fallback.name}")
                    choice = replace(
                        choice.fallback, reason=f"{choice.fallback.reason}; {choice.name} was not granted at once"
                    )
        except LockNotGranted as error:
            pause = next(pauses)
            if time.monotonic() + pause > give_up:
                raise
            hooked.events.warn(f"{choice.name}: {error.message}; trying again in {pause:g} s")
            time.sleep(pause)


def _attempt(
    instance: Instance,
    observed: Observed,
    session: Session,
    hooked: Hooked,
    choice: LockChoice,
    channels: tuple[Channel, ...],
    request: SnapshotRequest,
    marks: Mapping[str, str],
) -> ServerHold:
    """Acquire the lock once, and create the snapshots under it. All slow work is done before the lock is requested."""
    settings, deadline = instance.settings.lock, instance.settings.lock.deadline
    strategy = locks.strategy(choice.name, longest=settings.longest_statement, kill=settings.kill)
    terms = locks.LockTimeouts(deadline, _AT_ONCE_SECONDS if choice.fallback is not None else deadline)
    in_time = False
    with (
        _low_priority_outside_lock(choice, hooked) as hurried,
        instance.session(read_timeout=deadline + 30) as owner,
        instance.session() as second,
    ):
        before = published_position(session, observed.facts)
        _refuse_change(session, observed, choice)
        properties = {
            **marks,
            LOCK_PROPERTY: choice.name,
            # This is a lower bound, for the case that this run is killed before the proof of the exact position.
            POSITION_PROPERTY: f"at least {before.short(_POSITION_BYTES)}",
        }
        pending = request.prepare(properties)
        is_mapped = is_written_through_memory(observed.facts)
        if is_mapped:
            write_back(observed.mountpoints.values())
        try:
            with hurried(), pending.ready(), locks.holding(strategy, owner, locks.Watchdog(second), terms) as hold:
                hooked.locked(choice.name, hold.remaining())
                if is_mapped:
                    write_back(observed.mountpoints.values(), hold.remaining())
                pending.start()
                in_time = pending.done_within(hold.remaining())
        except LockNotGranted:
            raise
        except LockError:
            if in_time or not pending.is_started:
                raise
            # The watchdog has already noticed the missed deadline. Its error is raised below.
        finally:
            # The lock is already released, but the snapshots can be removed only when the kernel has finished them.
            pending.finish()
        if not in_time:
            raise LockError(
                f"the snapshot of {len(hooked.snapshots)} volumes was not made within lock.deadline = {deadline:g} s;"
                " the lock was released",
                hint="check with `zpool iostat -l` why the pool is slow to sync, or raise lock.deadline",
            )
        _refuse_change(session, observed, choice)
        _refuse_half_done_ddl(instance, observed, choice, request)
    return ServerHold(choice, hold.held_ms, before, channels)


@contextlib.contextmanager
def _low_priority_outside_lock(
    choice: LockChoice, hooked: Hooked
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Run the block at low priority. Yield a context in which the work under the lock runs at high priority.

    If there are hooks, the block keeps its priority, because a hook may hold a resource for which other processes wait.
    If no lock is needed, the yielded context changes nothing, because no process waits for this process.
    """
    if hooked.is_any:
        yield contextlib.nullcontext
        return
    with at_low_priority() as low_priority:
        yield contextlib.nullcontext if not choice.lock.holds_ddl else low_priority.hurried


def _refuse_change(session: Session, observed: Observed, choice: LockChoice) -> None:
    """Raise PreflightError if the server has changed since it was observed, and is no longer fit for a backup."""
    facts = refresh_facts(session, observed.facts, engines=choice.lock.needs_crash_safe)
    require_fit(judge_durability(facts))
    reason = still_enough(choice, facts)
    if reason is not None:
        raise PreflightError(
            f"{choice.name} is no longer enough: {reason}", hint="run the backup again, which chooses the lock again"
        )


def _refuse_half_done_ddl(instance: Instance, observed: Observed, choice: LockChoice, request: SnapshotRequest) -> None:
    """Remove the snapshots and raise LockNotGranted if they contain an unfinished DDL statement.

    MariaDB's recovery would finish the statement and write it to its binlog. The recovered server would then have one
    transaction more than the recorded position. Every lock excludes DDL, so this can happen only if no lock is taken.
    """
    if choice.lock.holds_ddl or not family(observed.facts.flavour).finishes_ddl:
        return
    with in_snapshot([observed.facts.variables["datadir"]], observed, instance, request.backup_id) as (datadir,):
        half_done = statements_half_done(datadir)
    if half_done:
        request.withdraw()
        raise LockNotGranted(
            f"{half_done} DDL statement(s) were incomplete in the snapshot",
            hint="set lock.strategy = 'stage', which waits for DDL statements",
        )


def open_source(instance: Instance) -> AbstractContextManager[AnySource]:
    """Open the configured source of the instance.

    Raises:
        ServerError: the server cannot be reached.
        PreflightError: the source is a virtual machine and libvirt does not answer.
    """
    if instance.settings.vm is not None:
        # Import late, because the backup of a server does not need these modules.
        from zsnapdb.jobs.backup.vm_source import open_machine

        return open_machine(instance, instance.settings.vm)
    return open_server(instance)

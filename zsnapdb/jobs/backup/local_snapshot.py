"""`zsnapdb snapshot`: a consistent snapshot set that stays on this host. No repository is used.

The command runs the same phases as a backup, up to the snapshot. The set is not a backup: it expires by the rules in
`[instance.NAME.local]` and is lost with the pool.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from zsnapdb import __version__
from zsnapdb.base import files
from zsnapdb.base.domain_types import SnapshotSet, is_backup_id, pool_of
from zsnapdb.base.errors import CommandError, DamagedError, NotOursError, PreflightError, RepositoryError, ServerError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.server_source import open_source
from zsnapdb.jobs.backup.source_interface import Observation, SourceDescription, SourceOpener, take
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.events import Events, KeptWarnings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import SetsHere, own_snapshots
from zsnapdb.jobs.base.run_locks import lock_instance, lock_server_work
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    LOCAL,
    POSITION_PROPERTY,
    RUN_PROPERTY,
    STATE_PROPERTY,
    STORED,
)
from zsnapdb.jobs.host.local_snapshot_sets import as_backed_up_last
from zsnapdb.jobs.record.record_file import BACKUPS
from zsnapdb.jobs.record.record_file import read as record_file
from zsnapdb.planning import creation_order
from zsnapdb.planning.clock_guard import CONFIRM
from zsnapdb.planning.repository import local_snapshot_sets, retention
from zsnapdb.planning.repository.host_backup_record import BackupRecord
from zsnapdb.planning.repository.local_snapshot_sets import LocalSet, describe_user
from zsnapdb.planning.repository.retention import Decision
from zsnapdb.repository.manifest import Manifest, VolumePart, decode
from zsnapdb.stream.chunks import Codec
from zsnapdb.zfs import datasets, destruction, holds, snapshots, version
from zsnapdb.zfs.command import is_number
from zsnapdb.zfs.snapshots import OwnedSnapshot

IN_NO_REPOSITORY = "local"
"""The repository id in the manifest of a local set."""


def folder(instance: Instance) -> Path:
    """Return the folder on this host that contains the manifests of the instance's local sets."""
    return instance.host.local_sets / instance.name


def write(instance: Instance, described: SourceDescription, made: SnapshotSet, created: datetime) -> None:
    """Write the manifest of a local set, so that a restore can use the set. Warn if the manifest cannot be written."""
    manifest = Manifest(
        backup_id=made.backup_id,
        instance=instance.name,
        repository_id=IN_NO_REPOSITORY,
        created=created,
        tool_version=__version__,
        run_id=instance.host.run_id(),
        zfs_version=version.userland(),
        pool_guid=version.pool_guid(pool_of(next(iter(made.snapshots.values())).dataset)),
        createtxg=made.createtxg,
        sequence=_next_number(instance),
        source=described.source,
        volumes=tuple(
            VolumePart(
                role=role,
                dataset=snapshot.dataset,
                snapshot=snapshot.name,
                guid=snapshot.guid,
                from_guid=None,
                send_flags=(),
                features=0,
                type=described.volumes[role],
                codec=Codec.NONE,
                plain_size=0,
                sha256="0" * 64,
                chunks=(),
            )
            for role, snapshot in sorted(made.snapshots.items())
        ),
    )
    _write(instance, manifest)


def _next_number(instance: Instance) -> int:
    """Return a sequence number that is greater than all numbers in this host's readable backup records.

    Sets from different pools are ordered by this number. Sets in one pool are ordered by their createtxg.
    """
    numbers: list[int] = []
    for file in (instance.host.records / instance.name).glob(f"*/{BACKUPS}"):
        with contextlib.suppress(DamagedError):
            record = record_file(file, BackupRecord)
            if record is not None and record.url == instance.repository.url:
                numbers += [one for one in (record.sequence, *(b.sequence for b in record.stored)) if one is not None]
    return creation_order.next_number(max(numbers, default=0), ())


def keep(instance: Instance, manifest: Manifest) -> None:
    """Write the manifest of a stored backup, so that this host can restore it while the store is unreachable."""
    volumes = tuple(
        volume.model_copy(update={"from_guid": None, "plain_size": 0, "sha256": "0" * 64, "chunks": ()})
        for volume in manifest.volumes
    )
    changes = {"repository_id": IN_NO_REPOSITORY, "keys": (), "volumes": volumes}
    _write(instance, manifest.model_copy(update=changes))


def _write(instance: Instance, manifest: Manifest) -> None:
    try:
        make_private(folder(instance))
        # If the host crashes during the write, the incomplete file is not a valid manifest, so no restore uses its set.
        (folder(instance) / manifest.backup_id).write_bytes(manifest.encode())
    except (OSError, PreflightError) as error:
        instance.events.warn(
            f"the description of local set {manifest.backup_id} cannot be written to {folder(instance)} ({error}): no"
            " restore can begin with the set"
        )


def remove(instance: Instance, backup_id: str) -> None:
    """Remove the manifest of a local set, if it exists."""
    with contextlib.suppress(OSError):
        (folder(instance) / backup_id).unlink(missing_ok=True)


def names(instance: Instance) -> list[str]:
    """Return the ids of the sets that have a manifest on this host."""
    try:
        return sorted(path.name for path in folder(instance).iterdir() if is_backup_id(path.name))
    except OSError:
        return []


def remove_stale(instance: Instance, known: Collection[str], here: Collection[str]) -> None:
    """Remove the manifests of sets whose snapshots no longer exist.

    The ids `known` come from `names`. The caller must call `names` before it lists the snapshots, because a later
    result could contain sets that are newer than the list. The ids `here` are those of the sets with a snapshot on the
    instance's volumes. The manifest of a set is kept if the set still has snapshots on former volumes of the instance.
    """
    for backup_id in known:
        if backup_id in here:
            continue
        manifest = read(instance, backup_id)
        there = () if manifest is None else [f"{one.dataset}@{one.snapshot}" for one in manifest.volumes]
        if not any(datasets.exists(name) for name in there):
            remove(instance, backup_id)


def read(instance: Instance, backup_id: str) -> Manifest | None:
    """Return the manifest of a local set; None if it does not exist or cannot be read."""
    if not is_backup_id(backup_id):
        return None
    try:
        manifest = decode((folder(instance) / backup_id).read_bytes(), f"of local set {backup_id}")
    except (OSError, DamagedError):
        return None
    is_its = (manifest.backup_id, manifest.instance, manifest.repository_id)
    return manifest if is_its == (backup_id, instance.name, IN_NO_REPOSITORY) else None


def _renamed(manifests: Sequence[Manifest]) -> dict[str, str]:
    """If a dataset or its pool was renamed, map the recorded name of the dataset to its current name.

    A copied dataset has snapshots with the same GUIDs, but only the original snapshots were created in the recorded
    transaction group.
    """
    if not manifests:
        return {}
    # Import late: few commands need this module.
    from zsnapdb.jobs.host.dataset_use_checks import REPLACED_PROPERTY

    wanted = {one.guid: (one.dataset, manifest.createtxg) for manifest in manifests for one in manifest.volumes}
    own = {manifest.pool_guid for manifest in manifests}
    names = [
        name
        for pool in datasets.pools()
        if version.pool_guid(pool) in own
        for name, values in datasets.children(pool, [REPLACED_PROPERTY]).items()
        if values[REPLACED_PROPERTY].value == datasets.UNSET
    ]
    points = snapshots.send_points(names).values()
    there = [name for one in points for guid, name in one.snapshots.items() if guid in wanted]
    found = snapshots.describe(there) if there else []
    return {wanted[one.guid][0]: one.dataset for one in found if one.createtxg == wanted[one.guid][1]}


def _renamed_in(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    volumes = tuple(
        volume.model_copy(update={"dataset": names.get(volume.dataset, volume.dataset)}) for volume in manifest.volumes
    )
    return manifest.model_copy(update={"volumes": volumes})


def load(instance: Instance) -> list[Manifest]:
    """Return the manifests of the sets whose snapshots all exist on this host, oldest first."""
    manifests = [manifest for name in names(instance) if (manifest := read(instance, name)) is not None]
    here = snapshots.send_points_there({volume.dataset for manifest in manifests for volume in manifest.volumes})
    lost = [one for one in manifests if any(volume.dataset not in here for volume in one.volumes)]
    if renamed := _renamed(lost):
        manifests = [_renamed_in(manifest, renamed) for manifest in manifests]
        here = snapshots.send_points_there({volume.dataset for manifest in manifests for volume in manifest.volumes})
    return creation_order.in_order(
        manifest
        for manifest in manifests
        if all(
            volume.dataset in here
            and here[volume.dataset].snapshots.get(volume.guid) == f"{volume.dataset}@{volume.snapshot}"
            for volume in manifest.volumes
        )
    )


@dataclass(frozen=True)
class LocalSnapshotPlan:
    """The plan of a local snapshot: the checks of the source, and the local sets that would expire."""

    observed: Observation
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class LocalSnapshotResult:
    """A new snapshot set on this host, with its position, the duration in seconds, and the expired sets."""

    instance: str
    backup_id: str
    volumes: Mapping[str, str]
    position: str
    seconds: float
    expired: tuple[str, ...]
    warnings: tuple[str, ...]


def sets(instance: Instance, *states: str) -> list[LocalSet]:
    """Return the instance's snapshot sets on this host, oldest first (by createtxg).

    Only sets in one of the given states are returned. Incomplete sets are included.
    """
    return _sets(instance, _look(instance).read(_OF_SET), states)


def _look(instance: Instance) -> SetsHere:
    return SetsHere.look(instance, set(instance.volumes.values()))


_OF_SET = (POSITION_PROPERTY, *snapshots.USES)


def _sets(instance: Instance, seen: Iterable[OwnedSnapshot], states: Collection[str]) -> list[LocalSet]:
    members: dict[str, dict[str, str]] = defaultdict(dict)
    facts: dict[str, tuple[str, str]] = {}
    used: dict[str, int] = defaultdict(int)
    users: dict[str, list[str]] = defaultdict(list)
    roles = {dataset: role for role, dataset in sorted(instance.volumes.items())}
    for marked in creation_order.by_creation(seen, lambda one: one.snapshot.createtxg):
        marks, name, use = marked.properties, marked.snapshot.full_name, marked.use
        backup_id, state = marks[BACKUP_PROPERTY], marks[STATE_PROPERTY]
        if state not in states:
            continue
        # In this list, a set is placed where its newest snapshot is.
        members[backup_id] = {**members.pop(backup_id, {}), roles[marked.snapshot.dataset]: name}
        position = marks[POSITION_PROPERTY]
        before = facts[backup_id][1] if backup_id in facts else ""
        facts[backup_id] = (state, position if position != datasets.UNSET else before)
        used[backup_id] += use.used
        users[backup_id] += [describe_user(clone, instance.name) for clone in use.clones]
        if use.holds:
            users[backup_id] += [f"hold {tag} on {name}" for tag in holds.hold_tags(name) if tag != holds.HOLD_TAG]
    return [
        LocalSet(
            backup_id,
            facts[backup_id][0],
            dict(sorted(names.items())),
            facts[backup_id][1],
            used[backup_id],
            tuple(dict.fromkeys(users[backup_id])),
            set(names) == set(instance.volumes),
        )
        for backup_id, names in members.items()
    ]


def complete_sets(instance: Instance, *, opener: SourceOpener = open_source) -> list[LocalSet]:
    """Return the complete sets on this host that backups and `zsnapdb snapshot` created, oldest first.

    If no volumes are configured, the source is asked for its volumes. If the source is down, the volumes of the newest
    backup are used.
    """
    if instance.settings.volumes is None:
        try:
            with opener(instance) as source:
                instance = instance.with_volumes(source.observe().volumes)
        except ServerError:
            last = None
            with contextlib.suppress(RepositoryError):
                last = as_backed_up_last(instance)
            if last is None:
                raise
            instance = last
    return [one for one in sets(instance, STORED, LOCAL) if one.is_complete]


def _decided(instance: Instance, local: Sequence[LocalSet], events: Events) -> tuple[Decision, ...]:
    """Decide for each set whether retention keeps it. Warn if sets are kept because the clock may be wrong."""
    time, rules = removal_time(instance.host), instance.settings.local
    unsure = {one.backup_id for one in local if time.is_unsure(retention.time_of(one.backup_id))}
    decided = local_snapshot_sets.decide_local(local, rules, time.at, is_sure=time.is_sure, unsure=unsure)
    if time.doubt:
        later = local_snapshot_sets.decide_local(local, rules, time.wall)
        kept = {one.backup_id for one in decided if one.keep} - {one.backup_id for one in later if one.keep}
        if kept:
            events.warn(f"{len(kept)} local sets that have expired by the clock are kept: {time.doubt}: {CONFIRM}")
    return decided


def plan(instance: Instance, *, opener: SourceOpener = open_source) -> LocalSnapshotPlan:
    """Return the plan of `snapshot`; change nothing.

    Raises:
        PreflightError: the source is not fit for a snapshot.
    """
    with opener(instance) as source:
        observed = source.observe()
    instance = instance.with_volumes(observed.volumes)
    return LocalSnapshotPlan(observed, _decided(instance, sets(instance, LOCAL), instance.events))


def _made_by_run(instance: Instance) -> LocalSnapshotResult | None:
    """Return the local set that an earlier command with this run id created; None if there is none.

    The duration in the result is 0, because it is unknown. If the set has no manifest, its position is not proved, so
    the set is destroyed.
    """
    run, proved = instance.host.run_id(), names(instance)
    columns = (RUN_PROPERTY, POSITION_PROPERTY)
    marked = own_snapshots(instance, set(instance.volumes.values()), columns, states=(LOCAL,))
    own = [one for one in marked if one.properties[RUN_PROPERTY] == run]
    for backup_id in sorted({one.properties[BACKUP_PROPERTY] for one in own}):
        members = [one for one in own if one.properties[BACKUP_PROPERTY] == backup_id]
        if backup_id in proved:
            positions = {one.properties[POSITION_PROPERTY] for one in members} - {datasets.UNSET}
            position = max(positions, default="")
            return LocalSnapshotResult(instance.name, backup_id, dict(instance.volumes), position, 0.0, (), ())
        destruction.destroy_set([one.snapshot.full_name for one in members], backup_id)
    return None


def snapshot(instance: Instance, *, once: bool = False, opener: SourceOpener = open_source) -> LocalSnapshotResult:
    """Create a local snapshot set, prove its position, and then destroy expired local sets.

    With `once`, no set is created if an earlier command with this run id created one. That set is returned instead.
    With thousands of sets, only some runs look for expired sets (`_is_due`). If an expired set cannot be destroyed, the
    run warns, and the next run that looks for expired sets tries again.
    """
    events = KeptWarnings(instance.events)
    instance = instance.with_events(events)
    with lock_instance(instance, "snapshot", "snapshotting"):
        with opener(instance) as source, lock_server_work(instance):
            recovered = source.recover()
            if recovered is not None:
                events.warn(recovered)
            with at_low_priority():
                observed = source.observe()
            instance = instance.with_volumes(observed.volumes)
            made_before = _made_by_run(instance) if once else None
            if made_before is not None:
                return made_before
            started = time.monotonic()
            taken = take(
                source,
                observed,
                instance.name,
                instance.host.new_backup_id(),
                events,
                LOCAL,
                run_id=instance.host.run_id(),
            )
            seconds = time.monotonic() - started
            with at_low_priority():
                described = source.describe(observed, taken.proof)
                write(instance, described, taken.set, instance.host.now())
        with at_low_priority(may_stay_low=True):
            expired = _expire(instance, events) if _is_due(instance) else ()
    position = taken.proof.properties.get(POSITION_PROPERTY, "")
    return LocalSnapshotResult(
        instance.name, taken.set.backup_id, dict(instance.volumes), position, seconds, expired, tuple(events.warnings)
    )


_PER_SKIP = 200
"""If a search for expired sets lists N sets, the next N / 200 runs make no such search.

ZFS takes about the same time for each listed snapshot. With this rule, all searches together take less time than
creating the snapshots. An expired set stays for at most N / 200 more runs.
"""
_MOST_SKIPS = 1000
"""The maximum number of runs to skip that is accepted from the file. zsnapdb writes only smaller numbers."""


def _skips_file(instance: Instance) -> Path:
    return instance.host.records.with_name("skips") / instance.name


def _is_due(instance: Instance) -> bool:
    """Return whether this run must look for expired sets. If not, count this run as one that skipped the search."""
    file, rules = _skips_file(instance), instance.settings.local.model_dump_json()
    try:
        left, _, before = file.read_text().partition(" ")
        if before != rules or not is_number(left) or not 0 < int(left) < _MOST_SKIPS:
            return True
        files.replace_disposable(file, f"{int(left) - 1} {rules}".encode())
    except (OSError, UnicodeDecodeError):
        # This run searches if the file does not exist or cannot be written.
        return True
    return False


def _let_runs_skip(instance: Instance, count: int) -> None:
    """Record how many later runs may skip the search for expired sets. This number depends on the number of sets."""
    file = _skips_file(instance)
    with contextlib.suppress(OSError, PreflightError):
        skips = min(count // _PER_SKIP, _MOST_SKIPS - 1)
        if not skips:
            file.unlink(missing_ok=True)
            return
        make_private(file.parent)
        files.replace_disposable(file, f"{skips} {instance.settings.local.model_dump_json()}".encode())


def _expire(instance: Instance, events: KeptWarnings) -> tuple[str, ...]:
    known = names(instance)
    here = _look(instance)
    seen = here.read(_OF_SET)
    here.note(seen)
    local = {one.backup_id: one for one in _sets(instance, seen, (LOCAL,))}
    gone = []
    for decision in _decided(instance, list(local.values()), events):
        if decision.keep:
            continue
        try:
            destruction.destroy_set(list(local[decision.backup_id].names.values()), decision.backup_id)
        except (CommandError, NotOursError) as error:
            events.warn(f"the expired local set {decision.backup_id} stays: {error.message}")
        else:
            gone.append(decision.backup_id)
    remove_stale(instance, known, {one.properties[BACKUP_PROPERTY] for one in seen} - set(gone))
    _let_runs_skip(instance, len({one.properties[BACKUP_PROPERTY] for one in seen}) - len(gone))
    return tuple(gone)

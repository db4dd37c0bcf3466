"""`zsnapdb snapshot`: a consistent snapshot set that stays on this host. No repository is asked.

The coordinator, the lock, the proof and the properties are those of a backup. The set is no backup: it expires by the
rules of `[instance.NAME.local]`, and is gone with the pool.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import whole_file
from zsnapdb.base.errors import CommandError, NotOursError, PreflightError, RepositoryError, ServerError
from zsnapdb.jobs.backup import local_manifests
from zsnapdb.jobs.backup.low_priority import at_low_priority
from zsnapdb.jobs.backup.snapshot_set import take
from zsnapdb.jobs.backup.source import Observation, SourceOpener
from zsnapdb.jobs.backup.sources import open_source
from zsnapdb.jobs.base.events import Events, KeptWarnings
from zsnapdb.jobs.base.exclusion import alone_at_source, for_instance
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.own_snapshots import SetsHere, own_snapshots
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.base.removal_time import removal_time
from zsnapdb.jobs.base.set_properties import (
    BACKUP_PROPERTY,
    LOCAL,
    POSITION_PROPERTY,
    RUN_PROPERTY,
    STATE_PROPERTY,
    STORED,
)
from zsnapdb.jobs.host.local_sets import as_backed_up_last
from zsnapdb.planning import order
from zsnapdb.planning.clock_guard import CONFIRM
from zsnapdb.planning.repository import local_retention
from zsnapdb.planning.repository.local_retention import LocalSet
from zsnapdb.planning.repository.retention import Decision
from zsnapdb.zfs import datasets, holds, owned, snapshots
from zsnapdb.zfs.command import is_number
from zsnapdb.zfs.snapshots import OwnedSnapshot


@dataclass(frozen=True)
class LocalSnapshotPlan:
    """What a local snapshot would do: the checks of the source, and which local sets would go."""

    observed: Observation
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class LocalSnapshotResult:
    """A new snapshot set on this host, its position, how long it took (seconds), and the sets that expired."""

    instance: str
    backup_id: str
    volumes: Mapping[str, str]
    position: str
    seconds: float
    expired: tuple[str, ...]
    warnings: tuple[str, ...]


def sets(instance: Instance, *states: str) -> list[LocalSet]:
    """Return the snapshot sets of the instance on this host in one of the states, as ZFS made them, oldest first.

    Incomplete sets are included.
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
    for marked in order.by_creation(seen, lambda one: one.snapshot.createtxg):
        marks, name, use = marked.properties, marked.snapshot.full_name, marked.use
        backup_id, state = marks[BACKUP_PROPERTY], marks[STATE_PROPERTY]
        if state not in states:
            continue
        # The last snapshot of a set decides its place.
        members[backup_id] = {**members.pop(backup_id, {}), roles[marked.snapshot.dataset]: name}
        position = marks[POSITION_PROPERTY]
        before = facts[backup_id][1] if backup_id in facts else ""
        facts[backup_id] = (state, position if position != datasets.UNSET else before)
        used[backup_id] += use.used
        users[backup_id] += [f"clone {clone}" for clone in use.clones]
        if use.holds:
            users[backup_id] += [f"hold {tag} on {name}" for tag in holds.hold_tags(name) if tag != holds.HOLD_TAG]
    return [
        LocalSet(
            backup_id,
            facts[backup_id][0],
            dict(sorted(names.items())),
            facts[backup_id][1],
            used[backup_id],
            tuple(users[backup_id]),
            set(names) == set(instance.volumes),
        )
        for backup_id, names in members.items()
    ]


def listed(instance: Instance, *, opener: SourceOpener = open_source) -> list[LocalSet]:
    """Return the complete sets of backups and of `zsnapdb snapshot` on this host, oldest first.

    If no volumes are configured, the source names them, or (it is down) the newest backup.
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
    """Return which sets stay, and why. A doubt about the clock that keeps sets is a warning."""
    time, rules = removal_time(instance.host), instance.settings.local
    decided = local_retention.decide_local(local, rules, time.at, is_sure=time.is_sure)
    if time.doubt:
        later = local_retention.decide_local(local, rules, time.wall)
        kept = {one.backup_id for one in decided if one.keep} - {one.backup_id for one in later if one.keep}
        if kept:
            events.warn(f"{len(kept)} local sets stay that would expire by the clock: {time.doubt}: {CONFIRM}")
    return decided


def plan(instance: Instance, *, opener: SourceOpener = open_source) -> LocalSnapshotPlan:
    """Return what `snapshot` would do now; changes nothing. PreflightError if the source is not fit."""
    with opener(instance) as source:
        observed = source.observe()
    instance = instance.with_volumes(observed.volumes)
    return LocalSnapshotPlan(observed, _decided(instance, sets(instance, LOCAL), instance.events))


def _made_by_run(instance: Instance) -> LocalSnapshotResult | None:
    """Return the set that the run of this id made before; None if there is none. How long it took is not known: 0.

    Its manifest is written after it was proved: a set of this run without one is destroyed, as if it had never been.
    """
    run, proved = instance.host.run_id(), local_manifests.names(instance)
    columns = (RUN_PROPERTY, POSITION_PROPERTY)
    marked = own_snapshots(instance, set(instance.volumes.values()), columns, states=(LOCAL,))
    own = [one for one in marked if one.properties[RUN_PROPERTY] == run]
    for backup_id in sorted({one.properties[BACKUP_PROPERTY] for one in own}):
        members = [one for one in own if one.properties[BACKUP_PROPERTY] == backup_id]
        if backup_id in proved:
            positions = {one.properties[POSITION_PROPERTY] for one in members} - {datasets.UNSET}
            position = max(positions, default="")
            return LocalSnapshotResult(instance.name, backup_id, dict(instance.volumes), position, 0.0, (), ())
        owned.destroy_set([one.snapshot.full_name for one in members], backup_id)
    return None


def snapshot(instance: Instance, *, once: bool = False, opener: SourceOpener = open_source) -> LocalSnapshotResult:
    """Make a local snapshot set. Afterwards it exists, its position is proved, and expired local sets are gone.

    With `once` the set that the run of this id made before is returned, and no other one is made.

    Where there are thousands of sets, those that expire may stay for a few runs more (`_is_due`). The errors are those
    of the source. An expired set that cannot be destroyed is a warning: the next run that looks tries again.
    """
    events = KeptWarnings(instance.events)
    instance = instance.with_events(events)
    with for_instance(instance, "snapshot", "snapshotting"):
        with opener(instance) as source, alone_at_source(instance):
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
                local_manifests.write(instance, described, taken.set, instance.host.now())
        with at_low_priority(may_stay_low=True):
            expired = _expire(instance, events) if _is_due(instance) else ()
    position = taken.proof.properties.get(POSITION_PROPERTY, "")
    return LocalSnapshotResult(
        instance.name,
        taken.set.backup_id,
        dict(instance.volumes),
        position,
        seconds,
        expired,
        tuple(events.warnings),
    )


_PER_SKIP = 200
"""A run that looks at so many sets lets one run after it go without a look.

ZFS takes about as long for each snapshot that it lists. So the looks cost less than the snapshots do, however many
there are, and a set outlives its rule by no more than a two-hundredth part of the sets.
"""
_MOST_SKIPS = 1000
"""A note of more is not ours."""


def _skips_file(instance: Instance) -> Path:
    return instance.host.records.with_name("skips") / instance.name


def _is_due(instance: Instance) -> bool:
    """Whether this run looks which sets have expired. If not, the next run is nearer to its look."""
    file, rules = _skips_file(instance), instance.settings.local.model_dump_json()
    try:
        left, _, before = file.read_text().partition(" ")
        if before != rules or not is_number(left) or not 0 < int(left) < _MOST_SKIPS:
            return True
        whole_file.replace_disposable(file, f"{int(left) - 1} {rules}".encode())
    except (OSError, UnicodeDecodeError):
        # Without the file nothing was skipped yet. If it cannot be written, nothing is skipped.
        return True
    return False


def _let_runs_skip(instance: Instance, count: int) -> None:
    """Note how many runs may go without a look, after a look at so many sets."""
    file = _skips_file(instance)
    with contextlib.suppress(OSError, PreflightError):
        skips = min(count // _PER_SKIP, _MOST_SKIPS - 1)
        if not skips:
            file.unlink(missing_ok=True)
            return
        make_private(file.parent)
        whole_file.replace_disposable(file, f"{skips} {instance.settings.local.model_dump_json()}".encode())


def _expire(instance: Instance, events: KeptWarnings) -> tuple[str, ...]:
    """Destroy the expired local sets. Return their ids."""
    known = local_manifests.names(instance)
    here = _look(instance)
    seen = here.read(_OF_SET)
    here.note(seen)
    local = {one.backup_id: one for one in _sets(instance, seen, (LOCAL,))}
    gone = []
    for decision in _decided(instance, list(local.values()), events):
        if decision.keep:
            continue
        try:
            owned.destroy_set(list(local[decision.backup_id].names.values()), decision.backup_id)
        except (CommandError, NotOursError) as error:
            events.warn(f"the expired local set {decision.backup_id} stays: {error.message}")
        else:
            gone.append(decision.backup_id)
    local_manifests.remove_stale(instance, known, {one.properties[BACKUP_PROPERTY] for one in seen} - set(gone))
    _let_runs_skip(instance, len({one.properties[BACKUP_PROPERTY] for one in seen}) - len(gone))
    return tuple(gone)

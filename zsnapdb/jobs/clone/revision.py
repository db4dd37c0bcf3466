"""New files under a clone that keeps name, port and credentials: reset to a snapshot, or detached from the one it was made of.

Both make a next revision beside the one that counts and then put it in its place by one change of properties on the
anchor; cut short at any point, the clone is the old or the new one, and what is left over is a revision that does not
count, which a sweep removes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zsnapdb.config import Settings
from zsnapdb.errors import PreflightError
from zsnapdb.jobs.clone import credentials, fetch, locks, properties, volumes
from zsnapdb.jobs.clone.catalogue import CloneInfo, find, home, ready
from zsnapdb.jobs.clone.create import locate, pool_for
from zsnapdb.jobs.clone.destroy import drop_live, drop_unused_live
from zsnapdb.jobs.clone.lifecycle import server_settings, start_held
from zsnapdb.jobs.clone.live_set import take_live
from zsnapdb.jobs.clone.properties import CLONE_PROPERTY, ClonePhase, clone_mark
from zsnapdb.jobs.clone.sources import LIVE_STATE, CloneSource, Remote, SourceKind, with_volumes
from zsnapdb.jobs.dataset_tuning import kept_properties
from zsnapdb.jobs.events import Events
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.server_copy.prepare import CopyLayout
from zsnapdb.jobs.set_properties import BACKUP_PROPERTY
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import Progress, SnapshotSet
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY
from zsnapdb.zfs import datasets, owned, snapshots
from zsnapdb.zfs.streams import SEND_FLAGS, ReceiveStream, SendStream

_BLOCK = 1 << 20


@dataclass(frozen=True)
class ResetPlan:
    """What a reset does: the clone, and the snapshots its files are put back to (`snapshots` empty: they are still to be taken or received)."""

    info: CloneInfo
    set_id: str
    snapshots: Mapping[str, str]


def reset_plan(settings: Settings, name: str, wanted: str | None) -> ResetPlan:
    """Return what `reset` would do; changes nothing."""
    info = ready(settings, name)
    if wanted == LIVE_STATE:
        return ResetPlan(info, "", {})
    found = (
        _original(info)
        if wanted is None
        else locate(settings, with_volumes(Instance.of(settings, info.instance)), wanted)
    )
    if isinstance(found, Remote):
        return ResetPlan(info, found.manifest.backup_id, {})
    return ResetPlan(
        info, found.set.backup_id, {role: snapshot.full_name for role, snapshot in found.set.snapshots.items()}
    )


def _original(info: CloneInfo) -> CloneSource:
    """Return the snapshots the clone's files were cloned from."""
    names = {role: datasets.properties(dataset, ["origin"])["origin"].value for role, dataset in info.volumes.items()}
    if any(name in ("", datasets.UNSET) for name in names.values()):
        raise PreflightError(
            f"clone {info.name} was detached: it has no original data", hint="name what to reset it to: --from"
        )
    found = snapshots.describe(list(names.values()))
    return CloneSource(
        SourceKind(info.source), SnapshotSet(info.backup_id, dict(zip(names, found, strict=True))), info.origin
    )


def reset(settings: Settings, name: str, wanted: str | None, events: Events) -> CloneInfo:
    """Give the clone its original data back (`wanted` None), or that of another snapshot set.

    Port, credentials and lease stay.

    Its server is started on the new data. What was in it is gone, its commits are kept.
    """
    with locks.on_clone(name):
        info = ready(settings, name)
        if wanted != LIVE_STATE:
            return _reset(settings, info, _source(settings, info, wanted, events))
        instance = with_volumes(Instance.of(settings, info.instance, events))
        with locks.on_live_sets(instance.name):
            source = take_live(instance)
            with undone_on_error(lambda: drop_live(source)):
                revision = _next_clones(info, source)
        return _put_in_place(settings, info, source, revision)


def _source(settings: Settings, info: CloneInfo, wanted: str | None, events: Events) -> CloneSource:
    if wanted is None:
        return _original(info)
    instance = with_volumes(Instance.of(settings, info.instance, events))
    found = locate(settings, instance, wanted)
    if isinstance(found, Remote):
        pool = pool_for(settings, [volume.dataset for volume in found.manifest.volumes])
        return fetch.fetch(settings, instance, home(settings, pool), found)
    return found


def _reset(settings: Settings, info: CloneInfo, source: CloneSource) -> CloneInfo:
    return _put_in_place(settings, info, source, _next_clones(info, source))


def _next_clones(info: CloneInfo, source: CloneSource) -> int:
    """Clone the source beside the revision that counts, not mounted; return the new revision's number."""
    revision = _next_number(info)
    _begin(info)
    layout = volumes.layout_of(source.origin, f"{info.top}/r{revision}", info.mount)
    with undone_on_error(lambda: _take_back(info, revision)):
        volumes.clone_volumes(source, layout, {CLONE_PROPERTY: info.name}, canmount="noauto")
    return revision


def _begin(info: CloneInfo) -> None:
    """Mark the clone as being changed.

    One that was never started stays so, as its files are no server of their own yet.
    """
    if info.phase is not ClonePhase.NEW:
        datasets.set_properties(info.top, {properties.PHASE_PROPERTY: ClonePhase.CHANGING})


def _put_in_place(settings: Settings, info: CloneInfo, source: CloneSource, revision: int) -> CloneInfo:
    """Let the new revision count, start its server, and remove what came before."""
    password = credentials.read(info.client_file)
    info.process.kill()
    _hide(info)
    facts = {
        properties.REVISION_PROPERTY: str(revision),
        properties.PHASE_PROPERTY: ClonePhase.NEW,
        BACKUP_PROPERTY: source.set.backup_id,
        properties.SOURCE_PROPERTY: source.kind,
        ORIGIN_PROPERTY: source.origin.encode(),
    }
    datasets.set_properties(info.top, facts)
    changed = find(settings, info.name)
    start_held(settings, changed, password)
    for dataset in changed.volumes.values():
        datasets.set_properties(dataset, {"canmount": "on"})
    drop_leftovers(changed)
    if info.source == SourceKind.LIVE:
        drop_unused_live(with_volumes(Instance.of(settings, info.instance)), info.backup_id)
    return find(settings, info.name)


def _hide(info: CloneInfo) -> None:
    """Unmount the volumes, and let no boot mount them again."""
    for dataset in reversed(list(info.volumes.values())):
        datasets.unmount(dataset)
        datasets.set_properties(dataset, {"canmount": "noauto"})


def _next_number(info: CloneInfo) -> int:
    """Return a revision's number that no dataset of the clone has had."""
    found = [re.match(r"r(\d+)", dataset[len(info.top) + 1 :]) for dataset in info.datasets]
    return 1 + max([info.revision, *(int(match.group(1)) for match in found if match)])


def _take_back(info: CloneInfo, revision: int) -> None:
    """Remove a new revision that came to nothing; the clone is as it was."""
    volumes.drop_detaching(info.top, clone_mark(info.name))
    top = f"{info.top}/r{revision}"
    mark = clone_mark(info.name)
    owned.destroy_datasets(owned.members(top, mark), mark)
    datasets.set_properties(info.top, {properties.PHASE_PROPERTY: info.phase})


def drop_leftovers(info: CloneInfo) -> list[str]:
    """Destroy revisions of the clone that no longer count, the clone's lock being held.

    One with commits stays, as they need it.
    """
    volumes.drop_detaching(info.top, clone_mark(info.name))
    gone: list[str] = []
    for number in sorted({dataset[len(info.top) + 1 :].partition("/")[0] for dataset in info.leftovers}):
        top = f"{info.top}/{number}"
        members = [dataset for dataset in info.leftovers if dataset == top or dataset.startswith(top + "/")]
        marked = snapshots.below(top, (properties.COMMIT_PROPERTY, CLONE_PROPERTY))
        if any(values[properties.COMMIT_PROPERTY].is_local for values in marked.values()):
            continue
        mark = clone_mark(info.name)
        for snapshot, values in marked.items():
            if mark.is_on(values):
                owned.destroy_snapshot(snapshot.full_name, mark)
        owned.destroy_datasets(members, mark)
        gone += members
    return gone


@dataclass(frozen=True)
class DetachPlan:
    """What detaching costs: bytes to be copied, and how many the pool has free."""

    info: CloneInfo
    cost: int
    available: int


def detach_plan(settings: Settings, name: str) -> DetachPlan:
    """Return what `detach` would cost; changes nothing.

    PreflightError if the pool has no room, or the clone is independent already.
    """
    info = ready(settings, name)
    if info.is_independent:
        raise PreflightError(f"clone {name} is independent already", hint="it depends on no snapshot")
    cost = sum(
        int(datasets.properties(dataset, ["referenced"])["referenced"].value) for dataset in info.volumes.values()
    )
    available = int(datasets.properties(info.top, ["available"])["available"].value)
    if available - cost < settings.clones.free_floor:
        message = f"detaching copies {cost} bytes, the pool has {available} free and keeps {settings.clones.free_floor}"
        raise PreflightError(message, hint="free space in the pool, or lower clones.free_floor")
    return DetachPlan(info, cost, available)


def detach(settings: Settings, name: str, events: Events) -> DetachPlan:
    """Make the clone a copy of its own, by send and receive: afterwards it needs no snapshot of its source.

    Its server is stopped meanwhile.
    """
    with locks.on_clone(name):
        planned = detach_plan(settings, name)
        info = planned.info
        if info.phase is ClonePhase.CHANGING:
            drop_leftovers(info)
        ran = info.pid is not None
        info.process.stop(timeout=server_settings(settings, info).start_timeout)
        revision = _next_number(info)
        layout = volumes.layout_of(info.origin, f"{info.top}/r{revision}", info.mount)
        settled = ClonePhase.NEW if info.phase is ClonePhase.NEW else ClonePhase.READY
        _begin(info)
        with undone_on_error(lambda: _take_back(replace(info, phase=settled), revision)):
            _copy(info, layout, f"{volumes.DETACHING}-{revision}", events)
        _hide(info)
        datasets.set_properties(
            info.top, {properties.REVISION_PROPERTY: str(revision), properties.PHASE_PROPERTY: settled}
        )
        changed = find(settings, name)
        drop_leftovers(changed)
        volumes.mount(changed.volumes.values())
        for dataset in changed.volumes.values():
            datasets.set_properties(dataset, {"canmount": "on"})
        if info.source == SourceKind.LIVE:
            drop_unused_live(with_volumes(Instance.of(settings, info.instance)), info.backup_id)
        if ran:
            start_held(settings, changed)
        return replace(planned, info=find(settings, name))


def _copy(info: CloneInfo, layout: CopyLayout, short: str, events: Events) -> None:
    """Send the volumes as they are now into datasets of their own, marked as the clone's."""
    marks_of_clone = {CLONE_PROPERTY: info.name}
    made = volumes.snapshot(info.volumes, short, marks_of_clone)
    if layout.top not in layout.datasets.values():
        datasets.create(layout.top, {**volumes.NOT_MOUNTED, **marks_of_clone})
    for role, dataset in volumes.outer_first(layout):
        options = {
            **kept_properties(info.volumes[role]),
            "mountpoint": layout.mountpoints[role],
            "canmount": "noauto",
        }
        options |= {properties.ROLE_PROPERTY: role, **marks_of_clone}
        done = 0
        with (
            SendStream(made[role].full_name, None, SEND_FLAGS["compressed"]) as sent,
            ReceiveStream(dataset, options) as received,
        ):
            while block := sent.pipe.read(_BLOCK):
                _write_all(received, block)
                done += len(block)
                events.progress(Progress(f"copy {role}", done, 0))
            sent.finish()
            received.finish()
        owned.destroy_received_snapshot(f"{dataset}@{short}", made[role].guid, clone_mark(info.name))


def _write_all(stream: ReceiveStream, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[stream.pipe.write(view) :]

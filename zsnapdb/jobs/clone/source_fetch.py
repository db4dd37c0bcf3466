"""Creates the source of a clone on this host: receives a backup, or restores the state at a point between backups.

In both cases, steps of a restore plan are executed, and the result is a received set (`cached_sets`) with its own
anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import snapshot_name
from zsnapdb.jobs.clone import cached_sets, clone_info, locks, space_limits
from zsnapdb.jobs.clone.cached_sets import RECEIVED, facts_of
from zsnapdb.jobs.clone.clone_info import KEPT_PROPERTY
from zsnapdb.jobs.clone.sources import CloneSource, RemoteBackup, find_local, origin_at, origin_in
from zsnapdb.jobs.clone.volumes import clone_volumes, mount, remove_folders, snapshot
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.dataset_tuning import tune
from zsnapdb.jobs.host.server_copy import CopyLayout
from zsnapdb.jobs.restore.backup_selection import first_manifest
from zsnapdb.jobs.restore.plan import RestoreRequest, make
from zsnapdb.jobs.restore.preflight import preflight
from zsnapdb.jobs.restore.replay import replay
from zsnapdb.jobs.restore.startup_steps import ServerWork, check, recover
from zsnapdb.jobs.restore.volume_receive import clone_snapshot, make_top, receive, restored_property
from zsnapdb.jobs.steps.journal import Handlers, run_steps
from zsnapdb.planning.backup.fitness import require_fit
from zsnapdb.planning.clone.lease import SourceKind, stamp
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.restore.steps import (
    CheckServer,
    CloneSnapshot,
    LeaveStopped,
    MakeTop,
    MountVolumes,
    Preflight,
    Receive,
    Recover,
    Replay,
    Step,
)
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets


def fetch(settings: Settings, instance: Instance, home: str, remote: RemoteBackup) -> CloneSource:
    """Receive the backup from the repository. Afterwards any number of clones can be created from the received set.

    If the backup was received earlier, return the existing set. If an error occurs, no dataset of the received backup
    is left.
    """
    manifest = remote.manifest
    set_id, name = manifest.backup_id, cached_sets.received_name(manifest.backup_id, manifest.guids())
    with locks.lock_reusable_set(RECEIVED, name):
        existing = cached_sets.find_received(home, set_id, manifest.guids())
        if existing is not None:
            return existing
        anchor = _fresh_anchor(home, name)
        repository = instance.open_repository()
        request = RestoreRequest(to=set_id, top=f"{anchor}/c", makes_parent=True)
        planned = make(_with_own_mount_root(settings, name), instance, repository, request)
        kind, begun = SourceKind.REPOSITORY, instance.host.latest()
        facts = facts_of(set_id, instance.name, origin_in(manifest), kind, begun, name)
        space_limits.reserve_set_space(settings, home, name, facts, space_limits.needed_for(remote))
        with undone_on_error(lambda: cached_sets.remove_if_exists(home, RECEIVED, name)):
            work = ServerWork(settings, instance, repository, planned)
            run_steps(work, _steps(work, VOLUME_STEPS), VOLUME_STEPS)
            _complete(instance, anchor, name, planned.layout.datasets)
        received = cached_sets.find_received(home, set_id, manifest.guids())
        assert received is not None
        return received


def point_plan(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    home: str,
    at: str,
    *,
    accepts_older: bool = False,
    history: str | None = None,
) -> RestorePlan:
    """Return the plan by which `reach` restores the state at a time or GTID; change nothing.

    In the plan, `restore_id` is the id of the set that `reach` creates, and `layout` contains the names of the set's
    datasets. Raises the errors of a restore.
    """
    set_id = instance.host.new_backup_id()
    top = f"{cached_sets.anchor_of(home, RECEIVED, set_id)}/c"
    request = RestoreRequest(
        to=at, top=top, makes_parent=True, accepts_older=accepts_older, history=history, origin=RestoreOrigin.AUTO
    )
    return replace(make(_with_own_mount_root(settings, set_id), instance, repository, request), restore_id=set_id)


def reach(
    settings: Settings, instance: Instance, repository: Repository, home: str, planned: RestorePlan
) -> CloneSource:
    """Create the state at a point, exactly by the plan that `point_plan` returned.

    If a received set with the state at this point exists, return that set. Otherwise clone the newest set before the
    point. If the newest set is not on this host, receive its backup instead. Then replay the archived binlogs. Only
    binlogs that the server on this host no longer has are downloaded. The server is shut down cleanly and the set stays
    on this host, so its clones need neither replay nor recovery. If an error occurs, no dataset of the set is left.
    """
    reached = cached_sets.find_reached(home, instance.name, planned.point_identity)
    if reached is not None:
        return reached
    set_id = planned.restore_id
    own_settings = _with_own_mount_root(settings, set_id)
    with locks.lock_reusable_set(RECEIVED, set_id):
        anchor = _fresh_anchor(home, set_id)
        origin = origin_at(first_manifest(instance, repository, planned), planned)
        facts = facts_of(set_id, instance.name, origin, SourceKind.POINT, instance.host.latest())
        space_limits.reserve_set_space(settings, home, set_id, facts, space_limits.needed_for(planned))
        with undone_on_error(lambda: cached_sets.remove_if_exists(home, RECEIVED, set_id)):
            work = ServerWork(own_settings, instance, repository, planned)
            local = find_local(settings, instance, planned.backup_id)
            layout = CopyLayout(planned.layout.top, planned.layout.datasets, planned.layout.mountpoints)
            if local is not None and _is_planned(planned, local):
                clone_volumes(local, layout, restored_property(planned))
                # Later steps roll back to the snapshots with the backup's name.
                snapshot(layout.datasets, snapshot_name(planned.backup_id), restored_property(planned))
            else:
                run_steps(work, _steps(work, VOLUME_STEPS), VOLUME_STEPS)
            mount(work.datasets)
            run_steps(work, _steps(work, SERVER_STEPS), SERVER_STEPS)
            work.copy.remove_identity()
            safe_open.remove_tree(work.copy.folder)
            snapshot(layout.datasets, snapshot_name(set_id), {KEPT_PROPERTY: set_id})
            for dataset in reversed(work.datasets):
                datasets.unmount(dataset)
            _complete(instance, anchor, set_id, layout.datasets, {clone_info.POINT_PROPERTY: planned.point_identity})
        remove_folders(Path(planned.layout.mount))
        remove_folders(own_settings.restore.mount_root)
        received = cached_sets.find_ready_point(home, set_id)
        assert received is not None
        return received


def _with_own_mount_root(settings: Settings, name: str) -> Settings:
    """Return the settings with a separate mount root for the set, so that its mounts cannot collide with a restore."""
    root = settings.clones.mount_root / f".{name}"
    return settings.model_copy(update={"restore": settings.restore.model_copy(update={"mount_root": root})})


def _fresh_anchor(home: str, name: str) -> str:
    """Remove the leftovers of a killed run for the same set, and return the name of the set's anchor."""
    cached_sets.remove_if_exists(home, RECEIVED, name)
    return cached_sets.anchor_of(home, RECEIVED, name)


def _settle(work: ServerWork, step: MountVolumes) -> None:
    """Check the GUIDs of the received snapshots, and set the recorded properties of the unmounted volumes."""
    for part in step.parts:
        name = f"{part.dataset}@{part.snapshot}"
        # Do not check the GUID for a cloned volume: its own snapshot has another GUID, and the snapshot that was cloned
        # was already checked.
        if not work.plan.clones and datasets.guid(name) != part.guid:
            raise DamagedError(
                f"{name} was received with another GUID than {part.guid}",
                hint="the chain in the repository is inconsistent; run `zsnapdb verify`",
            )
        tune(part.dataset, part.properties, {}, work.events.warn)


VOLUME_STEPS: Handlers = {
    Preflight: lambda work, step: require_fit(preflight(work, step)),
    MakeTop: make_top,
    Receive: receive,
    CloneSnapshot: clone_snapshot,
    MountVolumes: _settle,
}
"""The steps that receive the volumes of a set, or clone them from snapshots on this host."""
SERVER_STEPS: Handlers = {Recover: recover, Replay: replay, CheckServer: check}
"""The steps that run the server of a set."""


def _steps(work: ServerWork, handlers: Handlers) -> list[Step]:
    """Return the steps of the plan that have a handler. `LeaveStopped` needs none: a set's server is always stopped."""
    unknown = [step.name for step in work.plan.steps if type(step) not in {*VOLUME_STEPS, *SERVER_STEPS, LeaveStopped}]
    assert not unknown, f"a set has no such steps: {unknown}"
    return [step for step in work.plan.steps if type(step) in handlers]


def _is_planned(planned: RestorePlan, local: CloneSource) -> bool:
    (volumes,) = (step for step in planned.steps if isinstance(step, MountVolumes))
    wanted = {part.dataset: part.guid for part in volumes.parts}
    return {planned.layout.datasets.get(role): one.guid for role, one in local.set.snapshots.items()} == wanted


def _complete(
    instance: Instance, anchor: str, name: str, volumes: Mapping[str, str], more: Mapping[str, str] | None = None
) -> None:
    for role, dataset in volumes.items():
        datasets.set_properties(dataset, {clone_info.ROLE_PROPERTY: role, KEPT_PROPERTY: name, "readonly": "on"})
    used = {clone_info.USED_PROPERTY: stamp(instance.host.latest())}
    ready = {copy_properties.PHASE_PROPERTY: CopyPhase.READY}
    datasets.set_properties(anchor, {**space_limits.KEPT, **ready, **used, **(more or {})})

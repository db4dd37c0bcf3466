"""Brings to this host what clones are to be made of and is not here: a backup from the repository, or the state at a point between backups.

Both run steps of a restore's plan, in a place of their own below an anchor of what is kept for clones (`kept`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from zsnapdb.config import Settings
from zsnapdb.errors import DamagedError
from zsnapdb.jobs.clock import fresh_backup_id
from zsnapdb.jobs.clone import locks, prepared, properties
from zsnapdb.jobs.clone.prepared import RECEIVED, facts_of
from zsnapdb.jobs.clone.properties import KEPT_PROPERTY, ClonePhase
from zsnapdb.jobs.clone.sources import CloneSource, Remote, SourceKind, find_local, origin_in
from zsnapdb.jobs.clone.volumes import NOT_MOUNTED, clone_volumes, mount, remove_folders, snapshot
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.restore.plan import RestoreRequest, make
from zsnapdb.jobs.restore.replay import replay
from zsnapdb.jobs.restore.steps import RESTORED_PROPERTY, Work, check, make_top, preflight, receive, recover
from zsnapdb.jobs.server_copy.prepare import CopyLayout
from zsnapdb.jobs.set_properties import snapshot_name
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.mysql import server
from zsnapdb.planning.backup.fitness import objection
from zsnapdb.planning.restore.steps import (
    CheckServer,
    MakeTop,
    MountVolumes,
    Preflight,
    Receive,
    Recover,
    Replay,
    RestorePlan,
)
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets


def fetch(settings: Settings, instance: Instance, home: str, remote: Remote) -> CloneSource:
    """Receive the backup from the repository, once; afterwards it can be cloned as often as wanted.

    On an error nothing of it stays.
    """
    wanted = remote.manifest
    set_id = wanted.backup_id
    with locks.on_kept(f"{RECEIVED}-{set_id}"):
        there = prepared.find_received(home, set_id)
        if there is not None:
            return there
        anchor = _fresh_anchor(home, set_id)
        repository = instance.open_repository()
        request = RestoreRequest(to=set_id, top=f"{anchor}/c", makes_parent=True)
        planned = make(_beside(settings, set_id), instance, repository, request)
        datasets.create(
            anchor, {**NOT_MOUNTED, **facts_of(set_id, instance.name, origin_in(wanted), SourceKind.REPOSITORY)}
        )
        with undone_on_error(lambda: _undo(home, set_id)):
            work = Work(settings, instance, repository, planned)
            _bring(work)
            for role, dataset in planned.layout.datasets.items():
                datasets.set_properties(
                    dataset, {properties.ROLE_PROPERTY: role, KEPT_PROPERTY: set_id, "readonly": "on"}
                )
            datasets.set_properties(anchor, {properties.PHASE_PROPERTY: ClonePhase.READY})
        received = prepared.find_received(home, set_id)
        assert received is not None
        return received


def point_plan(settings: Settings, instance: Instance, repository: Repository, home: str, at: str) -> RestorePlan:
    """Return how the state at a time or GTID is reached, for `reach`; changes nothing. The errors are those of a restore.

    Its `restore_id` is the id of the set that will be made, and its layout the place where.
    """
    set_id = fresh_backup_id()
    top = f"{prepared.anchor_of(home, RECEIVED, set_id)}/c"
    request = RestoreRequest(to=at, top=top, makes_parent=True)
    return replace(make(_beside(settings, set_id), instance, repository, request), restore_id=set_id)


def reach(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    home: str,
    planned: RestorePlan,
) -> CloneSource:
    """Make the state that the plan of `point_plan` leads to, by exactly that plan: the backup before it (cloned, if it is on this host, else received), and archived binlogs replayed on it.

    It is shut down cleanly and kept, so that clones of it need neither replay nor recovery. On an error nothing of it
    stays.
    """
    set_id = planned.restore_id
    mine = _beside(settings, set_id)
    with locks.on_kept(f"{RECEIVED}-{set_id}"):
        anchor = _fresh_anchor(home, set_id)
        origin = origin_in(repository.manifest(instance.name, planned.backup_id))
        datasets.create(anchor, {**NOT_MOUNTED, **facts_of(set_id, instance.name, origin, SourceKind.POINT)})
        with undone_on_error(lambda: _undo(home, set_id)):
            work = Work(mine, instance, repository, planned)
            local = find_local(settings, instance, planned.backup_id)
            if local is not None:
                _clone_base(work, local)
            else:
                _bring(work)
            _replay(work)
            layout = CopyLayout(planned.layout.top, planned.layout.datasets, planned.layout.mountpoints)
            snapshot(layout.datasets, snapshot_name(set_id), {KEPT_PROPERTY: set_id})
            for dataset in reversed(work.datasets):
                datasets.unmount(dataset)
            for role, dataset in layout.datasets.items():
                datasets.set_properties(
                    dataset, {properties.ROLE_PROPERTY: role, KEPT_PROPERTY: set_id, "readonly": "on"}
                )
            datasets.set_properties(anchor, {properties.PHASE_PROPERTY: ClonePhase.READY})
        remove_folders(Path(planned.layout.mount))
        remove_folders(mine.restore.mount_root)
        received = prepared.find_received(home, set_id)
        assert received is not None
        return received


def _beside(settings: Settings, set_id: str) -> Settings:
    """Return the settings with a mount root of the set's own, so that it meets no restore of the site."""
    root = settings.clones.mount_root / f".{set_id}"
    return settings.model_copy(update={"restore": settings.restore.model_copy(update={"mount_root": root})})


def _fresh_anchor(home: str, set_id: str) -> str:
    """Return the name of the set's anchor; what a run that died left there is removed first."""
    left = prepared.find(home, RECEIVED, set_id)
    if left is not None:
        prepared.remove(left)
    return prepared.anchor_of(home, RECEIVED, set_id)


def _undo(home: str, set_id: str) -> None:
    left = prepared.find(home, RECEIVED, set_id)
    if left is not None:
        prepared.remove(left)


def _bring(work: Work) -> None:
    """Receive the backups of the plan, proved, with the properties they had, not mounted."""
    for step in work.plan.steps:
        if isinstance(step, Preflight):
            error = objection(preflight(work, step))
            if error is not None:
                raise error
        elif isinstance(step, MakeTop):
            make_top(work, step)
        elif isinstance(step, Receive):
            receive(work, step)
        elif isinstance(step, MountVolumes):
            for part in step.parts:
                name = f"{part.dataset}@{part.snapshot}"
                if datasets.guid(name) != part.guid:
                    raise DamagedError(
                        f"{name} was received with another GUID than {part.guid}",
                        hint="the repository's chain is mixed up",
                    )
                datasets.set_properties(part.dataset, dict(part.properties))


def _clone_base(work: Work, local: CloneSource) -> None:
    """Clone the backup's snapshots instead of receiving them, and snapshot the clones under the same name: what the steps go back to."""
    found = work.plan.layout
    layout = CopyLayout(found.top, found.datasets, found.mountpoints)
    clone_volumes(local, layout, {RESTORED_PROPERTY: work.plan.backup_id}, canmount="noauto")
    snapshot(layout.datasets, snapshot_name(work.plan.backup_id), {RESTORED_PROPERTY: work.plan.backup_id})


def _replay(work: Work) -> None:
    """Recover, replay, check; leave nothing of a server's identity in the files."""
    mount(work.datasets)
    for step in work.plan.steps:
        if isinstance(step, Recover):
            recover(work, step)
        elif isinstance(step, Replay):
            replay(work, step)
        elif isinstance(step, CheckServer):
            check(work, step)
    server.remove_identity(work.copy.datadir)
    shutil.rmtree(work.copy.folder, ignore_errors=True)

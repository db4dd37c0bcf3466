"""What is kept for clones to come: backups received from the repository, and sets that a server was once recovered and shut down on.

Each is an anchor (a dataset that holds no files, with every fact set locally) and below it the copy `c`. An anchor
still in phase `making` whose maker is gone is a leak.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.errors import PreflightError
from zsnapdb.jobs.clock import now
from zsnapdb.jobs.clone import locks, properties
from zsnapdb.jobs.clone.catalogue import homes
from zsnapdb.jobs.clone.properties import KEPT_PROPERTY, ClonePhase
from zsnapdb.jobs.clone.sources import CloneSource, SourceKind
from zsnapdb.jobs.clone.volumes import (
    NOT_MOUNTED,
    clone_volumes,
    copy_of,
    layout_of,
    mount,
    outer_first,
    remove_folders,
    snapshot,
)
from zsnapdb.jobs.fresh import fresh_server_id
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.restore.steps import RESTORED_PROPERTY
from zsnapdb.jobs.server_copy.prepare import PRIVATE_FOLDER, Copy, check_recovered
from zsnapdb.jobs.set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY, snapshot_name
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import SnapshotSet
from zsnapdb.mysql import server
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.server_copy.identity import Access
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY, Origin, decode
from zsnapdb.zfs import datasets, owned, snapshots
from zsnapdb.zfs.owned import Mark

RECEIVED = "received"
PREPARED = "prepared"

_LOOK = (
    KEPT_PROPERTY,
    properties.PHASE_PROPERTY,
    properties.SOURCE_PROPERTY,
    INSTANCE_PROPERTY,
    ORIGIN_PROPERTY,
    properties.USED_PROPERTY,
    properties.ROLE_PROPERTY,
    "used",
    "mountpoint",
)


@dataclass(frozen=True)
class PreparedSet:
    """One thing that is kept.

    `used` is when a clone was last made of it; `volumes` by role; `clones` are what was made of it.
    """

    kind: str
    source: SourceKind
    set_id: str
    instance: str
    phase: ClonePhase
    used: str
    anchor: str
    members: tuple[str, ...]
    volumes: Mapping[str, str]
    clones: tuple[str, ...]
    origin: Origin
    own_bytes: int

    @property
    def lock(self) -> str:
        """The name of the lock of who makes or removes it."""
        return f"kept-{self.kind}-{self.set_id}"


def _beside(home: str, kind: str) -> str:
    """Return the dataset things of the kind are kept under, beside that of the clones."""
    return f"{home.rpartition('/')[0]}/{kind}"


def anchor_of(home: str, kind: str, set_id: str) -> str:
    """Return the name of the anchor of a set."""
    return f"{_beside(home, kind)}/{set_id}"


def listing(settings: Settings) -> list[PreparedSet]:
    """Return what is kept on this host. Only what is marked by us, locally, counts."""
    found = []
    for home in homes(settings):
        for kind in (RECEIVED, PREPARED):
            above = _beside(home, kind)
            if datasets.exists(above):
                found += _below(kind, above)
    return found


def _below(kind: str, above: str) -> list[PreparedSet]:
    groups: dict[str, dict[str, dict[str, datasets.Property]]] = {}
    for dataset, values in datasets.children(above, _LOOK).items():
        set_id = dataset[len(above) + 1 :].partition("/")[0]
        if set_id and values[KEPT_PROPERTY].value == set_id:
            groups.setdefault(set_id, {})[dataset] = values
    dependents = {snapshot: values["clones"].value for snapshot, values in snapshots.below(above, ("clones",)).items()}
    result = []
    for set_id, members in groups.items():
        anchor = f"{above}/{set_id}"
        facts = members.get(anchor)
        if facts is None or not (facts[KEPT_PROPERTY].is_local and facts[properties.PHASE_PROPERTY].is_local):
            continue
        clones = {
            name
            for snapshot, text in dependents.items()
            if snapshot.dataset in members
            for name in text.split(",")
            if name not in ("", datasets.UNSET)
        }
        result.append(
            PreparedSet(
                kind,
                SourceKind(facts[properties.SOURCE_PROPERTY].value),
                set_id,
                facts[INSTANCE_PROPERTY].value,
                ClonePhase(facts[properties.PHASE_PROPERTY].value),
                facts[properties.USED_PROPERTY].value,
                anchor,
                tuple(sorted(members, key=len)),
                {
                    values[properties.ROLE_PROPERTY].value: dataset
                    for dataset, values in members.items()
                    if values[properties.ROLE_PROPERTY].is_local
                },
                tuple(sorted(clones)),
                decode(facts[ORIGIN_PROPERTY].value, anchor),
                int(facts["used"].value),
            )
        )
    return result


def find(home: str, kind: str, set_id: str) -> PreparedSet | None:
    """Return what is kept of the set, whole or half made; None if nothing is."""
    above = _beside(home, kind)
    if not datasets.exists(f"{above}/{set_id}"):
        return None
    return next((kept for kept in _below(kind, above) if kept.set_id == set_id), None)


def _source_of(kept: PreparedSet, kind: SourceKind, *, is_prepared: bool) -> CloneSource:
    names = {role: f"{dataset}@{snapshot_name(kept.set_id)}" for role, dataset in kept.volumes.items()}
    found = snapshots.describe(list(names.values()))
    return CloneSource(kind, SnapshotSet(kept.set_id, dict(zip(names, found, strict=True))), kept.origin, is_prepared)


def find_received(home: str, set_id: str) -> CloneSource | None:
    """Return the backup, or the state at a point, as it was brought here earlier; or None."""
    kept = find(home, RECEIVED, set_id)
    if kept is None or kept.phase is not ClonePhase.READY:
        return None
    return _source_of(kept, kept.source, is_prepared=kept.source is SourceKind.POINT)


def find_point(settings: Settings, instance: str, set_id: str) -> CloneSource | None:
    """Return the state at a point that was made here for a clone and is kept; or None. No repository knows its id."""
    found = (
        k
        for k in listing(settings)
        if (k.kind, k.source, k.set_id, k.instance, k.phase)
        == (RECEIVED, SourceKind.POINT, set_id, instance, ClonePhase.READY)
    )
    point = next(found, None)
    return _source_of(point, SourceKind.POINT, is_prepared=True) if point is not None else None


def prepared(home: str, source: CloneSource) -> CloneSource:
    """Return the prepared form of the source if there is one, else the source itself."""
    kept = find(home, PREPARED, source.set.backup_id)
    return (
        _source_of(kept, source.kind, is_prepared=True)
        if kept is not None and kept.phase is ClonePhase.READY
        else source
    )


def mark_used(home: str, set_id: str) -> None:
    """Note that a clone was made of the set now: what is kept of it stays longer."""
    for kind in (RECEIVED, PREPARED):
        if datasets.exists(f"{_beside(home, kind)}/{set_id}"):
            datasets.set_properties(f"{_beside(home, kind)}/{set_id}", {properties.USED_PROPERTY: stamp(now())})


def facts_of(set_id: str, instance: str, origin: Origin, kind: SourceKind) -> dict[str, str]:
    """Return what the anchor of a set that is being made says."""
    return {
        KEPT_PROPERTY: set_id,
        INSTANCE_PROPERTY: instance,
        BACKUP_PROPERTY: set_id,
        properties.SOURCE_PROPERTY: kind,
        ORIGIN_PROPERTY: origin.encode(),
        properties.PHASE_PROPERTY: ClonePhase.MAKING,
        properties.CREATED_PROPERTY: stamp(now()),
        properties.USED_PROPERTY: stamp(now()),
    }


def prepare(settings: Settings, instance: Instance, home: str, source: CloneSource) -> CloneSource:
    """Recover the source once and shut its server down cleanly: clones of it then need no recovery.

    Already done: returned as it is.

    The server has no network and knows no accounts meanwhile, and must come up with exactly the recorded GTIDs. On an
    error nothing of it stays.
    """
    set_id, anchor = source.set.backup_id, anchor_of(home, PREPARED, source.set.backup_id)
    with locks.on_kept(f"{PREPARED}-{set_id}"):
        there = prepared(home, source)
        if there.is_prepared:
            return there
        left = find(home, PREPARED, set_id)
        if left is not None:
            remove(left)
        root = settings.clones.mount_root / f".{set_id}"
        layout = layout_of(source.origin, f"{anchor}/c", root)
        copy = copy_of(source.origin, layout, root, instance.settings.server)
        datasets.create(anchor, {**NOT_MOUNTED, **facts_of(set_id, instance.name, source.origin, source.kind)})

        def undo() -> None:
            copy.process().kill()
            half = find(home, PREPARED, set_id)
            if half is not None:
                remove(half)
            remove_folders(root)

        with undone_on_error(undo):
            clone_volumes(source, layout, {KEPT_PROPERTY: set_id}, canmount="noauto")
            _recover_once(copy, source, [dataset for _, dataset in outer_first(layout)])
            snapshot(layout.datasets, snapshot_name(set_id), {KEPT_PROPERTY: set_id})
            for _, dataset in reversed(outer_first(layout)):
                datasets.unmount(dataset)
            datasets.set_properties(anchor, {properties.PHASE_PROPERTY: ClonePhase.READY})
        remove_folders(root)
        return prepared(home, source)


def _recover_once(copy: Copy, source: CloneSource, volumes: list[str]) -> None:
    """Start the server on the files, unreachable, check where it stands, shut it down, and leave nothing of its identity."""
    mount(volumes)
    shutil.rmtree(copy.folder, ignore_errors=True)
    copy.make_private()
    server.remove_identity(copy.datadir)
    position = copy.recorded_position(has_gtids=source.origin.has_gtids)
    identity = copy.identity(server_id=fresh_server_id(), port=None, access=Access.PRIVATE_SOCKET)
    with locks.turn(), copy.start(identity, "root", SecretStr("")) as session:
        check_recovered(session, position, source.origin.unlogged_gtids)
    copy.process().stop(timeout=copy.settings.start_timeout)
    server.remove_identity(copy.datadir)
    shutil.rmtree(copy.folder)


def remove(kept: PreparedSet) -> None:
    """Destroy what is kept, each dataset proved to carry the set's mark.

    PreflightError, with nothing gone, if clones were made of it.
    """
    if kept.clones:
        raise PreflightError(
            f"{kept.anchor} has clones: {', '.join(kept.clones)}", hint="destroy them first: `zsnapdb clone list`"
        )
    members = owned.members(kept.anchor, *_marks(kept))
    # From here on nobody makes a clone of it; cut short, it is a leak that the next sweep clears.
    datasets.set_properties(kept.anchor, {properties.PHASE_PROPERTY: ClonePhase.DESTROYING})
    _end_servers(members)
    owned.destroy_datasets(members, *_marks(kept), with_snapshots=True)


def _end_servers(members: list[str]) -> None:
    """End the server that a run which was killed left on the files."""
    for dataset in members:
        point = Path(datasets.properties(dataset, ["mountpoint"])["mountpoint"].value)
        if point.is_absolute():
            for root in (point, point.parent):
                server.ServerProcess(root / PRIVATE_FOLDER).kill()


def _marks(kept: PreparedSet) -> tuple[Mark, Mark]:
    """Return the marks of its datasets: one that is still being received has that of the restore, not yet the set's."""
    return Mark(KEPT_PROPERTY, kept.set_id), Mark(RESTORED_PROPERTY)

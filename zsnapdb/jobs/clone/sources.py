"""What a clone is made from: a snapshot set on this host (a backup's, a fresh one, a commit, one made by somebody else), or a backup in the repository."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, PreflightError, ServerError
from zsnapdb.jobs.backup.preflight import with_found_volumes
from zsnapdb.jobs.clone import properties
from zsnapdb.jobs.clone.catalogue import homes
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.local_sets import local_sets
from zsnapdb.jobs.set_properties import INSTANCE_PROPERTY, LIVE, STORED
from zsnapdb.model import SNAPSHOT_PREFIX, Snapshot, SnapshotSet, is_backup_id, pool_of
from zsnapdb.mysql.paths import with_real_paths
from zsnapdb.mysql.probe import probe
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY, Origin, Place, decode
from zsnapdb.repository.manifest import Manifest, server_source
from zsnapdb.zfs import datasets, snapshots

LATEST = "latest"
LIVE_STATE = "live"
_SNAPSHOT = re.compile(r"^@[A-Za-z0-9_.:-]+$")


class SourceKind(StrEnum):
    """Where the snapshots come from."""

    BACKUP = "backup"
    LIVE = "live"
    COMMIT = "commit"
    REPOSITORY = "repository"
    SNAPSHOT = "snapshot"
    POINT = "point"


@dataclass(frozen=True)
class CloneSource:
    """Snapshots of all volumes of one moment, and what their server was.

    `is_prepared`: it was shut down cleanly on them.
    """

    kind: SourceKind
    set: SnapshotSet
    origin: Origin
    is_prepared: bool = False

    @property
    def pool(self) -> str:
        """The pool it lies in, and its clones have to."""
        return pool_of(next(iter(self.set.snapshots.values())).dataset)


@dataclass(frozen=True)
class Remote:
    """A backup that is only in the repository: it has to be received before it can be cloned."""

    chain: tuple[Manifest, ...]

    @property
    def manifest(self) -> Manifest:
        """The backup itself."""
        return self.chain[-1]


def with_volumes(instance: Instance) -> Instance:
    """Return the instance with its volumes: configured, else asked of its server, else, if that is down, those of its newest backup."""
    if instance.settings.volumes is not None:
        return instance
    try:
        with instance.session() as session:
            return with_found_volumes(instance, with_real_paths(probe(session)))
    except ServerError:
        repository = instance.open_repository()
        known = repository.backup_ids(instance.name)
        if not known:
            raise
        return instance.with_volumes(
            {volume.role: volume.dataset for volume in repository.manifest(instance.name, known[-1]).volumes}
        )


def find_local(settings: Settings, instance: Instance, wanted: str) -> CloneSource | None:
    """Return the snapshot set `wanted` on this host, or None. The server is not asked, so it may be down.

    `wanted` is a set's id (of a backup, a fresh snapshot or a commit), `latest`, or @NAME for snapshots that somebody
    else made.
    """
    if _SNAPSHOT.match(wanted):
        return _foreign(instance, wanted[1:])
    if wanted != LATEST and not is_backup_id(wanted):
        raise PreflightError(
            f"{wanted!r} is no snapshot set",
            hint="give latest, live, an id as `zsnapdb list` or `zsnapdb clone show` prints, or @SNAPSHOT",
        )
    if all(datasets.exists(dataset) for dataset in instance.volumes.values()):
        found = local_sets(instance, STORED, LIVE)
        matching = found[-1:] if wanted == LATEST else [s for s in found if s.backup_id == wanted]
        if matching:
            return CloneSource(SourceKind.BACKUP, matching[0], _origin(instance, matching[0]))
    return None if wanted == LATEST else _commit(settings, wanted)


def _origin(instance: Instance, chosen: SnapshotSet) -> Origin:
    """Return what the set's server was: from its snapshots, else from the backup's manifest."""
    kept = _kept_origin(next(iter(chosen.snapshots.values())).full_name)
    return kept or origin_in(instance.open_repository().manifest(instance.name, chosen.backup_id))


def _kept_origin(snapshot: str) -> Origin | None:
    found = datasets.properties(snapshot, [ORIGIN_PROPERTY])[ORIGIN_PROPERTY]
    return decode(found.value, snapshot) if found.value != datasets.UNSET else None


def origin_in(manifest: Manifest) -> Origin:
    """Return what the server of a backup was, from its manifest. PreflightError if it is no backup of a server."""
    part = server_source(manifest).server
    return Origin(
        flavour=part.flavour,
        version=part.version,
        server_uuid=part.server_uuid,
        server_id=part.server_id,
        variables=dict(part.variables),
        volumes={
            volume.role: Place(dataset=volume.dataset, mountpoint=volume.filesystem.mountpoint)
            for volume in manifest.volumes
        },
        absolute_tablespaces=part.absolute_tablespaces,
    )


def _foreign(instance: Instance, name: str) -> CloneSource:
    """Return the snapshots of that name on all volumes, whoever made them: they must be of one moment.

    Their server is taken to be that of the newest set.
    """
    made = {role: f"{dataset}@{name}" for role, dataset in instance.volumes.items()}
    try:
        found = snapshots.describe(list(made.values()))
    except NotThere as error:
        raise NotThere(
            f"not every volume of instance {instance.name} has a snapshot @{name}", hint=", ".join(made.values())
        ) from error
    snapshots.check_one_group(found)
    known = local_sets(instance, STORED, LIVE)
    if not known:
        raise PreflightError(
            f"nothing is recorded of the server of instance {instance.name}", hint="one `zsnapdb backup` records it"
        )
    return CloneSource(
        SourceKind.SNAPSHOT, SnapshotSet(name, dict(zip(made, found, strict=True))), _origin(instance, known[-1])
    )


@dataclass(frozen=True)
class Commit:
    """A snapshot set of a clone, itself cloneable: of which clone, the message, and the clones made from it."""

    set: SnapshotSet
    instance: str
    clone: str
    message: str
    created: str
    origin: Origin
    clones: tuple[str, ...]


def commits(home_dataset: str) -> list[Commit]:
    """Return the commits of the clones under a home, or of one clone (its anchor), oldest first.

    Only whole ones, marked locally, count.
    """
    columns = (
        properties.COMMIT_PROPERTY,
        properties.ROLE_PROPERTY,
        INSTANCE_PROPERTY,
        ORIGIN_PROPERTY,
        properties.CLONE_PROPERTY,
        properties.MESSAGE_PROPERTY,
    )
    groups: dict[str, dict[str, tuple[Snapshot, Mapping[str, datasets.Property]]]] = {}
    for snapshot, found in snapshots.below(home_dataset, (*columns, properties.CREATED_PROPERTY, "clones")).items():
        mark = found[properties.COMMIT_PROPERTY]
        if mark.is_local and snapshot.name == f"{SNAPSHOT_PREFIX}{mark.value}":
            groups.setdefault(mark.value, {})[found[properties.ROLE_PROPERTY].value] = (snapshot, found)
    result = []
    for commit_id, members in sorted(groups.items()):
        facts = next(iter(members.values()))[1]
        made = {role: snapshot for role, (snapshot, _) in members.items()}
        origin = decode(facts[ORIGIN_PROPERTY].value, commit_id)
        if set(made) != set(origin.volumes) or len({snapshot.createtxg for snapshot in made.values()}) != 1:
            continue
        dependents = {
            name
            for _, found in members.values()
            for name in found["clones"].value.split(",")
            if name and name != datasets.UNSET
        }
        result.append(
            Commit(
                SnapshotSet(commit_id, made),
                facts[INSTANCE_PROPERTY].value,
                facts[properties.CLONE_PROPERTY].value,
                facts[properties.MESSAGE_PROPERTY].value,
                facts[properties.CREATED_PROPERTY].value,
                origin,
                tuple(sorted(dependents)),
            )
        )
    return result


def _commit(settings: Settings, commit_id: str) -> CloneSource | None:
    for top in homes(settings):
        for found in commits(top):
            if found.set.backup_id == commit_id:
                return CloneSource(SourceKind.COMMIT, found.set, found.origin)
    return None

"""The sources of clones.

A source is a snapshot set on this host, or a backup that is only in the repository. A set may belong to a backup or a
commit, may be created only for the clone, or may come from another program.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zsnapdb.base import run_context
from zsnapdb.base.domain_types import SNAPSHOT_PREFIX, Snapshot, SnapshotSet, is_backup_id, pool_of
from zsnapdb.base.errors import NotFound, PreflightError, ServerError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.preflight import with_discovered_volumes
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    LIVE,
    LOCAL,
    RUN_PROPERTY,
    STORED,
)
from zsnapdb.jobs.clone import clone_info
from zsnapdb.jobs.clone.catalogue import homes
from zsnapdb.jobs.clone.request import LATEST as LATEST
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets, dependents
from zsnapdb.jobs.dataset_copies.property_fields import ORIGIN, Form, optional, own_text, plain, stored_field
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.host.local_snapshot_sets import as_backed_up_last, described_sets, newest_set
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.planning import creation_order
from zsnapdb.planning.clone.lease import FOREVER, SourceKind, read_stamp
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY, Place, SourceServer, decode
from zsnapdb.planning.server_family import family
from zsnapdb.zfs import datasets, replaced_data, snapshots

if TYPE_CHECKING:
    from zsnapdb.planning.restore.plan import RestorePlan
    from zsnapdb.repository.manifest import Manifest


LIVE_STATE = "live"
_SNAPSHOT = re.compile(r"@[A-Za-z0-9_.:-]+")


def key_of(guids: Mapping[str, int]) -> str:
    """Return the identity of the data in a set of snapshots: a digest of the snapshots' GUIDs by role.

    The identity does not depend on the snapshots' names.
    """
    text = "\n".join(f"{role} {guid}" for role, guid in sorted(guids.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CloneSource:
    """A snapshot set on this host, and the facts about its server.

    `is_prepared` is set if the server was recovered and shut down cleanly before the snapshots were created. `rules` is
    the digest of the rules that masked the data (`masking.digest`); it is empty if the data is not masked. `is_stored`
    is set if the set belongs to a stored backup. `prepared_of` is the key of the unprepared source; it is empty if this
    set is not prepared.
    """

    kind: SourceKind
    set: SnapshotSet
    origin: SourceServer
    is_prepared: bool = False
    rules: str = ""
    is_stored: bool = False
    prepared_of: str = ""

    @property
    def guids(self) -> dict[str, int]:
        return {role: one.guid for role, one in self.set.snapshots.items()}

    @property
    def key(self) -> str:
        """The identity of the data (`key_of`). A prepared set has the identity of its unprepared source."""
        if self.prepared_of:
            return self.prepared_of
        return key_of(self.guids)

    @property
    def names(self) -> list[str]:
        return [one.full_name for one in self.set.snapshots.values()]

    @property
    def pool(self) -> str:
        return pool_of(next(iter(self.set.snapshots.values())).dataset)


@dataclass(frozen=True)
class RemoteBackup:
    """A backup that is only in the repository. It must be received before it can be cloned."""

    chain: tuple[Manifest, ...]

    @property
    def manifest(self) -> Manifest:
        """The manifest of the backup itself, which is the last of its chain."""
        return self.chain[-1]

    @property
    def key(self) -> str:
        """The identity of the backup's data, in the same form as for a set on this host."""
        return key_of(self.manifest.guids())


def with_volumes(instance: Instance) -> Instance:
    """Return the instance with its volumes.

    The configured volumes are used. If none are configured, the server is asked. If the server is down, the volumes of
    the newest backup are used.
    """
    if instance.settings.volumes is not None:
        return instance
    try:
        with open_session(instance) as session:
            return with_discovered_volumes(instance, session)
    except ServerError:
        last = as_backed_up_last(instance)
        if last is None:
            raise
        return last


def find_local(settings: Settings, instance: Instance, requested: str) -> CloneSource | None:
    """Return the requested snapshot set on this host; None if there is none. The server may be down.

    `requested` is one of:
    - the id of a backup, live set or commit
    - the id of a restore, for the last state of the server that the restore replaced
    - `latest`
    - @NAME, for the snapshots with this name that another program created

    Raises:
        UsageError: `requested` is none of these.
    """
    if _SNAPSHOT.fullmatch(requested):
        return _foreign(instance, requested[1:])
    if requested != LATEST and not is_backup_id(requested):
        raise UsageError(
            f"{requested!r} does not name a snapshot set",
            hint="give latest, live, an id that `zsnapdb list` or `zsnapdb clone show` prints, or @SNAPSHOT",
        )
    if all(datasets.exists(dataset) for dataset in instance.volumes.values()):
        states = (STORED, LOCAL, LIVE)
        if requested == LATEST:
            chosen = newest_set(instance, *states)
        else:
            chosen = next(iter(described_sets(instance, *states, more=(ORIGIN_PROPERTY,), only=requested)), None)
        if chosen is not None:
            origin = _origin(instance, chosen.set, chosen.properties.get(ORIGIN_PROPERTY))
            return CloneSource(SourceKind.BACKUP, chosen.set, origin, is_stored=chosen.state == STORED)
    if requested == LATEST:
        return None
    return _commit(settings, instance, requested) or _replaced(instance, requested)


def _replaced(instance: Instance, restore_id: str) -> CloneSource | None:
    server = dataset_use_checks.find_replaced(instance, restore_id)
    if server is None or server.set is None:
        return None
    origin = _recorded_origin(next(iter(server.set.snapshots.values())).full_name)
    return CloneSource(SourceKind.REPLACED, server.set, origin) if origin is not None else None


def _origin(instance: Instance, chosen: SnapshotSet, known: str | None = None) -> SourceServer:
    """Return the facts about the set's server from the snapshots, or else from the manifest of the backup.

    `known` is the origin property of the set's first snapshot, if the caller has just read it.
    """
    snapshot = next(iter(chosen.snapshots.values())).full_name
    recorded = _recorded_origin(snapshot) if known is None else _decoded(known, snapshot)
    return recorded or origin_in(instance.open_repository().manifest(instance.name, chosen.backup_id))


def _recorded_origin(snapshot: str) -> SourceServer | None:
    return _decoded(datasets.properties(snapshot, [ORIGIN_PROPERTY])[ORIGIN_PROPERTY].value, snapshot)


def _decoded(recorded: str, snapshot: str) -> SourceServer | None:
    return decode(recorded, snapshot) if recorded != datasets.UNSET else None


def origin_in(manifest: Manifest) -> SourceServer:
    """Return the facts about the server of a backup, from its manifest.

    The manifest does not say which GTIDs of the backup are in no binlog. So the result lists all GTIDs of the backup,
    including gtid_purged. Every copy of the backup contains all transactions with these GTIDs.

    Raises:
        PreflightError: the backup is not a backup of a server.
    """
    from zsnapdb.repository.manifest import server_source

    source = server_source(manifest)
    part = source.server
    return SourceServer(
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
        key_files=part.key_files,
        binlog_key=part.binlog_key,
        plugins=part.plugins,
        zone=part.zone,
        unlogged=source.position.gtids if family(part.flavour).gtids_are_sets else None,
    )


def production_history(instance: Instance, origin: SourceServer) -> str:
    """Return a digest of production's identity: its address, its volumes, and the GUIDs of the datasets.

    A rewind, or a restore in place of production, replaces the datasets. After that, earlier sets belong to a history
    that production no longer has. The same is true after another server was configured. `instance` must have the
    configured volumes, because discovered volumes are not compared.
    """
    settings = instance.settings
    names = sorted(place.dataset for place in origin.volumes.values())
    configured = sorted((settings.volumes or {}).values())
    elsewhere = [(name, *_guids([name])) for name in configured] if configured != names else []
    told = (_guids(names), elsewhere, settings.socket, settings.host, settings.port)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _guids(names: Sequence[str]) -> list[int | None]:
    """Return the GUIDs of the datasets. If one of the datasets does not exist, return None for each."""
    try:
        known = datasets.guids(names)
    except NotFound:
        known = {}
    return [known.get(name) for name in names]


def has_state(instance: Instance, origin: SourceServer, set_id: str) -> bool:
    """Return whether production still has a snapshot or bookmark of the set.

    `zfs rollback` to an earlier state destroys both the snapshot and the bookmark. `zfs receive -F` destroys only the
    snapshot. Return True if production is not on this host, or if another program created the set.
    """
    places = production_here(instance, origin)
    if not is_backup_id(set_id) or places is None:
        return True
    short = f"{SNAPSHOT_PREFIX}{set_id}"
    if any(snapshots.created_in(place, [short]) for place in places):
        return True
    marks = {name for names in snapshots.bookmarks(places).values() for name in names.values()}
    left = marks & {f"{place}#{short}" for place in places}
    return bool(left) and left.isdisjoint(replaced_data.abandoned_bookmarks(places, if_unknown=False))


def production_here(instance: Instance, origin: SourceServer) -> list[str] | None:
    """Return production's datasets on this host; None if production is not here.

    These are the datasets that the origin records. If they do not exist, for example after `zfs rename`, the configured
    datasets are used.
    """
    known = [place.dataset for place in origin.volumes.values()], list((instance.settings.volumes or {}).values())
    return next((one for one in known if one and all(datasets.exists(place) for place in one)), None)


def origin_at(manifest: Manifest, planned: RestorePlan) -> SourceServer:
    """Return the facts about a backup's server. They include the plugins that the server had at the plan's point."""
    return origin_in(manifest).model_copy(update={"plugins": planned.plugins})


def _foreign(instance: Instance, name: str) -> CloneSource:
    """Return a source from the snapshots with the given name on all volumes. Another program may have created them.

    The facts about the server are copied from the instance's newest snapshot set, because snapshots of other programs
    do not record such facts.

    Raises:
        ConsistencyError: the snapshots were not created at the same moment.
    """
    made = {role: f"{dataset}@{name}" for role, dataset in instance.volumes.items()}
    try:
        described = snapshots.describe(list(made.values()))
    except NotFound as error:
        raise NotFound(
            f"not every volume of instance {instance.name} has a snapshot @{name}", hint=", ".join(made.values())
        ) from error
    snapshots.check_one_group(described)
    newest = newest_set(instance, STORED, LOCAL, LIVE)
    if newest is None:
        raise PreflightError(
            f"zsnapdb has no record of the server of instance {instance.name}", hint="run `zsnapdb backup` once"
        )
    return CloneSource(
        SourceKind.SNAPSHOT, SnapshotSet(name, dict(zip(made, described, strict=True))), _origin(instance, newest.set)
    )


def _id_values(commit_id: str) -> dict[str, str]:
    return {clone_info.COMMIT_PROPERTY: commit_id, BACKUP_PROPERTY: commit_id}


_ID = Form((clone_info.COMMIT_PROPERTY, BACKUP_PROPERTY), plain(clone_info.COMMIT_PROPERTY).read, _id_values)


@dataclass(frozen=True, kw_only=True)
class CommitRecord:
    """The record on each snapshot of a commit.

    Inherited properties are ignored, because a reset or a takeover changes them. `owner` is the owner of the clone.
    `owner` is "" (unknown) for commits of older versions, which recorded no owner of their own. `parent` is the
    previous commit, or the set from which the clone was created. `log_end` is the end of the clone's binlog, or None if
    unknown. `run_id` is the run that created the commit, or "" if unknown. `masked` and `masked_by` have the same
    meaning as on volumes.
    """

    id: str = field(metadata=stored_field(_ID))
    instance: str = field(metadata=stored_field(plain(INSTANCE_PROPERTY)))
    message: str = field(metadata=stored_field(plain(clone_info.MESSAGE_PROPERTY)))
    created: str = field(metadata=stored_field(plain(copy_properties.CREATED_PROPERTY)))
    origin: SourceServer = field(metadata=stored_field(ORIGIN))
    owner: str = field(metadata=stored_field(plain(copy_properties.OWNER_PROPERTY)))
    parent: str = field(metadata=stored_field(own_text(clone_info.PARENT_PROPERTY)))
    log_end: str | None = field(metadata=stored_field(optional(own_text(clone_info.LOG_END_PROPERTY))))
    run_id: str = field(metadata=stored_field(own_text(RUN_PROPERTY)))
    masked: str = field(metadata=stored_field(plain(clone_info.MASKED_PROPERTY)))
    masked_by: str | None = field(metadata=stored_field(optional(own_text(clone_info.MASKED_BY_PROPERTY))))


@dataclass(frozen=True, kw_only=True)
class Commit(CommitRecord):
    """A snapshot set of the clone `clone`. `clones` contains the datasets that were cloned from the set."""

    set: SnapshotSet
    clone: str
    clones: tuple[str, ...]


COMMIT_COLUMNS = (*property_fields.columns(CommitRecord), clone_info.ROLE_PROPERTY, clone_info.CLONE_PROPERTY, "clones")
"""The properties that are read from each snapshot of a commit."""


def commits(home_dataset: str) -> list[Commit]:
    """Return the commits below the home of all clones, or below the anchor of one clone, oldest first.

    Incomplete commits are left out, and so are snapshots that only inherited a commit's marks.
    """
    return commits_among(snapshots.below(home_dataset, COMMIT_COLUMNS))


def commits_among(seen: Mapping[Snapshot, Mapping[str, datasets.Property]]) -> list[Commit]:
    """Return the commits among the snapshots, oldest first. `seen` was read with `COMMIT_COLUMNS`."""
    # Commits of two clones may have the same id, but they belong to different transaction groups.
    groups: dict[tuple[str, int], dict[str, tuple[Snapshot, Mapping[str, datasets.Property]]]] = {}
    for snapshot, values in seen.items():
        mark = values[clone_info.COMMIT_PROPERTY]
        if mark.is_local and snapshot.name == f"{SNAPSHOT_PREFIX}{mark.value}":
            members = groups.setdefault((mark.value, snapshot.createtxg), {})
            members[values[clone_info.ROLE_PROPERTY].value] = (snapshot, values)
    result = []
    for (commit_id, _), members in creation_order.by_creation(groups.items(), lambda item: item[0][1]):
        facts = next(iter(members.values()))[1]
        made = {role: snapshot for role, (snapshot, _) in members.items()}
        known = property_fields.read(CommitRecord, CopyDatasets(commit_id, commit_id, {commit_id: facts}))
        if set(made) != set(known["origin"].volumes):
            continue
        clones = tuple(sorted({one for _, seen in members.values() for one in dependents(seen["clones"].value)}))
        of = facts[clone_info.CLONE_PROPERTY].value
        result.append(Commit(set=SnapshotSet(commit_id, made), clone=of, clones=clones, **known))
    return result


def begun_of(source: object) -> str:
    """Return the time when a commit's data was first cloned from the instance.

    The result is empty if the time is not recorded, or if the source is not a commit.
    """
    if not isinstance(source, CloneSource) or source.kind is not SourceKind.COMMIT:
        return ""
    keys = (clone_info.BEGUN_PROPERTY, copy_properties.CREATED_PROPERTY)
    seen = datasets.properties(next(iter(source.set.snapshots.values())).full_name, keys)
    return next((seen[key].value for key in keys if read_stamp(seen[key].value) != FOREVER), "")


def find_commit(settings: Settings, commit_id: str) -> Commit | None:
    """Return the commit with the given id on this host; None if it does not exist or readers may not see it."""
    reader = run_context.current_audience()
    # Commits of two clones in the same second may have the same id.
    named = (one for top in homes(settings) for one in commits(top) if one.set.backup_id == commit_id)
    return next((one for one in named if reader.sees(one.owner)), None)


def _commit(settings: Settings, instance: Instance, commit_id: str) -> CloneSource | None:
    """Return the commit with the given id as a source; None if there is none.

    Raises:
        PreflightError: the commit belongs to a clone of another instance, whose data and masking rules differ.
    """
    commit = find_commit(settings, commit_id)
    if commit is None:
        return None
    if commit.instance != instance.name:
        raise PreflightError(
            f"commit {commit_id} is of clone {commit.clone} of instance {commit.instance}, not of {instance.name}",
            hint=f"clone it with `zsnapdb clone create {commit.instance} --from {commit_id}`",
            about=(commit.owner,),
        )
    return CloneSource(SourceKind.COMMIT, commit.set, commit.origin)

"""Plans a restore, from the repository, the binlog archive and the host. Planning changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import NotFound, PreflightError, UsageError
from zsnapdb.base.safe_open import Owner
from zsnapdb.config.settings import ServerSettings, Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import startup_requirements
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs
from zsnapdb.jobs.host.dataset_tuning import unknown_here
from zsnapdb.jobs.host.server_copy import Copy, change_of_owner, lay_out
from zsnapdb.jobs.host.site_dataset_settings import notes_on_site, site_commands
from zsnapdb.jobs.host.startup_requirements import pool_for_copy, refuse_alternate_root
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.jobs.restore import chain_checks, dataset_exchange
from zsnapdb.jobs.restore.backup_selection import (
    SelectedPoint,
    choose,
    choose_by_descriptions,
    local_binlogs,
    replay_steps,
    uses_this_host,
)
from zsnapdb.jobs.restore.handover_plan import Handover, handover_step
from zsnapdb.jobs.restore.restore_inputs import Backup, find_set_standing, is_local_set, read_known
from zsnapdb.jobs.restore.run_lifecycle import refuse_existing
from zsnapdb.jobs.restore.volume_receive import pool_needs, receives_of
from zsnapdb.mysql.process import programs, server
from zsnapdb.planning.dataset_property_classes import data_values
from zsnapdb.planning.restore import newest_state_check
from zsnapdb.planning.restore.plan import (
    OriginChoice,
    RestoreLayout,
    RestoreOrigin,
    RestorePlan,
    RestorePoint,
    choose_origin,
    standing_note,
)
from zsnapdb.planning.restore.point_forms import Latest, ago, parse_target
from zsnapdb.planning.restore.replays import mode_objection
from zsnapdb.planning.restore.steps import (
    CheckServer,
    CloneSnapshot,
    LeaveStopped,
    MakeTop,
    MountPart,
    MountVolumes,
    Preflight,
    Recover,
    Step,
)
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap, buffer_pool, current_buffer_pool
from zsnapdb.planning.server_copy.plugins import with_later
from zsnapdb.planning.server_copy.source_facts import notes_on
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.manifest import Manifest, VolumePart, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.kernel_facts import free_memory


def _outermost_first(manifest: Manifest, layout: RestoreLayout) -> list[VolumePart]:
    return sorted(manifest.volumes, key=lambda volume: len(layout.datasets[volume.role]))


def receiving(
    instance: Instance, chain: Sequence[Manifest], layout: RestoreLayout, binlogs: int, origin: OriginChoice
) -> list[Step]:
    """Return the first steps of a restore, which receive the volumes of the chain's last backup without mounting them.

    The first step changes nothing. `binlogs` is the size in bytes of the binlogs to replay, which also need space.
    """
    manifest, facts, clones = chain[-1], server_source(chain[-1]).server, bool(origin.snapshots)
    look = pool_needs(
        Preflight,
        chain,
        layout.top,
        binlogs=binlogs,
        clones=clones,
        flavour=facts.flavour,
        server_version=facts.version,
        backups=tuple(link.backup_id for link in chain),
        fetches=not clones,
    )
    top = () if layout.top in layout.datasets.values() else (MakeTop(layout.top),)
    if not clones:
        volumes = ((link, volume) for link in chain for volume in _outermost_first(link, layout))
        places = {role: (dataset, layout.mountpoints[role]) for role, dataset in layout.datasets.items()}
        return [look, *top, *receives_of(volumes, places, chain_checks.key_location(instance))]
    cloned = (
        CloneSnapshot(
            backup_id=manifest.backup_id,
            role=volume.role,
            dataset=layout.datasets[volume.role],
            mountpoint=layout.mountpoints[volume.role],
            origin=origin.snapshots[volume.role],
            snapshot=volume.snapshot,
            guid=volume.guid,
        )
        for volume in _outermost_first(manifest, layout)
    )
    return [look, *top, *cloned]


def recovering(manifest: Manifest, layout: RestoreLayout, unknown: Collection[str] = ()) -> list[Step]:
    """Return the steps that mount the volumes and let the server recover to the position of the backup.

    `unknown` contains the properties of the backup that this host's OpenZFS does not know.
    """
    parts = [
        MountPart(
            role=volume.role,
            dataset=layout.datasets[volume.role],
            mountpoint=layout.mountpoints[volume.role],
            snapshot=volume.snapshot,
            guid=volume.guid,
            properties=data_values(volume.filesystem.properties, unknown=unknown),
        )
        for volume in _outermost_first(manifest, layout)
    ]
    position = server_source(manifest).position
    return [MountVolumes(tuple(parts)), Recover(position.gtids, position.binlog_file, position.binlog_offset)]


@dataclass(frozen=True)
class RestoreRequest:
    """The requested restore: the point, the target dataset, and the handover of the restored server.

    The target is `top`, or `name` below zsnapdb's own datasets. `makes_parent` says that the caller creates the parent
    dataset of `top` before the restore begins. If `accepts_older` is set and the latest state cannot be reached, the
    newest reachable state is restored. `history` is the id of the binlog history that contains the point. It is needed
    if several histories contain the point. `origin` is the source of the volumes. The default is the repository,
    because a drill has to test the stored backups.
    """

    to: str = "latest"
    top: str | None = None
    name: str | None = None
    handover: Handover = field(default_factory=Handover)
    makes_parent: bool = False
    accepts_older: bool = False
    history: str | None = None
    origin: RestoreOrigin = RestoreOrigin.REPOSITORY


def origin_of(word: str) -> RestoreOrigin:
    """Return the origin with the given name.

    Raises:
        UsageError: there is no such origin.
    """
    if word not in set(RestoreOrigin):
        raise UsageError(f"{word} is not a restore origin", hint=f"choose one of {', '.join(RestoreOrigin)}")
    return RestoreOrigin(word)


@dataclass(frozen=True)
class Decided:
    """The backup and binlogs that a restore uses. `newer` contains notes about newer, unused states."""

    chosen: SelectedPoint
    manifest: Manifest
    candidates: Sequence[Backup]
    chain: tuple[Manifest, ...]
    archive: Archive | None
    local: LocalBinlogs
    newer: tuple[str, ...]


def decide(
    instance: Instance, repository: Repository, request: RestoreRequest, *, reads_binlogs: bool = True
) -> Decided:
    """Read the facts, and choose the backup and the binlogs. Raises the errors of `make` for an unreachable point.

    If `reads_binlogs` is False, only the descriptions of the binlogs are read, see `choose_by_descriptions`.
    """
    target = parse_target(request.to)
    if isinstance(target, Latest):
        target = Latest(request.accepts_older)
    accepts, history, origin = request.accepts_older, request.history, request.origin
    known = read_known(instance, repository, target, request.to, accepts_older=accepts, history=history, origin=origin)
    candidates = known.with_local_sets(known.of_one_server(known.of_servers()), origin, request.top)
    archive = known.present_archive(candidates)
    local = local_binlogs([known.whole(one) for one in candidates[-1:]] if uses_this_host(origin) else (), origin)
    if reads_binlogs:
        chosen = choose(instance, repository, candidates, target, archive, history, local)
    else:
        chosen = choose_by_descriptions(instance, candidates, target, archive, history)
    if archive is not None and target == Latest() and history is None:
        begun = own_archived_binlogs.begun_here(instance, repository)
        newest_state_check.check_own_history(chosen.choice, known.checked.archived, archive.files, begun)
    sets = [manifest for manifest in candidates if is_local_set(manifest)]
    newer = (
        *known.notes_on_newer(chosen.choice.point.backup_id, chosen.choice, sets),
        *known.notes_on_archive(archive),
    )
    backup = next(one for one in candidates if one.backup_id == chosen.choice.point.backup_id)
    return Decided(chosen, known.whole(backup), candidates, known.chain_of(backup), archive, local, newer)


def make(settings: Settings, instance: Instance, repository: Repository, request: RestoreRequest) -> RestorePlan:
    """Return the plan of a restore; change nothing.

    Raises:
        ZsnapdbError: the point is unreachable, the target exists, the chain is broken, or the server program is
            missing.
    """
    request = replace(request, to=ago(request.to, instance.host.now()))
    decided = decide(instance, repository, request)
    chosen, manifest, facts = decided.chosen, decided.manifest, server_source(decided.manifest).server
    startup_requirements.refuse_unstartable(instance.settings.server, facts)
    top = request.top or _default_top(manifest, request)
    origin = _origin(manifest, top, request.origin)
    for link in () if origin.snapshots else decided.chain:
        repository.ciphers(link)
    refuse_no_parent(top, is_own=request.top is None or request.makes_parent)
    mount = str(settings.restore.mount_root / top.rpartition("/")[2])
    places = {volume.role: (volume.dataset, volume.filesystem.mountpoint) for volume in manifest.volumes}
    placed = lay_out(places, top, mount)
    layout = RestoreLayout(top, dict(placed.datasets), dict(placed.mountpoints), mount, places)
    refuse_existing(top, (mount,))
    programs.choose_program(instance.settings.server, facts.flavour, facts.version)
    server.account(instance.settings.server.user)
    point = replace(chosen.point, notes=_notes(instance, request, decided, origin))
    planned = _without_steps(instance, repository, request, manifest, point, layout)
    # If a path of the server cannot be translated to the restored datasets, raise the error now, not after the
    # download.
    copy = copy_of(instance, planned)
    copy.render(copy.identity(server_id=1, port=None, access=LoginAccess.PRIVATE_SOCKET))
    objection = mode_objection(chosen.choice.files if chosen.boundary else (), facts.variables.get("gtid_mode"))
    if objection is not None:
        raise PreflightError(
            objection, hint="name a point before gtid_mode was changed, or restore a backup that was made after it"
        )
    batches = chosen.replays(settings.restore.batch_size)
    replays = replay_steps(settings, instance, repository, planned, batches, decided.archive, decided.local)
    if replays:
        # A replay may need plugins that backups after the restored backup record. The backups are listed oldest first.
        after = _from(decided.candidates, manifest)[1:]
        later = with_later(planned.plugins, (server_source(one).server.plugins for one in after))
        planned = replace(planned, plugins=later)
    last = handover_step(settings, instance, repository, planned, request.handover)
    # If the handover starts the server, the handover itself checks the server.
    checks = (CheckServer(chosen.point.gtids),) if replays and last.kind in ("stopped", "promote") else ()
    made = receiving(instance, decided.chain, layout, sum(step.size for step in replays), origin)
    unknown = unknown_here([volume.filesystem.properties for volume in manifest.volumes], pool_of(top))
    whole = replace(planned, steps=(*made, *recovering(manifest, layout, unknown), *replays, *checks, last))
    dataset_exchange.refuse_exchange(whole)
    return _with_notes_on_properties(replace(whole, site_commands=_site_commands(manifest, whole)), unknown)


def _notes(instance: Instance, request: RestoreRequest, decided: Decided, origin: OriginChoice) -> tuple[str, ...]:
    """Return the plan's notes on its point. Warn about data that the restored server will lack."""
    manifest, facts = decided.manifest, server_source(decided.manifest).server
    lacking = _unlogged(decided.candidates, manifest) if decided.chosen.boundary is not None else ()
    elsewhen = startup_requirements.zone_differences(instance.settings.server, facts)
    for text in (*decided.chosen.choice.notes, *lacking, *elsewhen):
        instance.events.warn(text)
    begins = [] if request.origin is RestoreOrigin.REPOSITORY else [origin.reason]
    if begins and is_local_set(manifest):
        begins.insert(0, standing_note(manifest.backup_id, find_set_standing(instance, manifest.backup_id)))
    owner = None if facts.file_owner is None else Owner(facts.file_owner.uid, facts.file_owner.gid)
    given = change_of_owner(owner, instance.settings.server.user)
    zones = time.tzname if facts.zone is None else None
    return (
        *decided.newer,
        *decided.chosen.point.notes,
        *lacking,
        *begins,
        *([given] if given else []),
        *notes_on(facts.variables, instance.settings.server.options, zones),
        *elsewhen,
    )


def _site_commands(manifest: Manifest, planned: RestorePlan) -> tuple[str, ...]:
    """Return commands for the settings that administrators made on the source's datasets, unless the restore sets them.

    A restore that replaces existing datasets copies their settings itself.
    """
    places: dict[str, str] = {}
    if planned.promotion is not None:
        places = {part.role: part.place for part in planned.promotion.parts if part.old is None}
    elif isinstance(planned.steps[-1], LeaveStopped):
        places = dict(planned.layout.datasets)
    return tuple(
        command
        for volume in manifest.volumes
        if volume.role in places
        for command in site_commands(places[volume.role], volume.filesystem.site)
    )


def _with_notes_on_properties(planned: RestorePlan, unknown: Mapping[str, str]) -> RestorePlan:
    """Return the plan with notes on the properties that production gets, and on properties unknown to this host."""
    carried = [] if planned.promotion is None else dataset_exchange.notes(planned.promotion, planned.clones)
    without = [f"OpenZFS of this host has no {name}: the copy is without {name}={unknown[name]}" for name in unknown]
    notes = (*planned.point.notes, *without, *carried, *notes_on_site(planned.site_commands))
    return replace(planned, point=replace(planned.point, notes=notes))


def _from(candidates: Sequence[Backup], manifest: Manifest) -> Sequence[Backup]:
    """Return the given backup and the candidates after it."""
    return candidates[[one.backup_id for one in candidates].index(manifest.backup_id) :]


def _unlogged(candidates: Sequence[Backup], manifest: Manifest) -> tuple[str, ...]:
    """Return the changes that the replay cannot contain, according to this and later backups of the same server."""
    servers = [server_source(one).server for one in _from(candidates, manifest)]
    own = [server for server in servers if server.server_uuid == servers[0].server_uuid]
    return tuple(dict.fromkeys(f"the replay lacks changes: {text}" for server in own for text in server.unlogged))


def _without_steps(
    instance: Instance,
    repository: Repository,
    request: RestoreRequest,
    manifest: Manifest,
    point: RestorePoint,
    layout: RestoreLayout,
) -> RestorePlan:
    facts, server = server_source(manifest).server, instance.settings.server
    return RestorePlan(
        restore_id=instance.host.new_backup_id(),
        instance=instance.name,
        repository=repository.id,
        requested=request.to,
        created=instance.host.now(),
        flavour=facts.flavour,
        server_version=facts.version,
        server_id=facts.server_id,
        server_uuid=facts.server_uuid,
        variables=facts.variables,
        backup_id=manifest.backup_id,
        point=point,
        layout=layout,
        key_files=facts.key_files,
        repository_name=instance.other_repository,
        file_owner=None if facts.file_owner is None else (facts.file_owner.uid, facts.file_owner.gid),
        buffer_pool=_buffer_pool(server, facts.variables),
        plugins=facts.plugins,
        zone=facts.zone,
        base=(manifest.pool_guid, manifest.createtxg),
    )


def _origin(manifest: Manifest, top: str, requested: RestoreOrigin) -> OriginChoice:
    here = {}
    for volume in manifest.volumes if requested is not RestoreOrigin.REPOSITORY else ():
        with contextlib.suppress(NotFound):
            (here[volume.role],) = snapshots.describe([f"{volume.dataset}@{volume.snapshot}"])
    guids = {volume.role: volume.guid for volume in manifest.volumes}
    # A set whose manifest is only on this host cannot be downloaded.
    requested = RestoreOrigin.LOCAL if is_local_set(manifest) else requested
    return choose_origin(requested, manifest.backup_id, guids, here, top)


def _buffer_pool(server: ServerSettings, variables: Mapping[str, str]) -> int | None:
    return buffer_pool(server.options, variables, free_memory(), server.memory)


def copy_of(instance: Instance, planned: RestorePlan) -> Copy:
    """Return the restored files as a copy on which a server can be started."""
    layout = planned.layout
    pairs = tuple((point, layout.mountpoints[role]) for role, (_, point) in layout.places.items())
    root = Path(layout.mountpoints[min(layout.mountpoints, key=lambda role: len(layout.mountpoints[role]))])
    return Copy(
        planned.flavour,
        planned.server_version,
        planned.variables,
        PathMap(pairs),
        root,
        instance.settings.server,
        planned.key_files,
        current_buffer_pool(planned.buffer_pool, _buffer_pool(instance.settings.server, planned.variables)),
        planned.plugins,
        planned.zone,
    )


def _default_top(manifest: Manifest, request: RestoreRequest) -> str:
    """Return the default target: a dataset of zsnapdb in the backup's own pool, or in the only pool of this host.

    If the restore replaces an encrypted server, the target may have to be next to that server's datasets.
    """
    name = request.name or manifest.instance
    if request.handover.kind == "promote":
        outermost = min((volume.dataset for volume in manifest.volumes), key=len)
        beside = dataset_exchange.encrypted_sibling(outermost, name)
        if beside is not None:
            return beside
    return restored_top(manifest, name)


def restored_top(manifest: Manifest, name: str) -> str:
    """Return a dataset of zsnapdb in the backup's own pool, or in the only pool of this host."""
    pool = pool_for_copy(manifest.volumes[0].dataset, "name a dataset with --target")
    return f"{pool}/zsnapdb/restored/{name}"


def refuse_no_parent(top: str, *, is_own: bool) -> None:
    """Raise PreflightError if the target is a pool, or if its pool or its parent does not exist."""
    pool, _, rest = top.partition("/")
    if not rest:
        raise PreflightError(
            f"the target {top} is a whole pool", hint="name a new dataset in it, such as tank/restored"
        )
    if not datasets.exists(pool):
        raise PreflightError(f"the target's pool {pool} does not exist", hint="see `zpool list`")
    refuse_alternate_root(pool)
    parent = top.rpartition("/")[0]
    if not is_own and not datasets.exists(parent):
        raise PreflightError(
            f"{parent}, the parent of the target {top}, does not exist",
            hint="create it, or name a target directly in the pool",
        )

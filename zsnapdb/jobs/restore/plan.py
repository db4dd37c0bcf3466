"""Reads repository, archive and host and makes the plan of a restore. Nothing is changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base.errors import ExistsError, NotThere, PreflightError, UsageError
from zsnapdb.base.model import Flavour, pool_of
from zsnapdb.base.server_files import Owner
from zsnapdb.config.settings import ServerSettings, Settings
from zsnapdb.jobs.backup.local_snapshot import IN_NO_REPOSITORY
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import restorable
from zsnapdb.jobs.host.archived_binlogs import LocalBinlogs
from zsnapdb.jobs.host.capacity import pool_for_copy, refuse_alternate_root
from zsnapdb.jobs.host.dataset_tuning import unknown_here
from zsnapdb.jobs.host.site_settings import notes_on_site, site_commands
from zsnapdb.jobs.restore import exchange, newest, raw_keys
from zsnapdb.jobs.restore.choice import Chosen, choose, is_local_set, names_local_set, standing_of, with_local_sets
from zsnapdb.jobs.restore.handover_plan import Handover, handover_step
from zsnapdb.jobs.restore.table_engines import check_engines, default_engine
from zsnapdb.jobs.restore.without_store import archive_of
from zsnapdb.jobs.server_copy.prepare import Copy, change_of_owner, lay_out
from zsnapdb.mysql.process import programs, server, server_program
from zsnapdb.planning.chain import restore_chain
from zsnapdb.planning.dataset_properties import data_values
from zsnapdb.planning.facts import release_of
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.plan import (
    OriginChoice,
    RestoreLayout,
    RestoreOrigin,
    RestorePlan,
    RestorePoint,
    choose_origin,
    standing_note,
)
from zsnapdb.planning.restore.replays import located, mode_objection
from zsnapdb.planning.restore.steps import (
    CheckServer,
    CloneSnapshot,
    LeaveStopped,
    MakeTop,
    MountPart,
    MountVolumes,
    Preflight,
    Receive,
    Recover,
    Replay,
    Replayer,
    Step,
)
from zsnapdb.planning.restore.targets import AtBackup, Latest, Target, ago, parse_target
from zsnapdb.planning.server_copy.buffer_pool import buffer_pool, still
from zsnapdb.planning.server_copy.identity import Access, PathMap
from zsnapdb.planning.server_copy.origin import notes_on
from zsnapdb.planning.server_copy.plugins import with_later
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.kernel_facts import free_memory


def receiving(
    instance: Instance, chain: Sequence[Manifest], layout: RestoreLayout, binlogs: int, origin: OriginChoice
) -> list[Step]:
    """Return the steps up to the volumes of the last backup of the chain, unmounted; the first changes nothing.

    `binlogs`: the bytes of binlogs that are replayed later, for which there must be room.
    """
    volumes = [
        (manifest, volume)
        for manifest in chain
        for volume in sorted(manifest.volumes, key=lambda v: len(layout.datasets[v.role]))
    ]
    facts = server_source(chain[-1]).server
    features = 0
    for _, volume in volumes:
        features |= volume.features
    # A clone shares every block with its snapshot.
    received, fetched = (
        (0, 0)
        if origin.snapshots
        else (sum(manifest.plain_size for manifest in chain), sum(manifest.stored_size for manifest in chain))
    )
    steps: list[Step] = [
        Preflight(
            pool=pool_of(layout.top),
            parent=layout.top.rpartition("/")[0],
            # Each replayed transaction needs space three times: in a relay log, in a binlog, and in the tables.
            plain_bytes=received + 3 * binlogs,
            stored_bytes=fetched + binlogs,
            features=0 if origin.snapshots else features,
            zfs_version=chain[-1].zfs_version,
            flavour=facts.flavour,
            server_version=facts.version,
            backups=tuple(manifest.backup_id for manifest in chain),
            fetches=not origin.snapshots,
            encrypted=() if origin.snapshots else chain[-1].encrypted,
            raw=() if origin.snapshots else chain[-1].raw,
        )
    ]
    if layout.top not in layout.datasets.values():
        steps.append(MakeTop(layout.top))
    if origin.snapshots:
        return [*steps, *_cloning(chain[-1], layout, origin)]
    for manifest, volume in volumes:
        steps.append(
            Receive(
                backup_id=manifest.backup_id,
                role=volume.role,
                dataset=layout.datasets[volume.role],
                mountpoint=layout.mountpoints[volume.role],
                snapshot=volume.snapshot,
                guid=volume.guid,
                from_guid=volume.from_guid,
                plain_bytes=volume.plain_size,
                stored_bytes=volume.stored_size,
                key_location=raw_keys.key_location(instance) if volume.is_raw else None,
            )
        )
    return steps


def _cloning(manifest: Manifest, layout: RestoreLayout, origin: OriginChoice) -> list[CloneSnapshot]:
    return [
        CloneSnapshot(
            backup_id=manifest.backup_id,
            role=volume.role,
            dataset=layout.datasets[volume.role],
            mountpoint=layout.mountpoints[volume.role],
            origin=origin.snapshots[volume.role],
            snapshot=volume.snapshot,
            guid=volume.guid,
        )
        for volume in sorted(manifest.volumes, key=lambda v: len(layout.datasets[v.role]))
    ]


def recovering(manifest: Manifest, layout: RestoreLayout, unknown: Collection[str] = ()) -> list[Step]:
    """Return the steps that mount the volumes and let their server recover to the position of the backup.

    `unknown` are properties that this host has not.
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
        for volume in sorted(manifest.volumes, key=lambda v: len(layout.datasets[v.role]))
    ]
    position = server_source(manifest).position
    return [MountVolumes(tuple(parts)), Recover(position.gtids, position.binlog_file, position.binlog_offset)]


@dataclass(frozen=True)
class RestoreRequest:
    """The requested restore: the point, the target dataset, and how to hand over the restored server.

    The target is `top`, or `name` below our own datasets. `makes_parent`: the caller makes the dataset above `top`
    before the restore begins. `accepts_older`: if the latest state cannot be reached, restore the newest that can.
    `history` is the id of the binlog history with the point, if there are several. `origin`: where the volumes come
    from. Whoever proves the repository takes them from there, which is the default.
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
    """Return the origin of that name. UsageError for any other word."""
    if word not in set(RestoreOrigin):
        raise UsageError(f"{word} is no origin of a restore", hint=f"choose one of {', '.join(RestoreOrigin)}")
    return RestoreOrigin(word)


@dataclass(frozen=True)
class _Decided:
    """What was read of repository, archive and host for a restore, and which backup and binlogs lead to its point."""

    chosen: Chosen
    manifest: Manifest
    candidates: Sequence[Manifest]
    chain: tuple[Manifest, ...]
    archive: Archive | None
    local: LocalBinlogs
    newer: tuple[str, ...]


def _decide(instance: Instance, repository: Repository, request: RestoreRequest) -> _Decided:
    """Read, and choose the backup and the binlogs. Raises what `make` raises for an unreachable point."""
    target = parse_target(request.to)
    if isinstance(target, Latest):
        target = Latest(request.accepts_older)
    is_set = names_local_set(instance, target, request.origin)
    if isinstance(target, AtBackup) and target.backup_id is not None and not is_set:
        # If the backup was requested by its id, a damaged manifest is reported as damaged and not as missing.
        repository.manifest(instance.name, target.backup_id)
    archive = None if isinstance(target, AtBackup) else archive_of(instance, repository, target).load()
    catalogue, checked = newest.catalogue_of(instance, repository, archive)
    newest.refuse_without_any(catalogue, checked, target, request.to)
    servers = _of_servers(newest.choosable(catalogue, checked, target, request.history), target)
    candidates = newest.of_one_server(instance, servers, checked, target, request.history)
    candidates = with_local_sets(instance, candidates, target, request.origin, request.top, checked)
    archive = newest.present_archive(instance, target, candidates, archive, request.history)
    local = local_binlogs(candidates, request.origin)
    chosen = choose(instance, repository, candidates, target, archive, request.history, local)
    sets = [manifest for manifest in candidates if is_local_set(manifest)]
    accepts = request.accepts_older
    newer = newest.notes_on_newer(chosen.choice, catalogue, checked, request.to, sets, accepts_older=accepts)
    manifest = next(m for m in candidates if m.backup_id == chosen.choice.point.backup_id)
    damaged = known_damage(repository, instance.name).stored()
    chain = (
        (manifest,)
        if manifest.is_full
        else restore_chain(checked.provenance.trusted(catalogue.manifests), manifest, damaged)
    )
    return _Decided(chosen, manifest, candidates, tuple(chain), archive, local, newer)


def make(settings: Settings, instance: Instance, repository: Repository, request: RestoreRequest) -> RestorePlan:
    """Return the plan.

    Raises an error, before anything is changed, for an unreachable point, an existing target, a broken chain, or a
    missing server program.
    """
    request = replace(request, to=ago(request.to, instance.host.now()))
    decided = _decide(instance, repository, request)
    chosen, manifest, candidates = decided.chosen, decided.manifest, decided.candidates
    archive, local = decided.archive, decided.local
    facts = server_source(manifest).server
    restorable.refuse(instance.settings.server, facts)
    top = request.top or _default_top(manifest, request)
    origin = _origin(manifest, top, request.origin)
    for link in () if origin.snapshots else decided.chain:
        repository.ciphers(link)
    refuse_no_parent(top, is_own=request.top is None or request.makes_parent)
    layout = _layout(manifest, top, settings.restore.mount_root / top.rpartition("/")[2])
    refuse_existing(layout)
    server_program.chosen(instance.settings.server, facts.flavour, facts.version)
    server.account(instance.settings.server.user)
    given = change_of_owner(_file_owner(manifest), instance.settings.server.user)
    lacking = _unlogged(candidates, manifest) if chosen.boundary is not None else ()
    elsewhen = restorable.zone_differences(instance.settings.server, facts)
    for text in (*lacking, *elsewhen):
        instance.events.warn(text)
    origins = (*_origin_notes(instance, request, manifest, origin), *([given] if given else []))
    notes = (*decided.newer, *chosen.point.notes, *lacking, *origins)
    zones = time.tzname if facts.zone is None else None
    notes += (*notes_on(facts.variables, instance.settings.server.options, zones), *elsewhen)
    planned = _without_steps(instance, repository, request, manifest, replace(chosen.point, notes=notes), layout)
    # A path that cannot be translated raises its error now and not after the download.
    copy = copy_of(instance, planned)
    copy.render(copy.identity(server_id=1, port=None, access=Access.PRIVATE_SOCKET))
    objection = mode_objection(chosen.choice.files if chosen.boundary else (), facts.variables.get("gtid_mode"))
    if objection is not None:
        raise PreflightError(
            objection, hint="name a point before gtid_mode was changed, or restore a backup that was made after it"
        )
    batches = located_in(chosen.replays(settings.restore.batch_size), archive, local)
    replays = with_replayer(settings, instance, planned, batches)
    check_engines(
        archive_of(instance, repository),
        local,
        () if archive is None else archive.files,
        replays,
        default_engine(facts.variables, instance.settings.server.options),
    )
    if replays:
        planned = _with_later_plugins(planned, candidates)
    last = handover_step(settings, instance, repository, planned, request.handover)
    # A server that the handover starts is checked by the handover.
    checks = (CheckServer(chosen.point.gtids),) if replays and last.kind in ("stopped", "promote") else ()
    made = receiving(instance, decided.chain, layout, sum(step.size for step in replays), origin)
    unknown = unknown_here([volume.filesystem.properties for volume in manifest.volumes], pool_of(top))
    whole = replace(planned, steps=(*made, *recovering(manifest, layout, unknown), *replays, *checks, last))
    exchange.refuse_exchange(whole)
    return _with_notes_on_properties(replace(whole, site_commands=_site_commands(manifest, whole)), unknown)


def _site_commands(manifest: Manifest, planned: RestorePlan) -> tuple[str, ...]:
    """Return the commands that set what the site had set on the source's datasets, where nothing else brings it back.

    A restore that replaces datasets of this host gives that of these.
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
    """Return the plan with what it says of properties: what production's place gets, and what this host has not."""
    carried = [] if planned.promotion is None else exchange.notes(planned.promotion, planned.clones)
    without = [f"OpenZFS of this host has no {name}: the copy is without {name}={unknown[name]}" for name in unknown]
    notes = (*planned.point.notes, *without, *carried, *notes_on_site(planned.site_commands))
    return replace(planned, point=replace(planned.point, notes=notes))


def _with_later_plugins(planned: RestorePlan, candidates: Sequence[Manifest]) -> RestorePlan:
    """Return the plan with the plugins of the backups after its own, oldest first: a replay may need them."""
    after = [manifest.backup_id for manifest in candidates].index(planned.backup_id) + 1
    later = (server_source(manifest).server.plugins for manifest in candidates[after:])
    return replace(planned, plugins=with_later(planned.plugins, later))


def _unlogged(candidates: Sequence[Manifest], manifest: Manifest) -> tuple[str, ...]:
    """Return what the replay does not bring back, as this backup and those made after it say of their server."""
    servers = [server_source(one).server for one in candidates[list(candidates).index(manifest) :]]
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


def _file_owner(manifest: Manifest) -> Owner | None:
    recorded = server_source(manifest).server.file_owner
    return None if recorded is None else Owner(recorded.uid, recorded.gid)


def local_binlogs(candidates: Sequence[Manifest], requested: RestoreOrigin) -> LocalBinlogs:
    """Return the binlogs that the server of the newest backup still has on this host, if they may be used."""
    if requested is RestoreOrigin.REPOSITORY or not candidates:
        return LocalBinlogs()
    server = server_source(candidates[-1]).server
    return LocalBinlogs.of(server.variables, server.key_files)


def located_in(steps: Sequence[Replay], archive: Archive | None, local: LocalBinlogs) -> tuple[Replay, ...]:
    """Return the steps with the binlogs marked that need not be fetched, and with what describes each now."""
    files = () if archive is None else archive.files
    named = {(log.incarnation, log.file) for step in steps for log in step.logs}
    here = {
        (file.incarnation, file.name) for file in files if (file.incarnation, file.name) in named and local.has(file)
    }
    # Binlogs that stand for an archive are described as far as they are replayed, and so otherwise than in the plan.
    digests = {
        (file.incarnation, file.name): file.digest
        for file in files
        if file.is_rotated and file.repository_id != IN_NO_REPOSITORY
    }
    return located(steps, here, digests)


def _origin(manifest: Manifest, top: str, requested: RestoreOrigin) -> OriginChoice:
    """Return where the volumes of the backup come from."""
    here = {}
    for volume in manifest.volumes if requested is not RestoreOrigin.REPOSITORY else ():
        with contextlib.suppress(NotThere):
            (here[volume.role],) = snapshots.describe([f"{volume.dataset}@{volume.snapshot}"])
    guids = {volume.role: volume.guid for volume in manifest.volumes}
    # A set cannot be fetched with a description that this host keeps.
    requested = RestoreOrigin.LOCAL if is_local_set(manifest) else requested
    return choose_origin(requested, manifest.backup_id, guids, here, top)


def _origin_notes(instance: Instance, request: RestoreRequest, manifest: Manifest, origin: OriginChoice) -> list[str]:
    if request.origin is RestoreOrigin.REPOSITORY:
        return []
    if not is_local_set(manifest):
        return [origin.reason]
    return [standing_note(manifest.backup_id, standing_of(instance, manifest.backup_id)), origin.reason]


def _of_servers(manifests: Sequence[Manifest], target: Target) -> list[Manifest]:
    """Return the backups of database servers.

    PreflightError if the target is a backup of another kind, or if all of them are of other kinds.
    """
    servers = [manifest for manifest in manifests if is_of_server(manifest)]
    if isinstance(target, AtBackup | Latest):
        backup_id = target.backup_id if isinstance(target, AtBackup) else None
        named = [manifest for manifest in manifests if backup_id in (None, manifest.backup_id)]
    else:
        named = [] if servers else list(manifests)
    if named:
        server_source(named[-1])
    return servers


def replayer_of(settings: Settings, flavour: Flavour, version: str) -> Replayer:
    """Return what replays binlogs on a server of this version: as the site says, else the server where it can."""
    if settings.restore.replay != "auto":
        return settings.restore.replay
    return "client" if release_of(version) < family(flavour).relay_logs_from else "applier"


def with_replayer(
    settings: Settings, instance: Instance, planned: RestorePlan, replays: Sequence[Replay]
) -> tuple[Replay, ...]:
    """Return the steps with their replayer. PreflightError if this host lacks a program that the replayer needs."""
    replayer = replayer_of(settings, planned.flavour, planned.server_version)
    if replays and replayer == "client":
        client_programs(instance, planned.flavour, planned.server_version)
    return tuple(replace(step, by=replayer) for step in replays)


def client_programs(instance: Instance, flavour: Flavour, version: str) -> tuple[Path, Path]:
    """Return the programs for a replay by a client: the binlog tool and the client.

    PreflightError names a program that this host lacks.
    """
    binary = server_program.chosen(instance.settings.server, flavour, version)
    tool, client = (
        programs.find(names, instance.settings.server, flavour, binary)
        for names in (family(flavour).binlog_programs, family(flavour).client_programs)
    )
    return tool, client


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
        still(planned.buffer_pool, _buffer_pool(instance.settings.server, planned.variables)),
        planned.plugins,
        planned.zone,
    )


def _layout(manifest: Manifest, top: str, mount: Path) -> RestoreLayout:
    places = {volume.role: (volume.dataset, volume.filesystem.mountpoint) for volume in manifest.volumes}
    planned = lay_out(places, top, str(mount))
    return RestoreLayout(top, dict(planned.datasets), dict(planned.mountpoints), str(mount), places)


def _default_top(manifest: Manifest, request: RestoreRequest) -> str:
    """Return one of our datasets in the backup's own pool, or in the only pool of this host.

    What is to replace an encrypted server may have to lie beside it.
    """
    name = request.name or manifest.instance
    if request.handover.kind == "promote":
        outermost = min((volume.dataset for volume in manifest.volumes), key=len)
        beside = exchange.top_beside(outermost, name)
        if beside is not None:
            return beside
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


def refuse_existing(layout: RestoreLayout) -> None:
    """Raise ExistsError if the target dataset exists or the target folder is not empty."""
    mount = Path(layout.mount)
    if datasets.exists(layout.top):
        raise ExistsError(
            f"the target dataset {layout.top} exists",
            hint="name a new dataset; to continue a restore that was begun, use --resume",
        )
    if mount.exists() and any(mount.iterdir()):
        raise ExistsError(
            f"the mount point {mount} of the restored files is not empty",
            hint="name another target, or empty the folder",
        )

"""Finds the snapshot set from which a clone is created: on this host, else in the repository."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zsnapdb.base.domain_types import SNAPSHOT_PREFIX, is_backup_id, pool_of
from zsnapdb.base.errors import AbandonedHistoryError, NotFound, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.server_source import open_server, origin_of
from zsnapdb.jobs.backup.source_interface import take
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_server_work
from zsnapdb.jobs.base.snapshot_set_properties import LIVE
from zsnapdb.jobs.clone import cached_sets
from zsnapdb.jobs.clone.catalogue import home
from zsnapdb.jobs.clone.sources import LATEST, CloneSource, RemoteBackup, find_local
from zsnapdb.jobs.host.local_snapshot_sets import require_whole
from zsnapdb.jobs.host.startup_requirements import pool_for_copy
from zsnapdb.jobs.record import production_restores
from zsnapdb.jobs.record.host_backup_record import check, stored_after
from zsnapdb.jobs.restore.restore_inputs import newest_backup
from zsnapdb.planning import creation_order
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.repository.catalogue import Summary, manifest_of
from zsnapdb.repository.manifest import Manifest, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, snapshots, version


def locate(
    settings: Settings, instance: Instance, requested: str, rules: str = "", *, accepts_older: bool = False
) -> CloneSource | RemoteBackup:
    """Return the requested snapshot set, or the backup in the repository if this host does not have the set.

    If this host has prepared sets of the snapshot set, return the prepared set that was masked by `rules`
    (`masking_requirement.rules_of`), else the unmasked prepared set. Received backups and the results of replays are
    also sets on this host. The result for `latest` is at least as new as the last backup that this host stored. If that
    backup is no longer on this host, the repository is read. A backup whose state `zfs rollback` discarded is ignored.

    Raises:
        NotFound: neither this host nor the repository has the set.
        DamagedError: the newest backup cannot be used, and `accepts_older` is not set.
        PreflightError: a newer set lacks the snapshot of a volume, and `accepts_older` is not set.
    """
    local = find_local(settings, instance, requested)
    newer = stored_after(instance, local.set) if local and requested == LATEST else ()
    if local is not None and not newer:
        if requested == LATEST:
            require_whole(instance, local.set, accepts_older=accepts_older)
        return cached_sets.prepared_form(home(settings, local.pool), local, rules)
    repository = instance.open_repository()
    known = repository.backup_ids(instance.name)
    if requested == LATEST and known:
        newest = _newest_stored(instance, repository, local, accepts_older=accepts_older)
        if newest is None and local is not None:
            return cached_sets.prepared_form(home(settings, local.pool), local, rules)
        requested = newest or requested
    if requested not in known:
        point = cached_sets.find_point(settings, instance, requested)
        if point is not None:
            return cached_sets.prepared_form(home(settings, point.pool), point, rules)
        raise NotFound(
            f"instance {instance.name} has no snapshot set {requested}, neither on this host nor in the repository",
            hint="run `zsnapdb list` to see the backups",
            about=(),
        )
    target = repository.manifest(instance.name, requested)
    server_source(target)
    same = _same_set_here(settings, instance, target)
    if same is not None:
        return cached_sets.prepared_form(home(settings, same.pool), same, rules)
    top = home(settings, pool_for(settings, [volume.dataset for volume in target.volumes]))
    received = cached_sets.find_received(top, target.backup_id, target.guids())
    if received is not None:
        return cached_sets.prepared_form(top, received, rules)
    catalogue = instance.summaries(repository)
    provenance = check(instance, repository, catalogue.backups, ()).provenance
    known_links: Sequence[Manifest | Summary] = provenance.trusted(catalogue.backups)
    links = restore_chain(known_links, target)
    return RemoteBackup(tuple(link if isinstance(link, Manifest) else manifest_of(repository, link) for link in links))


def bring_here(settings: Settings, instance: Instance, source: CloneSource | RemoteBackup) -> CloneSource:
    """Return the source as a set on this host. If the backup is only in the repository, receive it first."""
    if isinstance(source, CloneSource):
        return source
    # Import late: the code of restores is needed only if a backup must be received.
    from zsnapdb.jobs.clone import source_fetch

    home_of_clones = home_for(settings, [volume.dataset for volume in source.manifest.volumes])
    return source_fetch.fetch(settings, instance, home_of_clones, source)


def _newest_stored(
    instance: Instance, repository: Repository, local: CloneSource | None, *, accepts_older: bool
) -> str | None:
    """Return the id of production's newest stored backup; None if the newest local set is at least as new."""
    try:
        newest = newest_backup(instance, repository, accepts_older=accepts_older)
    except AbandonedHistoryError as error:
        if local is None:
            raise
        instance.events.warn(error.message)
        return None
    stored = repository.manifest(instance.name, newest)
    is_local = local is not None and _is_no_newer(stored, local)
    if local is None:
        _refuse_other_volumes(instance, stored)
    made = local.set if local is not None and is_local else _group_here(instance, stored)
    received = None if is_local else _group_received(instance, stored)
    if received not in (None, made):
        require_whole(instance, received, accepts_older=accepts_older, is_received=True)
    elif made is not None:
        require_whole(instance, made, accepts_older=accepts_older)
    return None if is_local else newest


def _group_here(instance: Instance, stored: Manifest) -> int | None:
    """Return the transaction group of the backup in the pool of production; None if the backup is from another pool."""
    pools = {pool_of(name) for name in instance.volumes.values() if datasets.exists(name)}
    return stored.createtxg if any(version.pool_guid(pool) == stored.pool_guid for pool in pools) else None


def _group_received(instance: Instance, stored: Manifest) -> int | None:
    """Return the latest transaction group of the backup's snapshots on production; None if there are none.

    If production was moved with `zfs send -R`, ZFS received the backup and all later sets in other transaction groups.
    """
    guids = set(stored.guids().values())
    places = [name for name in instance.volumes.values() if datasets.exists(name)]
    points = snapshots.send_points_there(places).values()
    names = [name for one in points for guid, name in one.snapshots.items() if guid in guids]
    found = creation_order.by_creation(snapshots.describe(names) if names else (), lambda one: one.createtxg)
    return found[-1].createtxg if found else None


def _is_no_newer(stored: Manifest, local: CloneSource) -> bool:
    """Return whether ZFS created the stored backup before or together with the local set.

    If the backup was made from another pool, the order is known only if the datasets of the set have received the
    backup's snapshot.
    """
    if version.pool_guid(local.pool) == stored.pool_guid:
        return not creation_order.made_before((local.set,), stored.createtxg)
    guids = set(stored.guids().values())
    points = snapshots.send_points_there({one.dataset for one in local.set.snapshots.values()}).values()
    received = [name for one in points for guid, name in one.snapshots.items() if guid in guids]
    found = snapshots.describe(received) if received else []
    return bool(found) and all(not creation_order.made_before((local.set,), one.createtxg) for one in found)


def _refuse_other_volumes(instance: Instance, stored: Manifest) -> None:
    """Raise PreflightError if production is on this host, but has neither a snapshot nor a bookmark of the backup.

    Possible causes: other datasets were configured after the backup, or the original datasets were replaced. If a
    restore replaced the datasets, its record names the backup from which production continues.
    """
    volumes = instance.settings.volumes or {}
    places = [name for name in volumes.values() if datasets.exists(name)]
    if not places or production_restores.read_production_restores(instance).last is not None:
        return
    if snapshots.known_states(places)[0].isdisjoint(stored.guids().values()):
        raise PreflightError(
            f"nothing shows that {', '.join(places)} ever had the state of {stored.backup_id}, the newest backup of"
            f" {instance.name}: there is neither a snapshot nor a bookmark of it",
            hint=f"`zsnapdb backup {instance.name}` makes a new one; `--from {stored.backup_id}` uses that backup"
            + take_back_hint(places),
        )


def take_back_hint(places: Collection[str]) -> str:
    """Return a hint on how to get the snapshots of the given datasets back from a promoted clone.

    `zfs promote` moves snapshots and bookmarks from a dataset to its clone (zfs-promote(8)). If the datasets do not
    depend on a clone, return "".
    """
    origins = {name: found["origin"].value for name, found in datasets.properties_of(list(places), ["origin"]).items()}
    moved = {name: origin for name, origin in origins.items() if origin not in ("", datasets.UNSET)}
    if not moved:
        return ""
    commands = " and ".join(f"`zfs promote {name}`" for name in moved)
    holders = ", ".join(sorted({origin.partition("@")[0] for origin in moved.values()}))
    return f"; if {holders} was promoted, {commands} returns the snapshots"


def _same_set_here(settings: Settings, instance: Instance, target: Manifest) -> CloneSource | None:
    """Return the set on this host that equals a consolidated backup; None if there is no such set."""
    original = target.volumes[0].snapshot.removeprefix(SNAPSHOT_PREFIX)
    if original == target.backup_id or not is_backup_id(original):
        return None
    local = find_local(settings, instance, original)
    if local is None or local.guids != target.guids():
        return None
    return local


def pool_for(settings: Settings, volumes: list[str]) -> str:
    """Return the pool for clones of the datasets: the configured pool, else the datasets' pool, else the only pool.

    Raises:
        PreflightError: no pool is suitable.
    """
    if settings.clones.dataset is not None:
        return pool_of(settings.clones.dataset)
    return pool_for_copy(volumes[0], "set clones.dataset")


def home_for(settings: Settings, volumes: list[str]) -> str:
    """Return the dataset that contains clones of the given datasets. Raises PreflightError if no pool is suitable."""
    return home(settings, pool_for(settings, volumes))


def origin_of_live(instance: Instance) -> SourceServer:
    """Return the facts about the server that a new live set would record; create nothing.

    Raises:
        PreflightError: the server is not fit for a snapshot.
    """
    with open_server(instance) as source:
        return origin_of(source.observe())


def take_live(instance: Instance) -> CloneSource:
    """Create a live set under the weakest sufficient lock. Its position is verified like that of a backup.

    The set is destroyed together with its last clone.
    """
    with open_server(instance) as source:
        observed = source.observe()
        with lock_server_work(instance):
            taken = take(
                source,
                observed,
                instance.name,
                instance.host.new_backup_id(),
                instance.events,
                LIVE,
                run_id=instance.host.run_id(),
            )
    return CloneSource(SourceKind.LIVE, taken.set, origin_of(observed))

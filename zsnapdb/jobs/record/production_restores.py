"""Records restores that replaced production, and finds backups whose state production no longer has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.domain_types import is_backup_id, pool_of
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import INCARNATION_PROPERTY
from zsnapdb.jobs.record.record_file import read
from zsnapdb.mysql.process.discovery import process_of
from zsnapdb.planning.creation_order import PlacedLink
from zsnapdb.planning.repository import production_restores as planning
from zsnapdb.planning.repository.host_backup_record import RecordedBackup
from zsnapdb.planning.repository.production_restores import (
    LocatedBackup,
    ProductionPoints,
    ProductionRestore,
    ProductionRestoreRecord,
)
from zsnapdb.zfs import datasets, replaced_data, snapshots, version
from zsnapdb.zfs.mounts import working_dataset


def read_production_restores(instance: Instance) -> ProductionRestoreRecord:
    """Return the restores that created the present datasets of production.

    The mark on the datasets of production names the last of these restores. If the datasets have no mark, the list is
    empty, because a user put the replaced datasets back. If production's datasets are unknown or do not exist, all
    recorded restores are returned, because the lost data came from them.

    Raises:
        DamagedError: the record cannot be read.
    """
    known = _recorded(instance)
    return known if not known.restores else _of_places(known, existing_production(instance))


def restore_in_place(instance: Instance) -> str | None:
    """Return the id of the restore that created production's datasets; None if there is none, or if it is unknown.

    The datasets have the mark of the restore before their server is started, and thus before the restore is recorded.
    """
    try:
        places = existing_production(instance)
        seen = datasets.properties_of(places, [INCARNATION_PROPERTY]) if places else {}
    except (ZsnapdbError, OSError):
        return None
    marks = {values[INCARNATION_PROPERTY] for values in seen.values()}
    mark = marks.pop() if len(marks) == 1 else None
    return mark.value if mark is not None and mark.is_local and is_backup_id(mark.value) else None


def _of_places(known: ProductionRestoreRecord, places: Sequence[str]) -> ProductionRestoreRecord:
    seen = datasets.properties_of(places, [INCARNATION_PROPERTY]) if places else {}
    marks = {values[INCARNATION_PROPERTY] for values in seen.values()}
    if not marks:
        return known
    mark = marks.pop()
    return known.as_of(mark.value if not marks and mark.is_local else None)


def _recorded(instance: Instance) -> ProductionRestoreRecord:
    file = instance.host.put_backs / f"{instance.name}.json"
    return read(file, ProductionRestoreRecord) or ProductionRestoreRecord()


def existing_production(instance: Instance) -> list[str]:
    """Return the existing datasets of production; empty if they are unknown."""
    return [name for name in _production(instance) or () if datasets.exists(name)]


def _production(instance: Instance) -> Collection[str] | None:
    """Return the configured datasets.

    If none are configured, return the dataset with the running server's data directory. Return None if no datasets are
    configured and the server's process is unknown, for example because the server is down.
    """
    if instance.settings.volumes is not None:
        return instance.settings.volumes.values()
    socket = instance.settings.socket
    if instance.settings.vm is not None or (socket is not None and not socket.exists()):
        return None
    try:
        with instance.session() as session:
            process = process_of(session)
    except (ZsnapdbError, OSError):
        return None
    place = working_dataset(Path(f"/proc/{process}")) if process is not None else None
    return None if place is None else (place,)


def backups_taken_back(instance: Instance, backups: Iterable[LocatedBackup]) -> Mapping[str, str]:
    """Return the backups that are not an earlier state of the present production, with the reason by backup id.

    Raises the errors of `read_production_restores`.
    """
    known = _recorded(instance)
    if not known.restores:
        return {}
    listed, places = list(backups), existing_production(instance)
    present = _of_places(known, places)
    found = {name: f"restore {put_back} took its state back" for name, put_back in present.taken_back(listed).items()}
    if len(present.restores) == len(known.restores):
        return found
    pools = [version.pool_guid(pool) for pool in {pool_of(place) for place in places}]
    undone = known.undone_since(present).discarded(listed, pools)
    return found | {name: f"the datasets of restore {made} were replaced by hand" for name, made in undone.items()}


def recorded_pool_guid(places: Collection[str], backups: Sequence[RecordedBackup | PlacedLink]) -> int:
    """Return the GUID under which the given backups recorded the pool that now contains the datasets `places`.

    `zpool reguid` changes a pool's GUID, and the new pool of `zpool split` gets a new GUID. Both commands keep
    snapshots, bookmarks and transaction groups. So the pool is still the recorded one if it has a snapshot or bookmark
    of a backup in the same transaction group. `places` are the datasets of production; `backups` are oldest first.
    """
    pool_guid = version.pool_guid(pool_of(next(iter(places))))
    if backups and all(one.pool_guid != pool_guid for one in backups):
        points = frozenset(snapshots.created_points(places))
        for one in reversed(backups):
            if one.pool_guid is not None and any((volume.guid, one.createtxg) in points for volume in one.volumes):
                return one.pool_guid
    return pool_guid


def rolled_back(
    instance: Instance, backups: Sequence[PlacedLink], places: Collection[str], local: Collection[int]
) -> Mapping[str, str]:
    """Return the newest backups whose state production lost by a `zfs rollback`, with the reason by backup id.

    The backups are ordered, oldest first. `places` contains the configured datasets. If none are configured and the
    server is down, `places` contains the datasets of the newest backup. `local` contains the GUIDs of production's
    snapshots, if the caller has read them. Usually these GUIDs already show that nothing was rolled back. In this case
    no program is started. Raises the errors of `read_production_restores`.
    """
    if not backups or any(volume.guid in local for volume in backups[-1].volumes):
        return {}
    if instance.settings.volumes is None:
        places = _production(instance) or places
    try:
        if len({pool_of(place) for place in places}) != 1 or not all(datasets.exists(place) for place in places):
            return {}
        pool_guid = recorded_pool_guid(places, backups)
        if backups[-1].pool_guid != pool_guid:
            return {}
        guids, oldest = snapshots.known_states(places)
        lost: Collection[int] = ()
        if any(volume.guid in guids for volume in backups[-1].volumes):
            lost = frozenset(replaced_data.abandoned_bookmarks(places, if_unknown=False).values())
    except (ZsnapdbError, OSError):
        return {}
    points = ProductionPoints(pool_guid, guids, oldest, lost)
    names = planning.rolled_back(backups, points, read_production_restores(instance))
    what = (
        "data that comes from it, as after `zfs receive -F`"
        if lost
        else ("a snapshot or bookmark of it, as after `zfs rollback`")
    )
    return dict.fromkeys(names, f"no volume of {instance.name} has {what}")


def note_production_restore(instance: Instance, made: ProductionRestore) -> None:
    """Record that a restore replaced production. Warn if the record cannot be written."""
    folder = instance.host.put_backs
    file = folder / f"{instance.name}.json"
    try:
        before = _recorded(instance)
        make_private(folder)
        files.replace(file, before.with_restore(made).model_dump_json().encode(), 0o600)
    except (OSError, ZsnapdbError) as error:
        instance.events.warn(
            f"recording in {file} that restore {made.restore_id} put {instance.name} back failed ({error}): until the"
            " next backup, `latest` may be a state that the restore discarded"
        )

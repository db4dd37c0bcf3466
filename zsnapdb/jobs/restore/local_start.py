"""The local sets of `zsnapdb snapshot` at which a restore can begin, beside the stored backups."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.model import pool_of
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import put_back_record
from zsnapdb.jobs.record.host_record import StoredCheck
from zsnapdb.jobs.record.record_file import BACKUPS, read
from zsnapdb.planning.repository.host_record import BackupRecord
from zsnapdb.planning.restore.newest import asks_for_newest
from zsnapdb.planning.restore.origin import RestoreOrigin, SetStanding
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.targets import AtBackup, Target
from zsnapdb.repository.manifest import Manifest, is_of_server
from zsnapdb.repository.repository import Repository


def is_local_set(manifest: Manifest) -> bool:
    """Whether the manifest is one that this host keeps: the set cannot be fetched with it, only cloned."""
    return manifest.repository_id == local_snapshot.IN_NO_REPOSITORY


def standing_of(instance: Instance, backup_id: str) -> SetStanding:
    """Return what the records of this host say of a set, without a question to a store.

    The description of a set on this host does not tell: a stored backup has one too, for while its store is away.
    """
    folder = instance.host.records / instance.name
    try:
        records = [read(place / BACKUPS, BackupRecord) for place in sorted(folder.iterdir()) if place.is_dir()]
    except FileNotFoundError:
        return SetStanding.LOCAL
    except (OSError, DamagedError):
        return SetStanding.UNKNOWN
    stored = {backup.backup_id for record in records if record is not None for backup in record.stored}
    return SetStanding.STORED if backup_id in stored else SetStanding.LOCAL


def first_manifest(instance: Instance, repository: Repository, planned: RestorePlan) -> Manifest:
    """Return the manifest of the backup, or of the local set, that a plan begins with."""
    local = local_snapshot.read(instance, planned.backup_id) if planned.clones else None
    return local or repository.manifest(instance.name, planned.backup_id)


def names_local_set(instance: Instance, target: Target, origin: RestoreOrigin) -> bool:
    """Whether the target names a local set at which the restore may begin."""
    if origin is RestoreOrigin.REPOSITORY or not isinstance(target, AtBackup) or target.backup_id is None:
        return False
    return local_snapshot.read(instance, target.backup_id) is not None


def with_local_sets(
    instance: Instance,
    stored: Sequence[Manifest],
    target: Target,
    origin: RestoreOrigin,
    top: str | None,
    checked: StoredCheck,
) -> list[Manifest]:
    """Return the stored backups and the local sets at which a restore may begin, oldest first.

    Local sets count unless the repository was requested, or the newest backup. They must be of the server of the newest
    stored backup, and in the pool of the target `top` (None: it will be in theirs), because a clone stays in its pool.
    """
    if origin is RestoreOrigin.REPOSITORY or target == AtBackup(None):
        return list(stored)
    known = {manifest.backup_id for manifest in stored}
    writer = stored[-1].writer if stored else None
    loaded = local_snapshot.load(instance)
    left = put_back_record.taken_back(instance, loaded) if asks_for_newest(target) else {}
    local = [
        manifest
        for manifest in loaded
        if manifest.backup_id not in (known | left.keys())
        and is_of_server(manifest)
        and writer in (None, manifest.writer)
        and (top is None or all(pool_of(volume.dataset) == pool_of(top) for volume in manifest.volumes))
    ]
    return list(checked.ordered([*stored, *local]))

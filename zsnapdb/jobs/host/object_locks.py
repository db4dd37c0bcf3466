"""Sets object locks in the store. The bases of a new backup are locked for as long as the new backup itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from zsnapdb.base.errors import DamagedError, RepositoryError
from zsnapdb.config.repository import KeepSettings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.repository.object_lock import (
    BucketFacts,
    LockFinding,
    Rules,
    extended_until,
    lock_findings,
    must_extend,
    needed_until,
)
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository

_PARALLEL_REQUESTS = 8


def extend_locks(instance: Instance, repository: Repository, backup_id: str) -> None:
    """Lock every object of the base backups for as long as the new backup, which has just been stored.

    If an error occurs, this function only warns, because the backup is stored and the next backup extends the locks. If
    no locks are configured, the function does nothing.
    """
    lock = instance.repository.object_lock
    if lock is None:
        return
    try:
        listed, checked = host_backup_record.checked_backups(instance, repository)
        known = checked.provenance.trusted(listed.backups)
        target = next(backup for backup in known if backup.backup_id == backup_id)
        bases = [backup.backup_id for backup in restore_chain(known, target) if backup.backup_id != backup_id]
        now = instance.host.now()
        short = _locked_too_short(repository, instance.name, bases, needed_until(now, lock.period))
        for name in short:
            _extend(repository, instance.name, name, extended_until(now, lock.period))
    except (RepositoryError, DamagedError, StopIteration) as error:
        why = error.message if isinstance(error, (RepositoryError, DamagedError)) else "the store does not list it"
        instance.events.warn(
            f"the locks of backups that {backup_id} builds on were not extended: {why}; the next backup tries again"
        )


def _locked_too_short(repository: Repository, instance: str, names: Sequence[str], needed: datetime) -> list[str]:
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="hold") as pool:
        holds = list(pool.map(lambda name: repository.hold(layout.manifest(instance, name)), names))
    return [
        name
        for name, hold in zip(names, holds, strict=True)
        if must_extend(hold.until if hold else None, is_held=hold is not None, needed=needed)
    ]


def _extend(repository: Repository, instance: str, name: str, until: datetime) -> None:
    """Lock the objects of a backup. The manifest is locked last, so that its lock proves that the chunks are locked."""
    keys = list(repository.sizes(layout.chunks_of_backup(instance, name)))
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="lock") as pool:
        for _ in pool.map(lambda key: repository.extend_lock(key, until), keys):
            pass
    repository.extend_lock(layout.manifest(instance, name), until)


def findings(instance: Instance, repository: Repository) -> tuple[LockFinding, ...]:
    """Return the conflicts of the configured locks with the bucket and with the retention policy."""
    lock = instance.repository.object_lock
    if lock is None:
        return ()
    store = repository.afterlife()
    keep = instance.settings.keep or instance.repository.keep
    bucket = BucketFacts(store.keeps_versions, store.has_locks, store.days)
    return lock_findings(lock.period, bucket, _rules(keep) if keep is not None else None)


def _rules(keep: KeepSettings) -> Rules:
    return Rules(keep.hourly, keep.daily, keep.weekly, keep.monthly, keep.yearly, keep.within, keep.last)

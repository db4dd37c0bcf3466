"""The free space of the volumes that this host's server uses. The server need not be running."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import ServerError, ZsnapdbError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.backup.placement import MountedFilesystem, mount_of
from zsnapdb.planning.server_space import START_BYTES, FullVolume
from zsnapdb.zfs import datasets, mounts
from zsnapdb.zfs.datasets import Property

if TYPE_CHECKING:
    from zsnapdb.mysql.session import Session

_USED = ("usedbydataset", "usedbysnapshots", "usedbyrefreservation", "reservation")


def find_full_volume(instance: Instance) -> FullVolume | None:
    """Return the server's mounted volume with the least free space if this is too little to start a server; else None.

    If a volume is full, ZFS is asked what uses the pool. Otherwise no program is started.
    """
    known = {entry.source: free for entry in _volumes(instance) if (free := _free(entry.path)) is not None}
    dataset = min(known, key=lambda name: known[name], default=None)
    if dataset is None or known[dataset] >= START_BYTES:
        return None
    try:
        return _with_uses(dataset, known[dataset])
    except ZsnapdbError:
        return FullVolume(dataset, known[dataset])


def open_session(instance: Instance, *, read_timeout: float = 60.0) -> Session:
    """Open a session to the instance's server, as `Instance.session` does.

    Raises:
        ServerError: the server cannot be reached. If this host knows the cause, the error says it, with the same hint
            as `zsnapdb status`: a full volume, a volume that is not mounted, or a stopped unit.
    """
    try:
        return instance.session(read_timeout=read_timeout)
    except ServerError as error:
        from zsnapdb.jobs.record.server_unit_record import find_missing_volume, stopped_server
        from zsnapdb.mysql.session import UNREACHABLE_HINT

        full, stopped = find_full_volume(instance), stopped_server(instance)
        is_down = stopped is None and error.hint == UNREACHABLE_HINT
        missing = find_missing_volume((instance.settings.volumes or {}).values()) if is_down else None
        if full is not None:
            cause, hint = full.describe(), full.hint(stopped.unit if stopped is not None else None)
        elif stopped is not None:
            cause, hint = stopped.describe(instance.name), stopped.hint(instance.name)
        elif missing is not None:
            cause, hint = missing.describe(), missing.hint(instance.name, "start the server")
        else:
            raise
        raise ServerError(f"{error.message}; {cause}", hint=hint) from error


def _volumes(instance: Instance) -> Iterator[MountedFilesystem]:
    """Yield the mounts of the configured volumes, and the dataset with the recorded data directory."""
    if instance.settings.vm is not None:
        return
    mounted = [MountedFilesystem(entry.path, entry.fstype, entry.source, entry.is_bind) for entry in mounts.mounted()]
    configured = (instance.settings.volumes or {}).values()
    yield from (entry for entry in mounted if entry.fstype == "zfs" and entry.source in configured)
    datadir = _datadir(instance)
    holder = mount_of(datadir, mounted) if datadir is not None else None
    if holder is not None and holder.fstype == "zfs":
        yield holder


def _datadir(instance: Instance) -> str | None:
    """Return the recorded data directory.

    The module is imported here, because it is needed only if a backup recorded the server.
    """
    if not (instance.host.services / f"{instance.name}.json").exists():
        return None
    from zsnapdb.jobs.record.server_unit_record import recorded_datadir

    return recorded_datadir(instance)


def _free(path: str) -> int | None:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _with_uses(dataset: str, free: int) -> FullVolume:
    """Return the full volume, and what uses the space of its pool.

    A reservation uses space even if its dataset is empty.
    """
    pool = pool_of(dataset)
    seen = datasets.children(pool, (*_USED, "available"))
    used = {
        name: max(_number(values, "reservation"), sum(_number(values, key) for key in _USED[:3]))
        for name, values in seen.items()
    }
    return FullVolume(dataset, free, _number(seen[pool], "available"), used)


def _number(values: Mapping[str, Property], key: str) -> int:
    value = values[key].value if key in values else ""
    return int(value) if value.isdecimal() else 0

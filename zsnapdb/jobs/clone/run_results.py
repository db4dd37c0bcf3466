"""Finds the results of earlier runs. The caller of a run chose the run's id.

The anchor of a clone and each commit record the id of the run that created them.
"""

from __future__ import annotations

from zsnapdb.base.errors import UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import credentials, destroy, kept_ports, sources
from zsnapdb.jobs.clone.catalogue import find, listing, locked_clone
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.commits import Committed
from zsnapdb.jobs.clone.request import Created, CreateDurations
from zsnapdb.jobs.dataset_copies.properties import HALF_MADE
from zsnapdb.planning.clone.pool import PoolMark


def created(settings: Settings, instance: Instance) -> Created | None:
    """Return the clone that an earlier run with the same id created or got from the pool; None if there is none.

    If the run left an incomplete clone, destroy that clone first, because its name is requested again.

    Raises:
        BusyError: another process has the lock of that clone.
    """
    run = instance.host.run_id()
    for info in listing(settings, instance.host):
        if (info.run_id, info.instance) != (run, instance.name) or info.is_of_nobody or info.is_ephemeral:
            continue
        if info.phase not in HALF_MADE:
            if info.kept_port is not None and not info.is_led_to:
                # The run may have been killed before it set the route in HAProxy.
                with locked_clone(settings, instance.host, info.id) as now_there:
                    info = kept_ports.open_to(settings, now_there, instance.events)
            is_of_pool = info.pool is PoolMark.HANDED_OUT
            # The durations of the run are not recorded.
            return Created(info, credentials.read(info.client_file), CreateDurations(), is_of_pool=is_of_pool)
        destroy.destroy(settings, instance.host, info.id)
    return None


def password_of(settings: Settings, host: Host, clone_id: str) -> str | None:
    """Return the password of the clone that an earlier run with the same id created; None if there is none."""
    try:
        info = find(settings, host, clone_id)
    except UnknownNameError:
        return None
    password = credentials.read(info.client_file) if info.run_id == host.run_id() else None
    return password.get_secret_value() if password is not None else None


def committed(settings: Settings, host: Host, name: str) -> Committed | None:
    """Return the commit of the clone that an earlier run with the same id created; None if there is none."""
    info, run = find(settings, host, name), host.run_id()
    own = next((commit for commit in sources.commits(info.top) if commit.run_id == run), None)
    return Committed(info, own.set, own.message) if own is not None else None


def guids(settings: Settings, host: Host, name: str) -> tuple[str, ...]:
    """Return the GUIDs of the clone with the given name, or of all clones in the set with the given name.

    Each clone has its own GUID.
    """
    named: list[CloneInfo] = destroy.find_clones(settings, host, name)
    return tuple(info.guid for info in named)

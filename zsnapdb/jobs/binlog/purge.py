"""`zsnapdb binlog purge`: removes archived binlogs from the server, in small batches, by the server's own statement."""

from __future__ import annotations

import time
from collections.abc import Mapping

from zsnapdb.jobs.binlog.files import LocalFiles, find_source
from zsnapdb.jobs.exclusion import for_instance
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import Flavour
from zsnapdb.mysql import binlog_list
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog.purge import Dump, Expiry, PurgePlan, batches, plan_purge
from zsnapdb.planning.family import family
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, server_name

_PAUSE = 0.5
"""Seconds between batches: PURGE holds LOCK_index while it removes a file, and commits may wait for that lock."""

_SENT_ALL = "has sent all binlog"


def plan_now(instance: Instance) -> PurgePlan:
    """Return what a purge would remove now; changes nothing."""
    with instance.session() as session:
        return _plan(instance, session)


def purge(instance: Instance) -> PurgePlan:
    """Remove the binlogs of the plan. Afterwards they are gone, or an error says which statement the server refused."""
    with (
        for_instance(instance, "purge", "purging binlogs of"),
        instance.session() as session,
    ):
        planned = _plan(instance, session)
        for number, batch in enumerate(batches(planned.names, instance.settings.binlog.purge_files)):
            if number:
                time.sleep(_PAUSE)
            following = _after(session, batch[-1])
            instance.events.tell(f"removing {batch[0]} to {batch[-1]}" if len(batch) > 1 else f"removing {batch[0]}")
            binlog_list.purge_before(session, following)
        return planned


def _plan(instance: Instance, session: Session) -> PurgePlan:
    source = find_source(session)
    files = LocalFiles(source)
    local = files.list()
    archive = BinlogArchive(instance.open_repository(), instance.name).load()
    own = server_name(source.server_uuid, source.server_id)
    mine = [
        i.id
        for i in archive.incarnations
        if server_name(i.server_uuid, i.server_id) == own and i.flavour is source.flavour
    ]
    kept: tuple[ArchivedFile, ...] = archive.of(mine[-1]) if mine else ()
    now = time.time()
    ages = [now - files.path(file.name).stat().st_mtime for file in local]
    variables = global_variables(session)
    settings = instance.settings.binlog
    return plan_purge(
        local,
        ages,
        kept,
        _dumps(session),
        expiry_of(source.flavour, variables),
        keep=settings.keep,
        replicas=settings.replicas,
    )


def _after(session: Session, name: str) -> str:
    """Return the binlog after the named binlog in the server's list. A purge removes the binlogs before it."""
    names = binlog_list.names(session)
    return names[names.index(name) + 1]


def _dumps(session: Session) -> list[Dump]:
    return [Dump(reader.host, _SENT_ALL in reader.state) for reader in binlog_list.readers(session)]


def expiry_of(flavour: Flavour, variables: Mapping[str, str]) -> Expiry:
    """Return when the server removes binlogs by itself.

    See refman 8.4, "binlog_expire_logs_seconds" and "binlog_expire_logs_auto_purge"; MariaDB, "max_binlog_total_size".
    """
    seconds = float(variables.get("binlog_expire_logs_seconds", "0"))
    if not seconds:
        seconds = float(variables.get("expire_logs_days", "0")) * 86400
    if family(flavour).knows_expiry_switch and variables.get("binlog_expire_logs_auto_purge", "ON") not in ("ON", "1"):
        seconds = 0.0
    return Expiry(seconds, int(variables.get("max_binlog_total_size", "0")))

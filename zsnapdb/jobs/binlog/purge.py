"""`zsnapdb binlog purge`: removes archived binlogs from the server in small batches, with PURGE BINARY LOGS.

A binlog is removed only if the repository contains a good copy. All of these conditions must be met:

- The store lists all objects of the archived copy with the right sizes.
- No check found damage in the copy.
- The purge has read the copy completely.
- The server's own file has the same bytes as the copy.

If `binlog.read_within` is set, a purge does not read copies that were checked within this time. This applies only if
this host trusts the signature of the check.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError, DamagedError
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.binlog.server_binlogs import KnownHistory, LocalFiles, find_source, known_history
from zsnapdb.jobs.host.binlog_spans import archived_damage
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.jobs.record import host_backup_record, own_archived_binlogs
from zsnapdb.mysql.binlog import binlog_files
from zsnapdb.mysql.binlog.events import read_plain
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog.purge import DumpConnection, Expiry, PurgePlan, ages_of, batches, plan_purge
from zsnapdb.planning.server_family import family
from zsnapdb.repository import verifications
from zsnapdb.repository.binlog_archive import BinlogArchive, listed_damage, name_of, stored_damage, stored_sizes
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Depth, known_damage

_PAUSE = 0.5
"""The time in seconds between batches.

PURGE holds the mutex LOCK_index while it removes a file, and commits may wait for this mutex.
"""

_SENT_ALL = "has sent all binlog"


def plan_now(instance: Instance) -> PurgePlan:
    """Return the plan of a purge; change nothing."""
    with open_session(instance) as session:
        return _look(instance, session)[0]


def purge(instance: Instance) -> PurgePlan:
    """Remove the binlogs in the plan. If the server refuses a statement, the error contains the statement.

    Raises:
        DamagedError: an archived copy is damaged; that binlog and all later binlogs stay on the server.
    """
    with lock_instance(instance, "purge", "purging binlogs of"), open_session(instance) as session:
        planned, archived = _look(instance, session)
        for number, batch in enumerate(batches(planned.names, instance.settings.binlog.purge_files)):
            if number:
                time.sleep(_PAUSE)
            _read(instance, archived, [name for name in batch if name in planned.unread])
            _compare(instance, archived, batch)
            # PURGE removes the binlogs before the binlog in the statement.
            names = binlog_files.names(session)
            following = names[names.index(batch[-1]) + 1]
            instance.events.tell(f"removing {batch[0]} to {batch[-1]}" if len(batch) > 1 else f"removing {batch[0]}")
            binlog_files.purge_before(session, following)
        return planned


@dataclass(frozen=True)
class _Archived:
    """The archived copies of the server's binlogs by file name, and the files on the server."""

    archive: BinlogArchive
    files: Mapping[str, ArchivedFile]
    local: LocalFiles

    def is_believed(self, instance: Instance, name: str) -> bool:
        """Return whether a record of this host or a trusted signature proves the description of the copy."""
        file = self.files[name]
        return (file.incarnation, file.name) in own_archived_binlogs.known_binlogs(
            instance, self.archive.repository, [file]
        )


def _look(instance: Instance, session: Session) -> tuple[PurgePlan, _Archived]:
    """Return the plan, and the archived copies that the plan uses."""
    source = find_source(session)
    files = LocalFiles(source)
    local = files.list()
    stored = BinlogArchive(instance.open_repository(), instance.name)
    archive = stored.load()
    _refuse_short(instance, stored.repository, archive)
    # A foreign binlog is no reason to remove a file of the server.
    known, _ = own_archived_binlogs.known_part(instance, stored.repository, archive)
    history = known_history(known, source, files)
    _refuse_replaced(instance, stored.repository, history, [file.name for file in local])
    kept = history.files
    written = [files.path(file.name).stat().st_mtime for file in local]
    ages = ages_of(written, removal_time(instance.host))
    variables = global_variables(session)
    settings = instance.settings.binlog
    archived = _Archived(stored, {file.name: file for file in kept if file.is_rotated}, files)
    planned = partial(
        plan_purge,
        local,
        ages,
        kept,
        [DumpConnection(reader.host, _SENT_ALL in reader.state) for reader in binlog_files.readers(session)],
        expiry_of(source.flavour, variables),
        keep=settings.keep,
        replicas=settings.replicas,
    )
    plan = planned(damaged=_damaged(instance, archived, planned().names))
    return replace(plan, unread=_unread(instance, archived, plan.names)), archived


def _refuse_short(instance: Instance, repository: Repository, archive: Archive) -> None:
    """Raise DamagedError if the archive lacks binlogs that this host archived.

    If so, the server's file may be the only copy of the binlog.
    """
    _, checked = host_backup_record.checked_backups(instance, repository, archive)
    for finding in checked.findings:
        if finding.is_archive:
            raise DamagedError(f"nothing is purged: {finding.text}", hint=finding.hint)


def _refuse_replaced(instance: Instance, repository: Repository, history: KnownHistory, local: Sequence[str]) -> None:
    """Raise DamagedError if this host stored the description of a binlog in `local`, but the history lacks it.

    Another history may have binlogs of the same names, so each name is compared within this history.
    """
    stored = {file.name for file in history.files if file.is_rotated}
    own = own_archived_binlogs.archived_here(instance, repository)
    number = history.incarnation.id if history.incarnation is not None else ""
    missing = [name for name in local if (number, name) in own and name not in stored]
    if missing:
        raise DamagedError(
            f"nothing is purged: the repository does not have the description of {missing[0]} that this host stored",
            hint=f"restore the older version of the object in the bucket, or run `zsnapdb backup {instance.name}` and"
            f" `zsnapdb adopt {instance.name} --plan`, which shows what would be believed",
        )


def _damaged(instance: Instance, archived: _Archived, names: Sequence[str]) -> dict[str, str]:
    """Return, by binlog name, the damage that the object list or earlier checks show in the archived copies."""
    files = [archived.files[name] for name in names]
    sizes = stored_sizes(archived.archive, files)
    known = known_damage(archived.archive.repository, instance.name)
    damaged = {}
    for file in files:
        sentences = [damage.describe() for damage in known.of([name_of(file)])]
        sentences += listed_damage(archived.archive, file, sizes)
        if sentences:
            damaged[file.name] = sentences[0]
    return damaged


def _unread(instance: Instance, archived: _Archived, names: Sequence[str]) -> tuple[str, ...]:
    """Return the binlogs whose archived copy must be read before the purge.

    If `binlog.read_within` is set, copies that were checked within this time need not be read.

    This setting has a risk: an account that can write to the bucket can replace a copy after its check.
    """
    within = instance.settings.binlog.read_within
    if within is None or not archived.archive.repository.keyring.trusted:
        return tuple(names)
    if not within:
        return ()
    known = verifications.read(archived.archive.repository, instance.name)
    checks, now = known.about(_digests(archived)), instance.host.latest()
    read = {name: checks.whole_since(name_of(archived.files[name]), Depth.READ) for name in names}
    return tuple(name for name, when in read.items() if when is None or not 0 <= (now - when).total_seconds() <= within)


def _digests(archived: _Archived) -> dict[str, str]:
    return {name_of(file): file.digest for file in archived.files.values()}


def _read(instance: Instance, archived: _Archived, names: Sequence[str]) -> None:
    """Read the archived copies completely, and record the findings.

    Raises:
        DamagedError: a copy is damaged. The message names the first damaged copy.
    """
    if not names:
        return
    instance.events.tell(f"reading the archived {', '.join(names)}")
    damages = {name: _damage(instance, archived, name) for name in names}
    findings = {name_of(archived.files[name]): damage for name, damage in damages.items()}
    repository, now = archived.archive.repository, instance.host.now()
    verifications.add(repository, instance.name, now, findings, "binlog purge", _digests(archived))
    for name, damage in damages.items():
        if damage:
            raise DamagedError(
                f"the archived copy of {name} is damaged: {damage[0]}; this binlog and later ones stay on the server",
                hint="run a backup; after that, restores to later points do not need the archived copy",
            )


def _damage(instance: Instance, archived: _Archived, name: str) -> tuple[str, ...]:
    """Read the archived copy, and return its damage.

    If this host does not trust the description of the copy, the copy is also decrypted, which requires the keys.
    """
    if archived.is_believed(instance, name):
        return stored_damage(archived.archive, archived.files[name])
    try:
        return archived_damage(archived.archive, archived.files[name])
    except ConfigError as error:
        return (f"this host did not archive it, and cannot read it: {error.message}",)


def _compare(instance: Instance, archived: _Archived, names: Sequence[str]) -> None:
    """Raise DamagedError if a file of the server differs from its archived copy."""
    for name in names:
        with archived.local.open(name) as opened:
            is_same = archived.archive.is_local(archived.files[name], partial(read_plain, opened))
        if not is_same:
            raise DamagedError(
                f"the archived copy of {name} does not have the bytes of the server's file; this binlog and later ones"
                " stay on the server",
                hint=f"run `zsnapdb verify {instance.name} --deep`, and a backup; after that, restores to later"
                " points do not need the archived copy",
            )


def expiry_of(flavour: Flavour, variables: Mapping[str, str]) -> Expiry:
    """Return the server's own rules for removing binlogs.

    See refman 8.4, "binlog_expire_logs_seconds" and "binlog_expire_logs_auto_purge"; MariaDB, "max_binlog_total_size".
    """
    seconds = float(variables.get("binlog_expire_logs_seconds", "0"))
    if not seconds:
        seconds = float(variables.get("expire_logs_days", "0")) * 86400
    if family(flavour).knows_expiry_switch and variables.get("binlog_expire_logs_auto_purge", "ON") not in ("ON", "1"):
        seconds = 0.0
    return Expiry(seconds, int(variables.get("max_binlog_total_size", "0")))

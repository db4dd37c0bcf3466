"""Refuses to call something the newest if something newer was stored that cannot be used."""

from __future__ import annotations

from zsnapdb.errors import DamagedError
from zsnapdb.jobs import host_record
from zsnapdb.jobs.backup_point import point_of
from zsnapdb.jobs.host_record import StoredCheck
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import parse_gtids
from zsnapdb.planning.restore import newest, points
from zsnapdb.planning.restore.newest import UnusableArchive, UnusableBackup
from zsnapdb.planning.restore.points import RestoreRoute
from zsnapdb.planning.restore.targets import AtBackup, Target
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.manifest import is_of_server
from zsnapdb.repository.repository import Catalogue, Repository

_GONE = "this host stored it, and the repository lacks it: deleted, hidden, or rolled back"


def check(instance: Instance, repository: Repository, catalogue: Catalogue, archive: Archive | None) -> StoredCheck:
    """Return what the repository lacks of what this host stored, and warn about it."""
    checked = host_record.check(instance, repository, catalogue.manifests, tuple(catalogue.unreadable), archive)
    checked.warn(instance)
    return checked


def unusable(catalogue: Catalogue, checked: StoredCheck) -> tuple[UnusableBackup, ...]:
    """Return the stored backups that cannot be used: their manifests are unreadable or gone."""
    found = [UnusableBackup(name, error.message) for name, error in catalogue.unreadable.items()]
    for missing in checked.missing:
        known = missing.recorded
        if known is None or known.flavour is None or known.gtids is None:
            found.append(UnusableBackup(missing.backup_id, _GONE))
        else:
            gtids = parse_gtids(known.flavour, known.gtids)
            found.append(UnusableBackup(missing.backup_id, _GONE, known.server, gtids))
    return tuple(found)


def refuse_without_any(catalogue: Catalogue, checked: StoredCheck, target: Target, requested: str) -> None:
    """Raise DamagedError if backups were stored and none of them can be used."""
    backups = unusable(catalogue, checked)
    if backups and not catalogue.manifests and newest.asks_for_newest(target):
        listed = [f"backup {item.backup_id}: {item.why}" for item in backups]
        raise newest.refusal(requested, "nothing", listed)


def newest_backup(instance: Instance, repository: Repository, *, accepts_older: bool) -> str:
    """Return the id of the newest backup of a server whose manifest can be read.

    DamagedError if something newer was stored that cannot be used, unless the caller accepts an older backup; NotThere
    if there is no backup.
    """
    target, requested = AtBackup(None), "latest"
    catalogue = repository.catalogue(instance.name)
    checked = check(instance, repository, catalogue, None)
    refuse_without_any(catalogue, checked, target, requested)
    known = tuple(point_of(manifest) for manifest in catalogue.manifests if is_of_server(manifest))
    choice = points.choose(target, known, (), instance.host.now())
    for note in notes_on_newer(choice, catalogue, checked, requested, accepts_older=accepts_older):
        instance.events.warn(note)
    return choice.point.backup_id


def notes_on_newer(
    choice: RestoreRoute, catalogue: Catalogue, checked: StoredCheck, requested: str, *, accepts_older: bool
) -> tuple[str, ...]:
    """Return what the plan says about newer states that cannot be used.

    DamagedError names them, unless the caller accepts an older state.
    """
    if not newest.asks_for_newest(choice.target):
        return ()
    short = next((finding for finding in checked.findings if checked.archive and finding.is_archive), None)
    archive = UnusableArchive(short.text, checked.archive.last_commit) if short and checked.archive else None
    newer = newest.newer_than(choice, unusable(catalogue, checked), archive, checked.order)
    if not newer:
        return ()
    if accepts_older:
        return tuple(f"newer, and cannot be used: {text}" for text in newer)
    instead = f"backup {choice.point.backup_id}" + (" and the archived binlogs after it" if choice.files else "")
    error: DamagedError = newest.refusal(requested, instead, newer)
    raise error

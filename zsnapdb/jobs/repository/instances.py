"""Lists the instances that a repository has: for a restore on a host whose configuration may have a wrong name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zsnapdb.base.errors import NotFound, UsageError, ZsnapdbError
from zsnapdb.base.patterns import INSTANCE
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import nothing_there
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class StoredInstance:
    """An instance in a repository. `backups` counts its backups; `newest` has the greatest id (None: no backup)."""

    name: str
    backups: int
    newest: str | None


@dataclass(frozen=True)
class RepositoryInstances:
    """The instances in a repository, or the error that prevents knowing them."""

    repository: str
    url: str
    instances: tuple[StoredInstance, ...] = ()
    error: ZsnapdbError | None = None


def list_instances(settings: Settings, host: Host, repository: str | None) -> tuple[RepositoryInstances, ...]:
    """Return the instances in each repository (or only in the named one), by the folders in it. No manifest is read.

    Raises UsageError if the repository is not configured.
    """
    if repository is not None and repository not in settings.repository:
        known = ", ".join(sorted(settings.repository))
        raise UsageError(f"repository {repository!r} is not configured", hint=f"known: {known}")
    names = [repository] if repository is not None else sorted(settings.repository)
    return tuple(_read(settings, host, name) for name in names)


def _read(settings: Settings, host: Host, name: str) -> RepositoryInstances:
    configured = settings.repository[name]
    try:
        objects = Repository(*host.open_store(configured, None), "")
        objects.check()
        folders = [folder for folder in objects.top_folders() if re.fullmatch(INSTANCE, folder)]
        stored = tuple(_stored_instance(folder, objects.backup_ids(folder)) for folder in folders)
    except NotFound as error:
        return RepositoryInstances(name, configured.url, error=nothing_there(name, configured.url, error))
    except ZsnapdbError as error:
        return RepositoryInstances(name, configured.url, error=error)
    if not stored:
        empty = NotFound("it has no instance", hint=OTHER_ADDRESS_HINT)
        return RepositoryInstances(name, configured.url, error=nothing_there(name, configured.url, empty))
    return RepositoryInstances(name, configured.url, stored)


def _stored_instance(name: str, backup_ids: list[str]) -> StoredInstance:
    return StoredInstance(name, len(backup_ids), backup_ids[-1] if backup_ids else None)

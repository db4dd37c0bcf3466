"""Decides whether a host may create a repository where none was found. Pure.

A file system that is not mounted looks like an empty place for a new repository. A new repository there would receive
backups, and every objective would be met without the backups that the host stored before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zsnapdb.base.errors import NotFound
from zsnapdb.planning.repository.host_backup_record import BackupRecord, backups_in

_SHOWN = 3


def expected_backups(
    records: Iterable[BackupRecord], url: str, instances: Sequence[str], copies: Iterable[BackupRecord] = ()
) -> tuple[BackupRecord, ...]:
    """Return the records of backups that a new repository at the address would lack.

    The argument `records` contains the records of the host's own backups, and `copies` those of copied backups. Every
    backup that the host stored at this address is expected there. The backups of `instances`, which store their backups
    in this repository, are expected even if they are at another address.
    """
    own, there = tuple(records), (record for record in copies if record.url == url)
    here = (record for record in own if record.url == url or record.instance in instances)
    return tuple(record for record in (*here, *there) if record.stored)


def nothing_there(
    repository: str, url: str, error: NotFound, expected: Sequence[BackupRecord] = (), *, is_writing: bool = False
) -> NotFound:
    """Return the error for an address at which no repository was found. The error contains the address.

    The argument `expected` contains the records of `expected_backups`. Only a writing command (`is_writing`) names the
    command that creates a repository without these backups.
    """
    text = f"no repository was found at the address of repository {repository!r}, {url}: {error.message}"
    if not expected:
        return NotFound(text, hint=error.hint)
    stored = _describe(expected, url)
    place = "mount the file system of this folder" if url.startswith("file:") else "check the bucket and its provider"
    hint = f"{place}, or correct `url` in [repository.{repository}]"
    if is_writing:
        hint += f"; only to begin without these backups, run `zsnapdb init {repository} --new`"
    return NotFound(f"{text}; this host stored {stored}", hint=hint)


def new_address_warning(repository: str, url: str, expected: Sequence[BackupRecord]) -> str | None:
    """Return a warning before a repository is created at a new address; None if the host stored no backups elsewhere.

    The argument `expected` contains the records of `expected_backups`.
    """
    if not expected:
        return None
    return (
        f"a new repository begins at {url}, without what this host stored: {_describe(expected, url)}. If the address"
        f" is wrong, correct `url` in [repository.{repository}]. `zsnapdb copy` takes the backups along"
    )


def _describe(expected: Sequence[BackupRecord], url: str) -> str:
    # A host that copied backups to an address before it stored backups there has two records of the same backups.
    places: dict[tuple[str, str], BackupRecord] = {}
    for record in sorted(expected, key=lambda record: (record.url != url, -len(record.stored))):
        known = places.setdefault((record.url, record.instance), record)
        places[record.url, record.instance] = known.with_stored(*record.stored)
    return ", and ".join(
        f"{backups_in(record.stored)} of {record.instance} {'there' if record.url == url else f'at {record.url}'}, the"
        f" newest {record.stored[-1].backup_id}"
        for record in [*places.values()][:_SHOWN]
    )

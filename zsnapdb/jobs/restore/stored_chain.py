"""Judges the stored backups that a restore needs: their chunks, their keys, and what is known to be damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from zsnapdb.base.errors import DamagedBackupError, DamagedError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_record
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok, warning
from zsnapdb.planning.chain import newest_without
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage

DAMAGE = "damage"
"""The subject of the findings about known damage."""


def judge_chunks(instance: Instance, repository: Repository, manifest: Manifest) -> list[FitnessFinding]:
    """Return the finding that every chunk of a backup is in the repository with its size and its keys can be opened.

    One listing has the chunks and their sizes. DamagedError if a chunk is missing or has another size.
    """
    # A wrong key raises its error now and not after the download of the backups before.
    repository.ciphers(manifest)
    with naming_restorable(instance, repository, manifest.backup_id):
        for volume in manifest.volumes:
            stored = repository.chunks_of(manifest, volume.role)
            sizes = stored.sizes()
            for index, chunk in enumerate(volume.chunks, 1):
                key = stored.key(index)
                name = f"chunk {key}"
                if key not in sizes:
                    raise DamagedError(
                        f"{name} is missing",
                        hint="the object was removed after it was written; restore another backup, see `zsnapdb list`",
                    )
                if sizes[key] != chunk.stored_size:
                    raise DamagedError(
                        f"{name}: {sizes[key]} bytes are stored, the manifest says {chunk.stored_size}",
                        hint=(
                            "the object was changed or cut after it was written; restore another backup, see `zsnapdb"
                            " list`"
                        ),
                    )
    return [ok("backup", f"{manifest.backup_id}: all chunks exist with their sizes, and the keys can be opened")]


def judge_damage(instance: Instance, repository: Repository, backups: Sequence[str]) -> list[FitnessFinding]:
    """Return a warning for each known damage of this chain, which begins with the full backup.

    A restore tries it all the same: it proves every chunk itself, and what checks recorded may be out of date.
    """
    hint = "restore a backup that does not need it, see `zsnapdb list`; `zsnapdb verify --deep` checks again"
    damages = known_damage(repository, instance.name).of_chain(backups)
    return [warning(DAMAGE, damage.describe(), hint) for damage in damages]


def is_damaged(findings: Sequence[FitnessFinding]) -> bool:
    """Whether a finding says that the chain is known to be damaged."""
    return any(finding.what == DAMAGE and finding.severity is not Severity.OK for finding in findings)


@contextlib.contextmanager
def naming_restorable(instance: Instance, repository: Repository, damaged: str) -> Iterator[None]:
    """Add to an error about a damaged chunk the newest backup that can still be restored: one without `damaged`."""
    try:
        yield
    except DamagedError as error:
        known, checked = host_record.stored(instance, repository)
        restorable = newest_without(checked.provenance.trusted(known.backups), damaged, checked.unchosen)
        way = (
            f"the newest backup that does not need {damaged} is {restorable.backup_id}: restore that backup"
            if restorable
            else f"every backup needs {damaged}"
        )
        raise DamagedBackupError(
            error.message,
            hint=f"the object was changed, cut or removed after it was written; {way}",
            backup_id=damaged,
        ) from error

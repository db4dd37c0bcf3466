"""What is stored of a backup and its chain: the chunks, known damage, and the keys of raw streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from zsnapdb.base.errors import DamagedBackupError, DamagedError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_record
from zsnapdb.planning.backup.at_rest import judge_raw_keys
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok, warning
from zsnapdb.planning.chain import newest_without
from zsnapdb.repository.manifest import Manifest, VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.stream.download import first_bytes
from zsnapdb.stream.wrapped_key import FIRST_BYTES, wrapped_key

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


_MOST_TEXT = 4096
"""More bytes than any key of ZFS has (a passphrase has at most 512)."""


def key_location(instance: Instance) -> str:
    """Return where ZFS finds the key of what is received raw, as a value of keylocation: a file, else it is typed."""
    file = instance.settings.encryption.key_file
    return "prompt" if file is None else f"file://{file}"


def judge_key_file(instance: Instance, raw: tuple[str, ...]) -> list[FitnessFinding]:
    """Return what is to be said about the key file, if these datasets are stored raw. Changes nothing."""
    file = instance.settings.encryption.key_file
    trouble = None
    if file is not None and raw:
        try:
            trouble = None if _text(file) else "the file is empty"
        except OSError as error:
            trouble = error.strerror or str(error)
    return judge_raw_keys(raw, None if file is None else str(file), trouble)


def judge_key(instance: Instance, repository: Repository, manifest: Manifest) -> list[FitnessFinding]:
    """Return what is to be said about the key of a backup: whether the file has the key that it had then.

    That is read in the first chunk of each raw volume. Changes nothing. DamagedError if a chunk is damaged.
    """
    findings = judge_key_file(instance, manifest.raw)
    file = instance.settings.encryption.key_file
    if file is None or any(finding.severity is Severity.UNFIT for finding in findings):
        return findings
    text = _text(file) if manifest.raw else b""
    with naming_restorable(instance, repository, manifest.backup_id):
        wrong = [
            volume.dataset
            for volume in manifest.volumes
            if volume.is_raw and not _is_opened(repository, manifest, volume, text)
        ]
    return (
        judge_raw_keys(tuple(wrong), str(file), f"{file} has another key than the one of then") if wrong else findings
    )


def _text(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_MOST_TEXT)


def _is_opened(repository: Repository, manifest: Manifest, volume: VolumePart, text: bytes) -> bool:
    """Whether the key opens the volume. A key in a form that is not known here is left to ZFS."""
    stored = repository.chunks_of(manifest, volume.role)
    first = first_bytes(
        stored,
        volume.chunks,
        volume.codec,
        FIRST_BYTES,
        name=lambda index: f"chunk {stored.key(index)}",
        ciphers=repository.ciphers(manifest),
        expected=expected_stream(volume, volume.features),
    )
    key = wrapped_key(first)
    return key is None or key.is_opened_by(text)

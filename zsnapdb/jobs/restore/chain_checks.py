"""Checks the stored chain of a backup: its chunks, its known damage, and the keys of its raw streams."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zsnapdb.base.errors import DamagedBackupError, DamagedError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.planning.backup.dataset_encryption import judge_raw_keys
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok, unfit, warning
from zsnapdb.planning.backup_chain import newest_without
from zsnapdb.planning.restore.steps import LogPart
from zsnapdb.repository import layout
from zsnapdb.repository.archived_objects import find_archived
from zsnapdb.repository.layout import BinlogKey, ChunkKey, K, KeyPrefix
from zsnapdb.repository.manifest import Manifest, VolumePart, expected_stream
from zsnapdb.repository.objects import ListedObject
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.store.base import ARCHIVED_HINT
from zsnapdb.stream.download import first_bytes
from zsnapdb.stream.raw_stream_key import FIRST_BYTES, wrapped_key

DAMAGE = "damage"
"""The subject of findings about known damage."""
ARCHIVED = "archive class"
"""The subject of findings about objects in an archive class."""
_LISTERS = 8


def judge_chunks(instance: Instance, repository: Repository, manifest: Manifest) -> list[FitnessFinding]:
    """Return a finding that prevents the restore if chunks of a backup are in an archive class, else a confirmation.

    Raises the errors of `archived_chunks`.
    """
    archived = find_archived(repository, archived_chunks(instance, repository, manifest))
    if archived:
        text = f"backup {manifest.backup_id}: {'; '.join(one.describe() for one in archived)}"
        return [unfit(ARCHIVED, text, ARCHIVED_HINT)]
    return [ok("backup", f"{manifest.backup_id}: all chunks exist with their sizes, and the keys can be opened")]


def archived_chunks(instance: Instance, repository: Repository, manifest: Manifest) -> list[ListedObject[ChunkKey]]:
    """Return the chunks of a backup that are in an archive class, including retrieved chunks.

    Also check that all chunks have the right sizes and that the data keys can be decrypted. The chunks are listed in
    the store, but not downloaded.

    Raises:
        DamagedError: a chunk is missing or has a different size.
    """
    # If a data key cannot be decrypted, raise the error now, and not after the download of earlier backups.
    repository.ciphers(manifest)
    cold: list[ListedObject[ChunkKey]] = []
    with naming_restorable(instance, repository, manifest.backup_id):
        for volume in manifest.volumes:
            listed = repository.chunks_of(manifest, volume.role).compare(volume.chunks)
            for text in listed.unfit.values():
                raise DamagedError(text)
            cold += listed.archived
    return cold


def judge_binlogs(instance: Instance, repository: Repository, logs: Sequence[LogPart]) -> list[FitnessFinding]:
    """Return a finding that prevents the restore if bytes of the binlogs to replay are in an archive class."""
    places = {(log.incarnation, log.file) for log in logs if not log.is_local}
    archived = find_archived(repository, archived_binlogs(instance, repository, places))
    text = f"binlogs to replay: {'; '.join(one.describe() for one in archived)}"
    return [unfit(ARCHIVED, text, ARCHIVED_HINT)] if archived else []


def archived_binlogs(
    instance: Instance, repository: Repository, places: Collection[tuple[str, str]]
) -> list[ListedObject[BinlogKey]]:
    """Return the objects of binlogs that are in an archive class, including retrieved objects.

    `places` contains the incarnation and the name of each binlog. Its chunks and segments are listed in the store, but
    not downloaded.
    """
    prefixes = [
        prefix(instance.name, *place)
        for place in sorted(places)
        for prefix in (layout.binlog_chunks, layout.segment_bodies)
    ]
    with ThreadPoolExecutor(_LISTERS, thread_name_prefix="binlogs") as pool:
        return [one for found in pool.map(lambda prefix: _cold(repository, prefix), prefixes) for one in found]


def _cold(repository: Repository, prefix: KeyPrefix[K]) -> list[ListedObject[K]]:
    return [one for one in repository.list(prefix) if one.archive_class]


def judge_damage(instance: Instance, repository: Repository, backups: Sequence[str]) -> list[FitnessFinding]:
    """Return a warning for each known damage of the chain. `backups` contains the chain, the full backup first.

    The damage does not prevent the restore, because the record may be outdated, and the restore verifies every chunk.
    """
    hint = "restore a backup that does not need it, see `zsnapdb list`; `zsnapdb verify --deep` checks again"
    damages = known_damage(repository, instance.name).of_chain(backups)
    return [warning(DAMAGE, damage.describe(), hint) for damage in damages]


def is_damaged(findings: Sequence[FitnessFinding]) -> bool:
    """Return whether a finding reports known damage of the chain."""
    return any(finding.what == DAMAGE and finding.severity is not Severity.OK for finding in findings)


def is_archived(findings: Sequence[FitnessFinding]) -> bool:
    """Return whether a finding reports chunks in an archive class."""
    return any(finding.what == ARCHIVED for finding in findings)


@contextlib.contextmanager
def naming_restorable(instance: Instance, repository: Repository, damaged: str) -> Iterator[None]:
    """Run the block. If it fails because of a damaged chunk, raise the error with a better hint.

    The hint names the newest backup that does not need the backup `damaged`.
    """
    try:
        yield
    except DamagedError as error:
        known, checked = host_backup_record.checked_backups(instance, repository)
        restorable = newest_without(checked.provenance.trusted(known.backups), damaged, checked.unchosen)
        way = (
            f"the newest backup that does not need {damaged} is {restorable.backup_id}: restore that backup"
            if restorable
            else f"every backup needs {damaged}"
        )
        raise DamagedBackupError(
            error.message, hint=f"the object was changed, cut or removed after it was written; {way}", backup_id=damaged
        ) from error


_MOST_TEXT = 4096
"""The maximum size of a key file in bytes. Every ZFS key is shorter (a passphrase has at most 512 bytes)."""


def key_location(instance: Instance) -> str:
    """Return the `keylocation` for datasets that are received raw: the configured key file, else `prompt`."""
    file = instance.settings.encryption.key_file
    return "prompt" if file is None else f"file://{file}"


def judge_key_file(instance: Instance, raw: tuple[str, ...]) -> list[FitnessFinding]:
    """Return findings about the key file for the datasets `raw`, which are stored as raw streams; change nothing."""
    file = instance.settings.encryption.key_file
    trouble = None
    if file is not None and raw:
        try:
            trouble = None if _text(file) else "the file is empty"
        except OSError as error:
            trouble = error.strerror or str(error)
    return judge_raw_keys(raw, None if file is None else str(file), trouble)


def judge_key(
    instance: Instance, repository: Repository, manifest: Manifest, *, is_archived: bool = False
) -> list[FitnessFinding]:
    """Return findings about whether the key file contains the key that the volumes had at the time of the backup.

    The key is tested with the first chunk of each raw volume, unless chunks are in an archive class. Nothing is
    changed.

    Raises:
        DamagedError: a chunk is damaged.
    """
    findings = judge_key_file(instance, manifest.raw)
    if is_archived:
        return findings
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
    """Return whether the text is the volume's key. Return True for an unknown key format, which only ZFS can check."""
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

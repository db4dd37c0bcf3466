"""The key of what is received from raw streams: where it is, and whether it is the right one."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import newest
from zsnapdb.planning.backup.at_rest import judge_raw_keys
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity
from zsnapdb.repository.manifest import Manifest, VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.download import first_bytes
from zsnapdb.stream.wrapped_key import FIRST_BYTES, wrapped_key

_MOST_TEXT = 4096
"""More bytes than any key of ZFS has (a passphrase has at most 512)."""


def key_location(instance: Instance) -> str:
    """Return where ZFS finds the key of what is received raw, as a value of keylocation: a file, else it is typed."""
    file = instance.settings.encryption.key_file
    return "prompt" if file is None else f"file://{file}"


def judge_file(instance: Instance, raw: tuple[str, ...]) -> list[FitnessFinding]:
    """Return what is to be said about the key file, if these datasets are stored raw. Changes nothing."""
    file = instance.settings.encryption.key_file
    trouble = None
    if file is not None and raw:
        try:
            trouble = None if _text(file) else "the file is empty"
        except OSError as error:
            trouble = error.strerror or str(error)
    return judge_raw_keys(raw, None if file is None else str(file), trouble)


def judge(instance: Instance, repository: Repository, manifest: Manifest) -> list[FitnessFinding]:
    """Return what is to be said about the key of a backup: whether the file has the key that it had then.

    That is read in the first chunk of each raw volume. Changes nothing. DamagedError if a chunk is damaged.
    """
    findings = judge_file(instance, manifest.raw)
    file = instance.settings.encryption.key_file
    if file is None or any(finding.severity is Severity.UNFIT for finding in findings):
        return findings
    text = _text(file) if manifest.raw else b""
    with newest.naming_restorable(instance, repository, manifest.backup_id):
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

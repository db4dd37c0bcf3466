"""The journal of a backup that is being stored: a file on this host that contains no secrets.

Each line is synced to disk when it is written. A line is written after its chunk is stored, and voided before the chunk
is replaced. So every line matches the repository, and a later run may trust every line. The repository may contain more
chunks than the journal lists. Each line has a checksum. If a crash cut off the last line, the line is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from zsnapdb.base.domain_types import is_backup_id
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.files import sync_folder
from zsnapdb.base.patterns import DatasetName, Guid, RoleName, SendFlag, SnapshotName
from zsnapdb.base.untrusted_text import parsed
from zsnapdb.repository.manifest import KeyPart, Manifest, VolumePart, VolumeType
from zsnapdb.repository.objects import Part
from zsnapdb.stream.chunks import Chunk, Codec
from zsnapdb.stream.upload import KnownChunk

ChunkIndex = Annotated[int, Field(ge=1, lt=2**31)]


class StartedVolume(Part):
    """The facts about a volume that are known before its stream is sent. `from_guid` is None for a full stream.

    `stream_size` is the estimated size of the stream in bytes (None: not estimated at the start).
    """

    role: RoleName
    dataset: DatasetName
    snapshot: SnapshotName
    guid: Guid
    from_guid: Guid | None
    send_flags: tuple[SendFlag, ...]
    type: VolumeType
    stream_size: int | None = None

    @property
    def full_name(self) -> str:
        return f"{self.dataset}@{self.snapshot}"


class StreamFormat(Part):
    """Chunk sizes and compression of the streams. All runs of one backup use the same format.

    Chunks grow from `first_chunk` to `chunk_size`, both in bytes. If `first_chunk` is None, all chunks have
    `chunk_size`, as in earlier versions.
    """

    chunk_size: int
    codec: Codec
    level: int
    adaptive: bool = False
    first_chunk: int | None = None


class StartedBackup(Part):
    """A backup with verified snapshots.

    `draft` is the manifest of the backup without keys and volumes. `volumes` are the streams to send. `base` is the id
    of an increment's base (None means a full backup).
    """

    format: Literal[1] = 1
    draft: Manifest
    base: str | None
    recipients: tuple[str, ...]
    cut: StreamFormat
    volumes: tuple[StartedVolume, ...]

    @property
    def backup_id(self) -> str:
        return self.draft.backup_id

    def snapshots(self) -> list[str]:
        """Return the full names of the backup's snapshots."""
        return [volume.full_name for volume in self.volumes]


class JournalDisk:
    """File operations of a journal.

    Raises: OSError if an operation fails.
    """

    def append(self, out: BinaryIO, line: bytes) -> None:
        """Write the whole line. When this method returns, the line is durable."""
        while line:
            line = line[out.write(line) :]
        os.fsync(out.fileno())

    def remove(self, file: Path) -> None:
        """Remove the file, if it exists. When this method returns, the removal is durable."""
        file.unlink(missing_ok=True)
        sync_folder(file.parent)


DISK = JournalDisk()

_CHUNK_LINE = TypeAdapter(tuple[RoleName, ChunkIndex, bool, Chunk])
_VOID_LINE = TypeAdapter(tuple[RoleName, ChunkIndex])


class BackupJournal:
    """The journal of one backup. Methods may be called from several threads. `disk` performs the file operations."""

    def __init__(self, file: Path, started: StartedBackup, disk: JournalDisk = DISK) -> None:
        self._disk = disk
        self.file = file
        self.started = started
        self.keys: dict[str, KeyPart] = {}
        self.finished: dict[str, VolumePart] = {}
        self._known: dict[tuple[str, int], KnownChunk] = {}
        self._writing = threading.Lock()
        self._out: BinaryIO | None = None
        self.is_durable = False
        """Whether every entry is on disk. After a failed write, the file is removed and not created again."""

    @classmethod
    def create(
        cls, folder: Path, started: StartedBackup, on_failure: Callable[[OSError], None], disk: JournalDisk = DISK
    ) -> BackupJournal:
        """Create the journal file of a backup.

        If the file cannot be written, it is removed, `on_failure` is called with the error, and the journal is kept
        only in memory.
        """
        journal = cls(folder / started.backup_id, started, disk)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal._out = journal.file.open("xb", buffering=0)
            journal._append("begun", started.model_dump(mode="json"))
            sync_folder(folder)
            journal.is_durable = True
        except OSError as error:
            journal._give_up()
            on_failure(error)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def read(cls, file: Path, disk: JournalDisk = DISK) -> BackupJournal:
        """Return the journal in the file, without opening the file for writing.

        Raises DamagedError if the file is not a journal, or if a line other than the last is damaged.
        """
        lines = file.read_bytes().split(b"\n")[:-1]
        entries = [_parse(line) for line in lines]
        if entries and entries[-1] is None:
            entries.pop()
        hint = "the journal is removed with the snapshots of its backup; the next backup starts from the beginning"
        if not entries:
            raise DamagedError(f"the journal {file} is empty", hint=hint)
        try:
            journal = cls(file, StartedBackup.model_validate(_fields(entries[0], "begun")), disk)
            for entry in entries[1:]:
                journal._take(entry)
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"the journal {file} cannot be read", hint=hint) from error
        if journal.started.backup_id != file.name:
            raise DamagedError(f"the journal {file} belongs to backup {journal.started.backup_id}", hint=hint)
        return journal

    def go_on(self) -> None:
        """Open the journal, after `read`, to append lines. An incomplete last line is removed first.

        Raises: PreflightError if the file cannot be opened or written.
        """
        try:
            good_size = 0
            for line in self.file.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n") or _parse(line[:-1]) is None:
                    break
                good_size += len(line)
            self._out = self.file.open("r+b", buffering=0)
            self._out.truncate(good_size)
            self._out.seek(good_size)
            os.fsync(self._out.fileno())
            self.is_durable = True
        except OSError as error:
            raise PreflightError(
                f"opening the journal {self.file}: {error.strerror}",
                hint="free space in that folder, or start again with `zsnapdb backup --fresh`",
            ) from error

    def _take(self, entry: object) -> None:
        """Apply one line of the file."""
        if not isinstance(entry, dict) or len(entry) != 1:
            raise ValueError("not a line of a journal")
        ((kind, value),) = entry.items()
        if kind == "key":
            part = KeyPart.model_validate(value)
            self.keys[part.id] = part
        elif kind == "chunk":
            role, index, last, chunk = _CHUNK_LINE.validate_python(value)
            self._known[role, index] = KnownChunk(chunk, last)
        elif kind == "void":
            self._known.pop(_VOID_LINE.validate_python(value), None)
        elif kind == "volume":
            volume = VolumePart.model_validate(value)
            self.finished[volume.role] = volume
        # A newer zsnapdb may write other kinds of lines. These add facts, but do not contradict the known kinds of
        # lines.

    def known(self, role: str) -> dict[int, KnownChunk]:
        """Return the stored chunks of the volume, keyed by index."""
        with self._writing:
            return {index: chunk for (name, index), chunk in self._known.items() if name == role}

    def forget(self, role: str, index: int) -> None:
        """Void a chunk's line, if the journal has one. When this method returns, the change is durable.

        Raises PreflightError if the journal can be neither written nor removed. After this error, the chunk must not be
        replaced.
        """
        with self._writing:
            if self._known.pop((role, index), None) is None or self._out is None:
                return
            try:
                self._append("void", [role, index])
            except OSError as error:
                self._give_up()
                if self.file.exists():
                    raise PreflightError(
                        f"writing the journal {self.file}: {error.strerror}", hint="free space in its folder"
                    ) from error

    def add_key(self, part: KeyPart) -> None:
        """Record a data key in its wrapped form. Call this method before you encrypt anything with the key."""
        with self._writing:
            self.keys[part.id] = part
            self._note("key", part.model_dump(mode="json"))

    def stored(self, role: str, index: int, chunk: KnownChunk) -> None:
        with self._writing:
            self._known[role, index] = chunk
            self._note("chunk", [role, index, chunk.last, chunk.chunk])

    def volume_done(self, volume: VolumePart) -> None:
        """Record a volume whose `zfs send` succeeded and whose stream is stored up to its END record."""
        with self._writing:
            self.finished[volume.role] = volume
            self._note("volume", volume.model_dump(mode="json"))

    def completed(self, draft: Manifest) -> Manifest | None:
        """Return the complete manifest, with volumes and data keys; None if a volume is not completely stored."""
        volumes = tuple(self.finished[one.role] for one in self.started.volumes if one.role in self.finished)
        used = {chunk.key_id for volume in volumes for chunk in volume.chunks}
        keys = tuple(part for key_id, part in self.keys.items() if key_id in used)
        is_done = len(volumes) == len(self.started.volumes)
        return draft.model_copy(update={"keys": keys, "volumes": volumes}) if is_done else None

    def close(self) -> None:
        """Stop writing to the journal file. The next run can use the file."""
        with self._writing:
            if self._out is not None:
                self._out.close()
            self._out = None

    def remove(self) -> None:
        """Remove the journal, because its backup is stored or abandoned."""
        with self._writing:
            self._give_up()

    def _note(self, kind: str, value: object) -> None:
        """Append a line.

        If the file cannot be written, continue without a journal file, so that the backup does not fail.
        """
        if self._out is not None:
            try:
                self._append(kind, value)
            except OSError:
                self._give_up()

    def _append(self, kind: str, value: object) -> None:
        assert self._out is not None
        payload = json.dumps({kind: value}, separators=(",", ":")).encode()
        self._disk.append(self._out, b"%08x %s\n" % (zlib.crc32(payload), payload))

    def _give_up(self) -> None:
        self.is_durable = False
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()
            self._out = None
        with contextlib.suppress(OSError):
            self._disk.remove(self.file)


def _parse(line: bytes) -> object:
    """Return the document in the line, or None if the line's checksum is wrong."""
    checksum, _, payload = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(payload):
            return None
        return parsed(payload)
    except ValueError:
        return None


def _fields(entry: object, kind: str) -> object:
    if not isinstance(entry, dict):
        raise TypeError("not a line of a journal")
    return entry[kind]


def journals(folder: Path) -> list[Path]:
    """Return the journals in the folder, oldest backup first. A file whose name is not a backup id is ignored.

    Raises: PreflightError if the folder cannot be read.
    """
    try:
        return sorted(file for file in folder.iterdir() if is_backup_id(file.name) and file.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PreflightError(
            f"reading the journals of interrupted backups in {folder}: {error.strerror}", hint="run zsnapdb as root"
        ) from error

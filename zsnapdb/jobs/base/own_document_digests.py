"""Digests of the documents that this host stored or adopted, in files below the folder `Host.records`.

`documents.json` contains the digests of an instance's small documents in all repositories. One file is enough, because
each document contains the id of its repository. The backup and binlog records in the same folder contain the digests of
manifests and of rotated binlogs' descriptions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.base.patterns import first_problem
from zsnapdb.jobs.base.events import SILENT, Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.repository import document_digests
from zsnapdb.planning.repository.absent_repository import expected_backups
from zsnapdb.planning.repository.document_digests import OwnDocuments, RecordedDigests
from zsnapdb.planning.repository.host_backup_record import ArchivedBinlogs, BackupRecord, RecordPart
from zsnapdb.repository import layout
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.stored_document import digest_of

if TYPE_CHECKING:
    from zsnapdb.repository.binlog_archive_contents import Archive

P = TypeVar("P", bound=RecordPart)
DOCUMENTS = "documents.json"
_BACKUPS, _BINLOGS = "backups.json", "binlogs.json"
_LOCK_SECONDS = 30.0


@dataclass
class _Read:
    """The parsed content of the files. The field `state` shows whether `places` have changed since the files were read.

    The field `places` lists the folder of the records, the folders below it, and the files that may be in them.

    The field `binlogs` maps the folder of each record to its binlogs. The field `knows_any` is set if this host stored
    or adopted backups. Digests are stored as bytes. Bytes need half as much memory as text, and no parsed file has to
    stay in memory.
    """

    places: Sequence[Path]
    state: Sequence[tuple[int, int, int]]
    digests: set[bytes] = field(default_factory=set)
    binlogs: dict[Path, RecordedDigests] = field(default_factory=dict)
    knows_any: bool = False


@dataclass(eq=False)
class OwnDocumentFiles:
    """The digests of an instance's documents.

    The folder contains the records of the instance, and `address` is the address of the repository. Each file is read
    only when it is needed.
    """

    folder: Path
    events: Events = SILENT
    address: str = ""
    _read: _Read | None = None
    _reading: Lock = field(default_factory=Lock)

    def knows(self, digest: str) -> bool:
        """Return whether this host stored or adopted a document with this SHA-256 digest."""
        packed = bytes.fromhex(digest)
        return packed in self._refreshed(lambda read: packed in read.digests).digests

    def _refreshed(self, is_enough: Callable[[_Read], bool]) -> _Read:
        """Return the digests. Files that changed are read again, unless the known digests are enough."""
        with self._reading:
            if self._read is None or not (is_enough(self._read) or self._read.state == _state(self._read.places)):
                self._read = self._load()
            return self._read

    @property
    def has_begun(self) -> bool:
        return os.path.exists(self.folder / DOCUMENTS)

    @property
    def tells_apart(self) -> bool:
        """Whether the records of this host can distinguish its own documents from foreign ones.

        A host that has neither stored nor adopted a backup cannot distinguish its own documents from foreign ones.
        After an upgrade from a version without records, it cannot do so until the first backup, archive run or drill.
        """
        return self.has_begun and self._refreshed(lambda read: read.knows_any).knows_any

    def binlogs_in(self, folder: Path) -> RecordedDigests:
        """Return the archived binlogs of the record in `folder`; none if there is no readable record."""
        return self._refreshed(lambda _: False).binlogs.get(folder, RecordedDigests())

    def note(self, place: str, digest: str) -> None:
        """Record a document before it is stored. Warn if the record cannot be written."""
        if not self.has_begun and self._refreshed(lambda read: read.knows_any).knows_any:
            # An earlier version may have stored more documents, so `inherit_documents` creates the record with all
            # documents.
            return
        with self._warning():
            self.change(lambda own: own.with_digests(place, (digest,)))
        if self._read is not None:
            self._read.digests.add(bytes.fromhex(digest))

    def forget(self, place: str) -> None:
        """Remove a deleted document from the record. Warn if the record cannot be written."""
        if self.has_begun:
            with self._warning():
                self.change(lambda own: own.without(place))

    def stored_elsewhere(self, repository_id: str) -> Mapping[str, Sequence[str]]:
        """Return the ids of the backups that this host stored at this address in other repositories, by repository id.

        The ids of each repository are in order, oldest first. The result is empty if this host stored any backup in the
        repository `repository_id`.
        """
        records = (_parsed(file, BackupRecord) for file in sorted(self.folder.rglob(_BACKUPS)))
        stored = {
            record.repository_id: tuple(one.backup_id for one in record.stored)
            for record in records
            if record is not None and record.url == self.address and record.stored
        }
        return {} if repository_id in stored else stored

    @property
    def _damage(self) -> Path:
        """The path of the file that records the damage that was found in the repository.

        The name comes from the address, because a copy of the repository has the same id, but not the same damage.
        """
        return self.folder / f"damage-{hashlib.sha256(self.address.encode()).hexdigest()[:16]}.json"

    def note_damage(self, document: bytes | None) -> None:
        """Record the damage that was found in the repository.

        If `document` is None, no damage is known, and the record is removed.

        Warn if the record cannot be written.
        """
        with self._warning():
            if document is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                files.replace(self._damage, document)
            elif self._damage.exists():
                self._damage.unlink()

    def known_damage(self) -> bytes | None:
        """Return the recorded damage; None if no damage is recorded, or if this account may not read the record."""
        with contextlib.suppress(OSError):
            return self._damage.read_bytes()
        return None

    def begin(self, places: Mapping[str, Sequence[str]]) -> None:
        """Create the record with these documents, unless a record exists. Warn if the record cannot be written."""
        with self._warning():
            self.change(lambda own: own if self.has_begun else own.with_places(places))

    def add(self, places: Mapping[str, Sequence[str]]) -> None:
        """Add adopted documents to the record. Raises OSError if the record cannot be written."""
        self.change(lambda own: own.with_places(places))

    def change(self, change: Callable[[OwnDocuments], OwnDocuments]) -> None:
        """Replace the record with the result of `change`. An unreadable record is replaced by a new one.

        Raises OSError if the record cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with files.locked_file(self.folder / ".documents.lock", _LOCK_SECONDS):
            file = self.folder / DOCUMENTS
            before = _parsed(file, OwnDocuments)
            after = change(before or OwnDocuments())
            if after != before:
                files.replace(file, after.model_dump_json().encode(), 0o600)

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else first_problem(error)
            self.events.warn(
                f"this host's record of its documents, below {self.folder}, cannot be written ({why}): they may count"
                " as foreign"
            )

    def _load(self) -> _Read:
        folders = [self.folder, *sorted(self.folder.rglob("*/"))]
        places = [*folders, *(folder / name for folder in folders for name in (DOCUMENTS, _BACKUPS, _BINLOGS))]
        read = _Read(places, _state(places))
        for file in places:
            if file.name == _BACKUPS:
                backups = _parsed(file, BackupRecord)
                stored = backups.stored if backups is not None else ()
                begun = [one for one in backups.removed if not one.acknowledged] if backups is not None else []
                manifests = (*(one.manifest for one in stored), *(one.manifest for one in begun))
                read.digests |= {bytes.fromhex(digest) for digest in manifests if digest is not None}
                read.knows_any = read.knows_any or bool(stored)
            elif file.name == _BINLOGS:
                binlogs = _parsed(file, ArchivedBinlogs)
                if binlogs is not None:
                    recorded = read.binlogs[file.parent] = RecordedDigests(
                        frozenset(bytes.fromhex(one.digest) for one in binlogs.files),
                        frozenset((*binlogs.incarnations, *(one.incarnation for one in binlogs.files))),
                    )
                    read.digests |= recorded.digests
                    read.digests |= {bytes.fromhex(one.line) for one in binlogs.files if one.line is not None}
            elif file == self.folder / DOCUMENTS:
                own = _parsed(file, OwnDocuments)
                read.digests |= {bytes.fromhex(one) for many in (own.digests.values() if own else ()) for one in many}
        return read


def _state(places: Sequence[Path]) -> list[tuple[int, int, int]]:
    """Return the modification time, inode and number of links of each place; zeros if the place does not exist.

    Two changes in one tick of the clock give the same time. A replaced file has another inode, and a new folder another
    number of links of its parent.
    """
    state = []
    for place in places:
        try:
            seen = place.stat()
        except OSError:
            state.append((0, 0, 0))
        else:
            state.append((seen.st_mtime_ns, seen.st_ino, seen.st_nlink))
    return state


def _parsed(file: Path, kind: type[P]) -> P | None:
    try:
        return kind.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def expected_in(records: Path, url: str, instances: Sequence[str]) -> tuple[BackupRecord, ...]:
    """Return the records of backups that a new repository of these instances at the address would lack.

    `records` is the folder with the records of all instances.
    """
    own, copies = (
        [record for file in sorted(records.glob(places)) if (record := _parsed(file, BackupRecord)) is not None]
        for places in (f"*/*/{_BACKUPS}", f"*/*/*/{_BACKUPS}")
    )
    return expected_backups(own, url, instances, copies)


DocumentPlaces = dict[str, list[str]]


def files_of(instance: Instance) -> OwnDocumentFiles:
    """Return the files with the digests of the instance's documents that this host stored or adopted."""
    return OwnDocumentFiles(instance.host.records / instance.name, instance.events, instance.repository.url)


def documents_of(repository: Repository, instance: str, archive: Archive) -> DocumentPlaces:
    """Return the digests of the verified small documents in the repository.

    The keys of the result are the keys of this host's record.
    """
    places: DocumentPlaces = {}
    for one in archive.incarnations:
        kinds: tuple[tuple[str, Key], ...] = (
            (document_digests.incarnation(one.id), layout.incarnation(instance, one.id)),
            (document_digests.complete(one.id), layout.complete(instance, one.id)),
        )
        for place, key in kinds:
            if key in archive.lines:
                places[place] = [archive.lines[key]]
    for file in archive.files:
        segments = (layout.segment(instance, file.incarnation, file.name, s.start, s.end) for s in file.segments)
        lines = [archive.lines[segment] for segment in segments]
        places |= {document_digests.segments(file.incarnation, file.name): lines} if lines else {}
    small: dict[str, list[Key]] = {
        document_digests.DRILLS: [listed.key for listed in repository.list(layout.drills(instance))],
        document_digests.CHECKS: [listed.key for listed in repository.list(layout.verifications(instance))],
        document_digests.MARKS: [listed.key for listed in repository.list(layout.unfinished(instance))],
        document_digests.PINS: [listed.key for listed in repository.list(layout.pins(instance))],
    }
    for place, keys in small.items():
        for one_key in keys:
            with contextlib.suppress(DamagedError, NotFound):
                places.setdefault(place, []).append(digest_of(repository.verified(one_key)))
    return places

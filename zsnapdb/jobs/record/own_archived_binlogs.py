"""The record of the binlogs that this host archived. It shows which archived binlogs belong to this host."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.own_document_digests import documents_of, files_of
from zsnapdb.jobs.record.host_backup_record import record_of, unwritten_warned
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.planning.repository.host_backup_record import ArchivedPosition, RecordedBinlog
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive_contents import Archive, active_file, grown
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.keyring import UntrustedRecord
from zsnapdb.repository.objects import ListedObject
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.stored_document import digest_of


def note_archived(instance: Instance, repository: Repository, position: ArchivedPosition) -> None:
    """Record the newest archived position. Warn if the record cannot be written."""
    record = HostRecord.of(instance, repository)
    if record is not None:
        with unwritten_warned(instance):
            record.set_archived(position)


def note_archived_files(
    instance: Instance,
    repository: Repository,
    files: Sequence[ArchivedFile],
    incarnations: Sequence[str] = (),
    lines: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Record the binlogs that this host archived, copied or adopted. Warn if the record cannot be written.

    `lines` maps the key of each description that was read to the SHA-256 of its stored line. For a description that was
    not read, this version of zsnapdb uses the line that it would write.
    """
    recorded = [
        RecordedBinlog(
            incarnation=file.incarnation,
            file=file.name,
            digest=file.digest,
            line=lines.get(layout.rotated_binlog(file.instance, file.incarnation, file.name), digest_of(file.encode())),
        )
        for file in files
        if file.is_rotated
    ]
    with unwritten_warned(instance):
        record_of(instance, repository).change_binlogs(lambda known: known.with_files(recorded, incarnations))


def inherit(instance: Instance, repository: Repository, archive: Archive) -> None:
    """Record the binlogs that an earlier version archived from this host, and the small documents in the repository.

    This is done once, because the earlier version recorded only the newest position that it had archived. Warn if the
    record cannot be written.
    """
    record = record_of(instance, repository)
    with contextlib.suppress(DamagedError):
        if record.binlogs() is None and record.archived() is not None:
            incarnations = [incarnation.id for incarnation in archive.incarnations]
            note_archived_files(instance, repository, archive.files, incarnations, archive.lines)
    files = files_of(instance)
    if not files.has_begun:
        files.begin(documents_of(repository, instance.name, archive))


def known_binlogs(
    instance: Instance, repository: Repository, files: Sequence[ArchivedFile]
) -> frozenset[tuple[str, str]]:
    """Return the incarnations and names of the archived files that this host knows.

    If trusted signers are configured on this host, the host knows all files. Otherwise the host knows the rotated files
    whose description it recorded, and the active files of the histories that it began.
    """
    if repository.keyring.trusted:
        return frozenset((file.incarnation, file.name) for file in files)
    own = HostRecord.of(replace(instance, is_own_repository=True), repository)
    copy = None if instance.is_own_repository else HostRecord.of_copy(instance, repository)
    documents = repository.keyring.own or files_of(instance)
    # The digest of a description covers its incarnation and its name.
    recorded = [documents.binlogs_in(record.folder) for record in (own, copy) if record is not None]
    return frozenset(
        (file.incarnation, file.name)
        for file in files
        if any(
            bytes.fromhex(file.digest) in one.digests if file.is_rotated else file.incarnation in one.incarnations
            for one in recorded
        )
    )


def archived_last(instance: Instance, repository: Repository) -> str | None:
    """Return the incarnation of the binlog that this host archived last; None if the record does not contain it."""
    record = HostRecord.of(instance, repository)
    with contextlib.suppress(DamagedError):
        position = record.archived() if record is not None else None
        return position.incarnation if position is not None else None
    return None


def archived_here(instance: Instance, repository: Repository) -> frozenset[tuple[str, str]]:
    """Return the incarnations and names of the binlogs that this host archived; empty if the record cannot be read."""
    with contextlib.suppress(DamagedError):
        known = record_of(instance, repository).binlogs()
        files = known.files if known is not None else ()
        return frozenset((one.incarnation, one.file) for one in files if not one.removing)
    return frozenset()


def begun_here(instance: Instance, repository: Repository) -> frozenset[str]:
    """Return the incarnations that this host began or adopted; empty if it has no readable record of its repository."""
    record = HostRecord.of(instance, repository)
    with contextlib.suppress(DamagedError):
        known = record.binlogs() if record is not None else None
        return frozenset(known.incarnations) if known is not None else frozenset()
    return frozenset()


def recorded(instance: Instance, repository: Repository, files: Sequence[ArchivedFile]) -> frozenset[tuple[str, str]]:
    """Return the incarnations and names of the rotated binlogs whose descriptions are in this host's record.

    The host records a description before it stores it. Signatures do not matter: a copy of this host has the same
    signing key.
    """
    with contextlib.suppress(DamagedError):
        known = record_of(instance, repository).binlogs() if files else None
        digests = {one.digest for one in known.files} if known is not None else frozenset[str]()
        return frozenset((file.incarnation, file.name) for file in files if file.is_rotated and file.digest in digests)
    return frozenset()


def note_binlog_removed(instance: Instance, repository: Repository, incarnation: str, file: str) -> None:
    """Record that a prune on this host is about to remove an archived binlog. Warn if the record cannot be written."""
    record = HostRecord.of(instance, repository)
    if record is not None:
        with unwritten_warned(instance):
            record.archived_was_removed(incarnation, file)
            record.change_binlogs(lambda known: known.with_removing(incarnation, file))


def note_binlog_gone(instance: Instance, repository: Repository, incarnation: str, file: str) -> None:
    """Record that all objects of an archived binlog have been removed. Warn if the record cannot be written."""
    with unwritten_warned(instance):
        record_of(instance, repository).change_binlogs(lambda known: known.without(incarnation, file))


def known_part(instance: Instance, repository: Repository, archive: Archive) -> tuple[Archive, tuple[str, ...]]:
    """Return the part of the archive that this host knows, and the names of the foreign binlogs in the archive.

    If signatures prove every description, only the errors of foreign histories are left out. The whole archive is
    returned if this host cannot distinguish its own binlogs from foreign ones.
    """
    own = repository.keyring.own
    if repository.keyring.trusted:
        return _without_foreign_histories(instance, repository, archive)
    if own is None or not own.tells_apart:
        return archive, ()

    def is_own(key: str) -> bool:
        return own.knows(archive.lines.get(key, ""))

    histories = {one.id: one for one in archive.incarnations if is_own(layout.incarnation(instance.name, one.id))}
    known = known_binlogs(instance, repository, archive.files)
    files: list[ArchivedFile] = []
    foreign = list(archive.displaced)
    for file in archive.files:
        part: ArchivedFile | None = file if (file.incarnation, file.name) in known else None
        if part is not None and not file.is_rotated:
            keys = [layout.segment(instance.name, file.incarnation, file.name, s.start, s.end) for s in file.segments]
            segments = [one for one, key in zip(file.segments, keys, strict=True) if is_own(key)]
            history = histories.get(file.incarnation)
            if segments != list(file.segments[: len(segments)]) or history is None:
                part = None
            elif len(segments) < len(file.segments):
                foreign.append(file.name)
                part = active_file(instance.name, history, file.name, segments)
        if part is not None and part.incarnation in histories:
            files.append(part)
        elif file.name not in foreign:
            foreign.append(file.name)
    complete = tuple(one for one in archive.state.complete if is_own(layout.complete(instance.name, one.incarnation)))
    state = replace(archive.state, complete=complete, grown=grown(list(histories.values()), files))
    believed = replace(archive, incarnations=tuple(histories.values()), files=tuple(files), state=state, displaced=())
    return believed, tuple(foreign)


def _without_foreign_histories(
    instance: Instance, repository: Repository, archive: Archive
) -> tuple[Archive, tuple[str, ...]]:
    """Return the archive without the errors of histories that an untrusted writer began, and the keys of these.

    The keys are those of the descriptions. An untrusted description stays an error if this host began or adopted the
    history, or if a trusted writer stored a binlog of it. If this host has recorded no history, every error stays.
    """
    known = begun_here(replace(instance, is_own_repository=True), repository)
    # The place of a damaged description of a history has no binlog name. The last errors have no place.
    foreign = {
        error: place
        for error, place in zip(archive.damaged, archive.state.unreadable, strict=False)
        if isinstance(error, UntrustedRecord)
        and place.name is None
        and known
        and place.incarnation not in known
        and not _has_trusted_binlog(repository, instance.name, place.incarnation)
    }
    damaged = tuple(error for error in archive.damaged if error not in foreign)
    unreadable = tuple(place for place in archive.state.unreadable if place not in foreign.values())
    keys = tuple(layout.incarnation(instance.name, place.incarnation) for place in foreign.values())
    return replace(archive, damaged=damaged, state=replace(archive.state, unreadable=unreadable)), keys


def _has_trusted_binlog(repository: Repository, instance: str, incarnation: str) -> bool:
    segments = repository.list(layout.segments(instance, incarnation))
    rotated = repository.list(layout.rotated_binlogs(instance, incarnation))
    for listed in itertools.chain[ListedObject[Any]](segments, rotated):
        with contextlib.suppress(DamagedError, NotFound):
            repository.verified(listed.key)
            return True
    return False

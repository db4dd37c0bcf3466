"""Removes from a binlog archive: expired binlogs, objects that a binlog no longer needs, and remains of killed runs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import TypeAlias

from zsnapdb.base.errors import DamagedError, NotThere
from zsnapdb.planning.repository import own_documents
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, CompleteRecord, Segment
from zsnapdb.repository.layout import BinlogChunkKey, BinlogKey, SegmentBodyKey, SegmentKey
from zsnapdb.repository.objects import ListedObject

ListedPart: TypeAlias = ListedObject[BinlogChunkKey] | ListedObject[SegmentBodyKey] | ListedObject[SegmentKey]
"""An object that holds a part of a binlog."""


def remove(archive: BinlogArchive, file: ArchivedFile) -> int:
    """Remove a binlog from the archive. Return the number of removed objects.

    If this is interrupted at any moment, either the complete file is left, or only garbage below its name. A killed run
    may have left segments of a rotated file: they are removed before the file's description, because without it they
    would count as the file again. Of an active file, the segment with the first byte is removed first. With the file
    goes the record that its incarnation is complete there.
    """
    repository, place = archive.repository, (archive.instance, file.incarnation, file.name)
    _remove_complete_record(archive, file)
    descriptions = sorted(repository.sizes(layout.segments(*place)))
    for key in descriptions:
        repository.delete(key)
    if file.is_rotated:
        repository.delete(archive.file_key(file))
    bodies: list[BinlogKey] = [
        *repository.sizes(layout.binlog_chunks(*place)),
        *repository.sizes(layout.segment_bodies(*place)),
    ]
    repository.delete_many(bodies)
    repository.keyring.forget(own_documents.segments(file.incarnation, file.name))
    return len(descriptions) + int(file.is_rotated) + len(bodies)


def _remove_complete_record(archive: BinlogArchive, file: ArchivedFile) -> None:
    key = layout.complete(archive.instance, file.incarnation)
    with contextlib.suppress(NotThere, DamagedError):
        line = archive.repository.keyring.verified(archive.repository.get(key), key)
        if CompleteRecord.decode(line, key).name == file.name:
            archive.repository.delete(key)


def remove_segments(archive: BinlogArchive, incarnation: str, segments: Sequence[Segment]) -> None:
    """Remove segments that a longer segment replaced, descriptions first."""
    for segment in segments:
        archive.repository.delete(archive.segment_key(incarnation, segment))
    for segment in segments:
        archive.repository.delete(archive.segment_body_key(incarnation, segment))


def remove_unneeded(archive: BinlogArchive, file: ArchivedFile) -> int:
    """Remove the objects that a rotated file no longer needs. Return their number.

    These are its segments, descriptions first, and the chunks of other attempts.
    """
    repository, place = archive.repository, (archive.instance, file.incarnation, file.name)
    keys: list[BinlogKey] = [
        *repository.sizes(layout.segments(*place)),
        *repository.sizes(layout.segment_bodies(*place)),
        *(key for key in repository.sizes(layout.binlog_chunks(*place)) if key.attempt != file.attempt),
    ]
    for key in keys:
        repository.delete(key)
    return len(keys)


def undescribed(archive: BinlogArchive) -> dict[tuple[str, str], list[ListedPart]]:
    """Return the objects below names that no description makes a file, by incarnation and name.

    A killed run left them, or a running archiver has not described them yet. A name is a file's name if there is a
    description of the rotated file, readable or not, or of a segment with its first byte. Only described incarnations
    are searched.
    """
    described = archive.repository.list(layout.incarnations(archive.instance))
    return {
        (incarnation, name): objects
        for incarnation in [listed.key.incarnation for listed in described]
        for name, objects in _undescribed(archive, incarnation).items()
    }


def _undescribed(archive: BinlogArchive, incarnation: str) -> dict[str, list[ListedPart]]:
    repository, place = archive.repository, (archive.instance, incarnation)
    # Bodies are listed before descriptions: a body that is described in between does not look like garbage.
    parts: list[ListedPart] = [
        *repository.list(layout.binlog_chunks(*place)),
        *repository.list(layout.segment_bodies(*place)),
    ]
    segments = list(repository.list(layout.segments(*place)))
    described = {listed.key.name for listed in segments if listed.key.span[0] == 0}
    described |= {listed.key.name for listed in repository.list(layout.rotated_binlogs(*place))}
    by_name: dict[str, list[ListedPart]] = {}
    for part in (*parts, *segments):
        if part.key.name not in described:
            by_name.setdefault(part.key.name, []).append(part)
    return by_name


def sweep(archive: BinlogArchive, incarnation: str, name: str, keys: Collection[str]) -> int:
    """Remove the objects that `undescribed` returned for a name. Return the number of removed objects.

    Nothing is removed if the name has a description now, or if there is any object that is not in `keys`. So an
    archiver that starts with the file again is noticed by the objects it stores: it gives each body a new name, and it
    never overwrites a description.
    """
    now: list[BinlogKey] = sorted(part.key for part in _undescribed(archive, incarnation).get(name, []))
    if not now or not set(now) <= set(keys):
        return 0
    # The description is read itself, because a listing may lag.
    if archive.repository.exists(layout.rotated_binlog(archive.instance, incarnation, name)):
        return 0
    archive.repository.delete_many(now)
    return len(now)

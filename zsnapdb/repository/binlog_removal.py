"""Removing from a binlog archive: whole binlogs, what they no longer need, and what killed runs left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Segment
from zsnapdb.repository.layout import BinlogChunkKey, BinlogKey, SegmentBodyKey, SegmentKey
from zsnapdb.repository.objects import ListedObject

ListedPart: TypeAlias = ListedObject[BinlogChunkKey] | ListedObject[SegmentBodyKey] | ListedObject[SegmentKey]
"""An object that holds a part of a binlog."""


def remove(archive: BinlogArchive, file: ArchivedFile) -> int:
    """Remove a binlog from the archive; return how many objects that were.

    Ended at any moment, what is left is the whole file, or garbage below its name. Segments of a rotated file, where a
    killed run left some, go before its description, or they would stand for the file again. Of an active one the
    segment with the first byte goes first.
    """
    repository, place = archive.repository, (archive.instance, file.incarnation, file.name)
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
    return len(descriptions) + int(file.is_rotated) + len(bodies)


def remove_segments(archive: BinlogArchive, incarnation: str, segments: Sequence[Segment]) -> None:
    """Remove segments that a longer one has taken the place of, descriptions first."""
    for segment in segments:
        archive.repository.delete(archive.segment_key(incarnation, segment))
    for segment in segments:
        archive.repository.delete(archive.segment_body_key(incarnation, segment))


def remove_unneeded(archive: BinlogArchive, file: ArchivedFile) -> int:
    """Remove what a rotated file no longer needs: its segments, descriptions first, and chunks of other attempts.

    Return how many objects.
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
    """Return what lies below names of no file, by incarnation and name: a killed run's, or one's that is under way.

    A file is there if it is described as rotated, readable or not, or if a segment with its first byte is. Only
    incarnations that are described are looked at.
    """
    described = archive.repository.list(layout.incarnations(archive.instance))
    return {
        (incarnation, name): objects
        for incarnation in [listed.key.incarnation for listed in described]
        for name, objects in _undescribed(archive, incarnation).items()
    }


def _undescribed(archive: BinlogArchive, incarnation: str) -> dict[str, list[ListedPart]]:
    repository, place = archive.repository, (archive.instance, incarnation)
    # Bodies are listed before descriptions: what is described in between is not taken for garbage.
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
    """Remove the objects that `undescribed` returned for a name; return how many.

    None go if a file is there after all, or anything else has come to be there. An archiver that takes the file up
    again is seen by what it stores: its bodies have names of their own, and it never writes over a description.
    """
    now: list[BinlogKey] = sorted(part.key for part in _undescribed(archive, incarnation).get(name, []))
    if not now or not set(now) <= set(keys):
        return 0
    # Asked for itself, as a listing may lag.
    if archive.repository.exists(layout.rotated_binlog(archive.instance, incarnation, name)):
        return 0
    archive.repository.delete_many(now)
    return len(now)

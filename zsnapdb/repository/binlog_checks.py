"""Checks archived binlogs: whether the objects of a file are stored with their sizes, and whether they can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.errors import DamagedError
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.layout import BinlogKey


def name_of(file: ArchivedFile) -> str:
    """Return the name of a file in findings."""
    return f"{file.incarnation}/{file.name}"


def stored_sizes(archive: BinlogArchive, files: Sequence[ArchivedFile]) -> dict[BinlogKey, int]:
    """Return the sizes of all stored bodies of the files' incarnations, by key."""
    sizes: dict[BinlogKey, int] = {}
    for incarnation in sorted({file.incarnation for file in files}):
        chunks = archive.repository.sizes(layout.binlog_chunks(archive.instance, incarnation))
        segments = archive.repository.sizes(layout.segment_bodies(archive.instance, incarnation))
        sizes.update((*chunks.items(), *segments.items()))
    return sizes


def listed_damage(archive: BinlogArchive, file: ArchivedFile, sizes: Mapping[BinlogKey, int]) -> tuple[str, ...]:
    """Return which bodies are missing or have a wrong size, by the result of `stored_sizes`."""
    expected: list[tuple[BinlogKey, int]] = [
        (archive.chunk_key(file.incarnation, file.name, file.attempt, index), chunk.stored_size)
        for index, chunk in enumerate(file.chunks, 1)
    ]
    expected += [
        (archive.segment_body_key(file.incarnation, segment), segment.chunk.stored_size) for segment in file.segments
    ]
    damage = []
    for key, size in expected:
        if key not in sizes:
            damage.append(f"{key} is missing")
        elif sizes[key] != size:
            damage.append(f"{key} has {sizes[key]} bytes, {size} were written")
    return tuple(damage)


def read_damage(archive: BinlogArchive, file: ArchivedFile) -> tuple[str, ...]:
    """Read the whole file, one chunk in memory. Return the first thing that is wrong, () if nothing is."""
    try:
        for _ in archive.plain(file):
            pass
    except DamagedError as error:
        return (error.message,)
    return ()

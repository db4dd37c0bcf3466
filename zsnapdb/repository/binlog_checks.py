"""Checks archived binlogs: whether the objects of a file are stored with their sizes, and whether they can be read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from zsnapdb.base.errors import NotThere
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


def stored_damage(archive: BinlogArchive, file: ArchivedFile) -> tuple[str, ...]:
    """Read the stored bytes of a rotated file, without any key. Return which are not those that were written."""
    damage = []
    for index, chunk in enumerate(file.chunks, 1):
        key = archive.chunk_key(file.incarnation, file.name, file.attempt, index)
        try:
            body = archive.repository.get(key)
        except NotThere:
            damage.append(f"{key} is missing")
            continue
        if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
            damage.append(f"{key}: the stored bytes do not have the SHA-256 in the description")
    return tuple(damage)

"""Verifies archived binlogs: their objects must exist, and must be as they were written.

Findings are recorded like those of a backup, under `<incarnation>/<file>`. Findings of an active binlog are not
recorded, as its objects change until the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from zsnapdb.errors import DamagedError
from zsnapdb.jobs.events import Events
from zsnapdb.model import Progress
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.layout import BinlogKey
from zsnapdb.repository.verifications import Depth


def name_of(file: ArchivedFile) -> str:
    """Return the name of a file in findings."""
    return f"{file.incarnation}/{file.name}"


def look(
    archive: BinlogArchive, files: Sequence[ArchivedFile], depth: Depth, concurrency: int, events: Events
) -> Iterator[tuple[ArchivedFile, tuple[str, ...] | None, int]]:
    """Yield each file, its damage (None if it was changed or removed in the meantime) and the bytes that were read.

    Reads `concurrency` files at once, with one chunk of each in memory.
    """
    sizes = _sizes(archive, files)
    total, done = sum(file.stored_size for file in files), 0

    def check(file: ArchivedFile) -> tuple[str, ...]:
        damage = _listed(archive, file, sizes)
        if depth is Depth.READ and not damage:
            try:
                for _ in archive.plain(file):
                    pass
            except DamagedError as error:
                return (error.message,)
        return damage

    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="verify")
    try:
        for file, damage in zip(files, pool.map(check, files), strict=True):
            done += file.stored_size
            if depth is Depth.READ:
                events.progress(Progress("verify binlogs", done, total))
            gone = bool(damage) and file not in archive.load().files
            yield file, None if gone else damage, file.stored_size if depth is Depth.READ else 0
    finally:
        # An interrupt does not wait until the other files are read.
        pool.shutdown(cancel_futures=True)


def _sizes(archive: BinlogArchive, files: Sequence[ArchivedFile]) -> dict[BinlogKey, int]:
    """Return the sizes of all stored bodies of the files' incarnations, by key."""
    sizes: dict[BinlogKey, int] = {}
    for incarnation in sorted({file.incarnation for file in files}):
        chunks = archive.repository.sizes(layout.binlog_chunks(archive.instance, incarnation))
        segments = archive.repository.sizes(layout.segment_bodies(archive.instance, incarnation))
        sizes.update((*chunks.items(), *segments.items()))
    return sizes


def _listed(archive: BinlogArchive, file: ArchivedFile, sizes: dict[BinlogKey, int]) -> tuple[str, ...]:
    """Return which bodies are missing or have a wrong size."""
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


def unreadable(archive: Archive) -> dict[str, tuple[str, ...]]:
    """Return the errors of the unreadable descriptions, each under a name of its own."""
    return {f"description {number}": (error.message,) for number, error in enumerate(archive.damaged, 1)}

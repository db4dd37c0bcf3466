"""The archived binlogs' part of a verification: are their objects there, and are they what was written?

Findings are remembered as a backup's are, under `<incarnation>/<file>`; nothing is remembered of an active file, as it
is another one the next time.
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
    """Return what a file is called in findings."""
    return f"{file.incarnation}/{file.name}"


def look(
    archive: BinlogArchive, files: Sequence[ArchivedFile], depth: Depth, concurrency: int, events: Events
) -> Iterator[tuple[ArchivedFile, tuple[str, ...] | None, int]]:
    """Yield of each file what is wrong with it (None: it was changed or removed meanwhile), and the bytes that were read.

    `concurrency` files at once; of each, one chunk is in memory.
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
        # Who interrupts does not wait for all the rest to be read.
        pool.shutdown(cancel_futures=True)


def _sizes(archive: BinlogArchive, files: Sequence[ArchivedFile]) -> dict[BinlogKey, int]:
    """Return key and size of every body of the files' incarnations."""
    sizes: dict[BinlogKey, int] = {}
    for incarnation in sorted({file.incarnation for file in files}):
        chunks = archive.repository.sizes(layout.binlog_chunks(archive.instance, incarnation))
        segments = archive.repository.sizes(layout.segment_bodies(archive.instance, incarnation))
        sizes.update((*chunks.items(), *segments.items()))
    return sizes


def _listed(archive: BinlogArchive, file: ArchivedFile, sizes: dict[BinlogKey, int]) -> tuple[str, ...]:
    """Return which bodies are missing, or have another size than was written."""
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


def unreadable(found: Archive) -> dict[str, tuple[str, ...]]:
    """Return the descriptions that cannot be read, each under a name of its own."""
    return {f"description {number}": (error.message,) for number, error in enumerate(found.damaged, 1)}

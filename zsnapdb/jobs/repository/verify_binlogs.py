"""Verifies archived binlogs: their objects must exist, and must be as they were written.

Findings are recorded like those of a backup, under `<incarnation>/<file>`. Findings of an active binlog are not
recorded, as its objects change until the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from zsnapdb.base.model import Progress
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.host.archived_binlogs import archived_damage
from zsnapdb.repository.binlog_archive import BinlogArchive, listed_damage, stored_sizes
from zsnapdb.repository.binlog_archive import name_of as name_of
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.verifications import Depth


def look(
    archive: BinlogArchive, files: Sequence[ArchivedFile], depth: Depth, concurrency: int, events: Events
) -> Iterator[tuple[ArchivedFile, tuple[str, ...] | None, int]]:
    """Yield each file, its damage (None if it was changed or removed in the meantime) and the bytes that were read.

    Reads `concurrency` files at once, with one chunk of each in memory.
    """
    sizes = stored_sizes(archive, files)
    total, done = sum(file.stored_size for file in files), 0

    def check(file: ArchivedFile) -> tuple[str, ...]:
        damage = listed_damage(archive, file, sizes)
        return archived_damage(archive, file) if depth is Depth.READ and not damage else damage

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


def unreadable(archive: Archive) -> dict[str, tuple[str, ...]]:
    """Return the errors of the unreadable descriptions, each under a name of its own."""
    return {f"description {number}": (error.message,) for number, error in enumerate(archive.damaged, 1)}

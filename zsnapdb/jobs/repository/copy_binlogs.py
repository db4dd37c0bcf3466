"""Copies archived binlogs byte for byte, proved by their stored hashes, descriptions last.

Binlogs that cannot roll any backup in the second repository forward are left out, as a prune would remove them there.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from zsnapdb.base.errors import ConsistencyError, DamagedError, NotThere
from zsnapdb.jobs.repository import prune_binlogs
from zsnapdb.repository import binlog_removal, layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.layout import BinlogKey, Key
from zsnapdb.stream.chunks import Chunk


@dataclass
class CopiedBinlogs:
    """What was done: names of the copied files, the failed files with reasons, and bytes written.

    A copied file is now complete in the second repository, or reaches further there.
    """

    copied: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    size: int = 0


def missing(
    here: BinlogArchive, there: BinlogArchive | None, kept: Collection[str], backups: Iterable[Summary]
) -> tuple[ArchivedFile, ...]:
    """Return the archived files that are missing or incomplete in the second repository, in order.

    `kept` are the backups that the second repository has, or will have.
    """
    useful = [old.file for old in prune_binlogs.expired(here, kept, backups) if not old.decision.remove]
    known = {(file.incarnation, file.name): file for file in (there.load().files if there is not None else ())}

    def is_missing(file: ArchivedFile) -> bool:
        other = known.get((file.incarnation, file.name))
        return other is None or (not other.is_rotated and (file.is_rotated or other.end < file.end))

    return tuple(file for file in useful if is_missing(file))


def copy(
    here: BinlogArchive,
    there: BinlogArchive,
    files: Iterable[ArchivedFile],
    concurrency: int,
    confirm: Callable[[], None],
) -> CopiedBinlogs:
    """Copy the files.

    A file that is damaged, or changes during the copy, is reported and skipped. `confirm` raises if others may be
    writing to the second repository.
    """
    done = CopiedBinlogs()
    started: set[str] = set()
    for file in files:
        try:
            if file.incarnation not in started:
                _description(here, there, here.incarnation_key(file.incarnation))
                started.add(file.incarnation)
            with ThreadPoolExecutor(concurrency, thread_name_prefix="copy") as pool:
                done.size += sum(pool.map(lambda body: _body(here, there, *body), _bodies(here, file)))
            confirm()
            if file.is_rotated:
                _description(here, there, here.file_key(file))
                binlog_removal.remove_unneeded(there, file)
            else:
                for segment in file.segments:
                    _description(here, there, here.segment_key(file.incarnation, segment))
        except NotThere:
            done.failed[file.name] = "it was changed or removed during the copy; run the copy again"
            continue
        except DamagedError as error:
            done.failed[file.name] = error.message
            continue
        done.copied.append(file.name)
    confirm()
    _copy_complete_records(here, there)
    return done


def _copy_complete_records(here: BinlogArchive, there: BinlogArchive) -> None:
    """Copy until when each incarnation is complete. A record counts only where the copy reaches the place it names."""
    for listed in there.repository.list(layout.incarnations(there.instance)):
        key = layout.complete(there.instance, listed.key.incarnation)
        with contextlib.suppress(NotThere):
            there.repository.overwrite(key, here.repository.get(key))


def _bodies(archive: BinlogArchive, file: ArchivedFile) -> Iterator[tuple[BinlogKey, Chunk]]:
    """Yield key and description of each object that contains bytes of the file."""
    for index, chunk in enumerate(file.chunks, 1):
        yield archive.chunk_key(file.incarnation, file.name, file.attempt, index), chunk
    for segment in file.segments:
        yield archive.segment_body_key(file.incarnation, segment), segment.chunk


def _body(here: BinlogArchive, there: BinlogArchive, key: BinlogKey, chunk: Chunk) -> int:
    """Copy one body unless the same body is there already. Return the bytes written."""
    source, target = here.repository, there.repository
    with contextlib.suppress(NotThere):
        if hashlib.sha256(target.get(key)).hexdigest() == chunk.stored_sha256:
            return 0
    body = source.get(key)
    if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        raise DamagedError(
            f"{key}: its stored bytes do not have the SHA-256 its description says", hint="see `zsnapdb verify --deep`"
        )
    target.overwrite(key, body, sha256=chunk.stored_sha256)
    return len(body)


def _description(here: BinlogArchive, there: BinlogArchive, key: Key) -> None:
    """Copy a description byte for byte. ConsistencyError if a different description is there."""
    if not there.repository.put_same(key, here.repository.get(key), is_alone=True):
        raise ConsistencyError(
            f"{key} was read back different from what was copied",
            hint="the second repository has another binlog of this name",
        )

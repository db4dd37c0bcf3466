"""Which archived history is that of the server, and what of it is archived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from zsnapdb.base.gtid import Gtids, joined
from zsnapdb.base.model import server_name
from zsnapdb.jobs.binlog.files import BinlogSource, LocalFiles
from zsnapdb.mysql.binlog.bytes import read_plain
from zsnapdb.planning.binlog.archive import ServerBinlog, has_all_of
from zsnapdb.planning.binlog.history import CompleteUntil
from zsnapdb.planning.family import family
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Incarnation
from zsnapdb.stream.chunks import plain_hash


@dataclass(frozen=True)
class KnownHistory:
    """The newest incarnation of a server with its files, and the GTIDs archived from other servers.

    `incarnation` is None if the server was never archived.
    """

    incarnation: Incarnation | None
    files: tuple[ArchivedFile, ...]
    elsewhere: Gtids | None


def known_history(archive: Archive, source: BinlogSource, files: LocalFiles) -> KnownHistory:
    """Return what is archived of the server, in its newest incarnation.

    That is the newest one under its name, or a newer one, under whatever server_id, of which the binlogs of the server
    have everything: they prove that it goes on. PreflightError if they must be read for that and cannot be.
    """
    own = server_name(source.server_uuid, source.server_id)
    same_flavour = [i for i in archive.incarnations if i.flavour is source.flavour]
    named = [i for i in same_flavour if server_name(i.server_uuid, i.server_id) == own]
    chosen = named[-1] if named else None
    # The name of a server without a UUID is its server_id, which may change at a restart.
    newer = () if family(source.flavour).has_uuid else tuple(takewhile(lambda i: i != chosen, reversed(same_flavour)))
    local = files.list() if newer else []
    chosen = next((i for i in newer if _goes_on(archive.of(i.id), files, local)), chosen)
    mine = {i.id for i in (*named, chosen) if i is not None}
    elsewhere: Gtids | None = None
    for file in archive.files:
        if file.incarnation not in mine and file.flavour is source.flavour:
            elsewhere = joined(elsewhere, file.reached)
    if chosen is None:
        return KnownHistory(None, (), elsewhere)
    # A binlog of which only a part can be read is archived again from its beginning.
    broken = {place.name for place in archive.state.unreadable if place.incarnation == chosen.id}
    return KnownHistory(chosen, tuple(file for file in archive.of(chosen.id) if file.name not in broken), elsewhere)


def contains_last(files: LocalFiles, file: ArchivedFile) -> bool:
    """Whether the server's file still contains the bytes that were archived last."""
    if file.is_rotated:
        start, chunk = sum(chunk.plain_size for chunk in file.chunks[:-1]), file.chunks[-1]
    else:
        start, chunk = file.segments[-1].start, file.segments[-1].chunk
    with files.open(file.name) as opened:
        return plain_hash(read_plain(opened, start, start + chunk.plain_size)).hexdigest() == chunk.plain_hash


def last_seen(newest: ArchivedFile, complete: Sequence[CompleteUntil]) -> int | None:
    """Return a time after which everything was committed that follows the newest archived file (microseconds UTC)."""
    place = (newest.incarnation, newest.name)
    times = [one.until for one in complete if (one.incarnation, one.name) == place and one.end == newest.end]
    return max((time for time in (newest.seen, *times) if time is not None), default=None)


def _goes_on(archived: Sequence[ArchivedFile], files: LocalFiles, local: Sequence[ServerBinlog]) -> bool:
    """Whether the server's binlogs have everything of a history, to the byte that was archived last."""
    try:
        return bool(archived) and has_all_of(archived[-1], local) and contains_last(files, archived[-1])
    except FileNotFoundError:
        # It was purged after it was listed.
        return False

"""Functions that list a server's binlog files, read the files' heads, and cut the files into segments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base.domain_types import Flavour, server_name
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.gtid import Gtids, GtidSet, joined
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import SpanBuilder
from zsnapdb.jobs.record import production_restores
from zsnapdb.mysql.binlog.binlog_files import key_of, open_binlog
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.events import fingerprint, read_plain
from zsnapdb.mysql.binlog.tail import index_entries
from zsnapdb.mysql.binlog.transactions import BinlogHeader, read_head, transactions
from zsnapdb.mysql.process.written_paths import KEYRING_VARIABLES, keyring_paths
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog.archive import ServerBinlog, has_all_of
from zsnapdb.planning.binlog.archive_times import NO_WITNESS, CommitTimeEvidence
from zsnapdb.planning.binlog.created_tables import CreatedTable
from zsnapdb.planning.binlog.route_elements import CompleteUntil
from zsnapdb.planning.server_family import family, flavour_of
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import (
    ArchivedFile,
    HeadPart,
    Incarnation,
    SpanPart,
    is_archivable,
    number_of,
)
from zsnapdb.stream.chunks import plain_hash

_VARIABLES = (
    "version",
    "version_comment",
    "log_bin",
    "log_bin_index",
    "log_bin_basename",
    "binlog_storage_engine",
    "datadir",
    "server_uuid",
    "server_id",
    *KEYRING_VARIABLES,
)


@dataclass(frozen=True)
class BinlogSource:
    """The server whose binlogs are archived, and the location of the binlogs."""

    flavour: Flavour
    server_uuid: str | None
    server_id: int
    index: Path
    datadir: Path
    folder: Path
    """The folder of the binlogs: the folder of `log_bin_basename`, with links resolved."""
    keys: BinlogKeys = NO_KEYS


def find_source(session: Session) -> BinlogSource:
    """Return the location of the server's binlogs.

    Raises:
        PreflightError: the server has no binlog files on this host.
    """
    variables = global_variables(session, _VARIABLES)
    if variables.get("log_bin", "OFF") not in ("ON", "1"):
        raise PreflightError(
            "the server writes no binlog",
            hint="set log_bin; without binlogs no point in time between two backups can be restored",
        )
    if variables.get("binlog_storage_engine", ""):
        raise PreflightError(
            f"the server keeps its binlog inside {variables['binlog_storage_engine']} (binlog_storage_engine), which"
            " has no files to archive",
            hint="unset binlog_storage_engine; backups of the server do not need this setting",
        )
    datadir = Path(os.path.realpath(variables["datadir"]))
    base = datadir / variables.get("log_bin_basename", "")
    named = variables.get("log_bin_index") or f"{base}.index"
    index = Path(os.path.realpath(datadir / named))
    if not index.parent.is_dir():
        raise PreflightError(
            f"the binlog index {index} is not on this host", hint="archive binlogs on the host the server runs on"
        )
    uuid = variables.get("server_uuid")
    flavour = flavour_of(variables)
    return BinlogSource(
        flavour,
        uuid if family(flavour).has_uuid else None,
        int(variables.get("server_id", "0")),
        index,
        datadir,
        Path(os.path.realpath(base.parent)),
        BinlogKeys(tuple(Path(file.path) for file in keyring_paths(variables))),
    )


@dataclass(frozen=True)
class Opening:
    """The head of a binlog file, the fingerprint of the head, and whether the file is encrypted."""

    head: BinlogHeader
    fingerprint: str
    is_encrypted: bool = False


_FileState = tuple[int, int, int]
"""Inode, size and change time of a file. These values no longer change once the server has closed the file."""


class LocalFiles:
    """The binlogs in the server's binlog index file. The head of a file is read again only if the file changed.

    After a RESET statement, a new file may have the name and even the inode of an old file.
    """

    def __init__(self, source: BinlogSource) -> None:
        self.source = source
        self._paths: dict[str, Path] = {}
        self._openings: dict[str, tuple[_FileState, Opening]] = {}

    def list(self) -> list[ServerBinlog]:
        """Return the binlogs in the order of the index.

        A binlog with an incomplete head is left out, for example during a rotation.
        """
        binlogs = []
        paths = {}
        for entry in index_entries(self.source.index):
            # The path of the folder may contain symbolic links, like other paths of the server. The file itself must
            # not be a link.
            named = self.source.datadir / entry
            if not is_archivable(named.name):
                raise PreflightError(
                    f"binlog {named.name} has a name that cannot be archived",
                    hint="use letters, digits, - and _ in log_bin",
                )
            paths[named.name] = path = self.source.folder / named.name
            local = self._local(path) if Path(os.path.realpath(named.parent)) == path.parent else self._outside(named)
            if local is not None:
                binlogs.append(local)
        self._paths = paths
        self._openings = {name: known for name, known in self._openings.items() if name in paths}
        return binlogs

    def _outside(self, named: Path) -> ServerBinlog:
        """Return an entry for a binlog outside the server's binlog folder.

        The binlog is not read, because a forged index could name any file of the host.
        """
        problem = (
            f"the index names {named}, which is not in {self.source.folder}, the folder that log_bin_basename names"
        )
        return ServerBinlog(named.name, number_of(named.name), 0, problem=problem)

    def path(self, name: str) -> Path:
        """Return the path of a binlog in the list."""
        return self._paths[name]

    def open(self, name: str) -> BinaryIO:
        """Return a binlog of the list, opened for reading its decrypted bytes."""
        return open_binlog(self._paths[name], self.source.keys)

    def opening(self, name: str) -> Opening:
        """Return the head and the fingerprint of a binlog in the list, and whether the binlog is encrypted."""
        return self._openings[name][1]

    def _local(self, path: Path) -> ServerBinlog | None:
        try:
            with open_binlog(path, self.source.keys) as file:
                status, size = os.fstat(file.fileno()), file.seek(0, os.SEEK_END)
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                known = self._openings.get(path.name)
                if known is None or known[0] != state:
                    head = read_head(file, path.name)
                    if head is None or head.end is None:
                        return None
                    opening = Opening(head, fingerprint(file, head.end), key_of(file) is not None)
                    self._openings[path.name] = (state, opening)
                else:
                    opening = known[1]
                return ServerBinlog(path.name, number_of(path.name), size, opening.fingerprint, opening.head.previous)
        except FileNotFoundError:
            return ServerBinlog(
                path.name, number_of(path.name), 0, problem=f"{path.name} is in the index, but the file is missing"
            )
        except (PreflightError, DamagedError) as error:
            return ServerBinlog(path.name, number_of(path.name), 0, problem=error.message)
        except OSError as error:
            raise PreflightError(f"reading binlog {path}: {error.strerror}", hint="run zsnapdb as root") from error


def head_part(source: BinlogSource, opening: Opening) -> HeadPart:
    """Return a binlog's head, fingerprint and encryption in the format of the archive."""
    head = opening.head
    return HeadPart(
        server_uuid=source.server_uuid,
        server_id=head.server_id,
        version=head.version,
        created=head.created,
        previous_gtids=None if head.previous is None else str(head.previous),
        end=head.end or 0,
        fingerprint=opening.fingerprint,
    )


@dataclass(frozen=True)
class SegmentCut:
    """A segment to archive: its bytes (`start` to `end`), its transactions, and the tables created without ENGINE."""

    start: int
    end: int
    span: SpanPart
    tables: tuple[CreatedTable, ...] = ()


def cuts(
    file: BinaryIO,
    name: str,
    size: int,
    *,
    start: int,
    complete: int,
    limit: int,
    witness: CommitTimeEvidence = NO_WITNESS,
) -> Iterator[SegmentCut]:
    """Yield the segments from byte `start` to the end of the last complete transaction within `size` bytes of the file.

    `complete` is the offset at which the last complete archived transaction ends. If there is none, it is the end of
    the file's head. A segment has at most `limit` bytes, and ends at the end of a transaction. Only a transaction
    longer than `limit` is split.
    """
    first = 0 if start == 0 else complete
    builder = SpanBuilder(first, complete, witness)
    walk = transactions(file, name, complete, size, lambda event, walk, is_end: builder.watch(event, walk, is_end))
    while True:
        try:
            transaction = next(walk)
        except StopIteration as end:
            boundary = end.value
            break
        if transaction.end - start > limit and builder.end > start:
            yield SegmentCut(start, builder.end, builder.span(), builder.tables)
            start, builder = builder.end, SpanBuilder(builder.end, builder.end, witness)
        while transaction.end - start > limit:
            yield SegmentCut(start, start + limit, SpanPart(start=builder.start, end=builder.end))
            start += limit
            builder = SpanBuilder(builder.end, builder.end, witness)
        builder.add(transaction)
    builder.end = max(builder.end, boundary)
    if builder.end > start:
        yield SegmentCut(start, builder.end, builder.span(), builder.tables)


@dataclass(frozen=True)
class KnownHistory:
    """The newest incarnation of a server with its files, and the GTIDs archived from other servers.

    `incarnation` is None if the server was never archived.
    """

    incarnation: Incarnation | None
    files: tuple[ArchivedFile, ...]
    elsewhere: Gtids | None


def known_history(archive: Archive, source: BinlogSource, files: LocalFiles) -> KnownHistory:
    """Return the archived binlogs of the server's newest incarnation.

    Normally this is the newest incarnation that was archived under the server's UUID or server_id. But if the server's
    binlogs contain a whole newer incarnation with any server_id, the server certainly continues that incarnation. In
    this case the binlogs of that incarnation are returned.

    Raises:
        PreflightError: this decision needs the server's binlogs, but they cannot be read.
    """
    own = server_name(source.server_uuid, source.server_id)
    same_flavour = [i for i in archive.incarnations if i.flavour is source.flavour]
    named = [i for i in same_flavour if server_name(i.server_uuid, i.server_id) == own]
    chosen = named[-1] if named else None
    # The name of a server without a UUID contains its server_id, which may change at a restart.
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
    return KnownHistory(chosen, archive.of(chosen.id), elsewhere)


def returned_after(incarnations: Sequence[Incarnation], chosen: Incarnation | None, last: str | None) -> str | None:
    """Return why the server of the incarnation `chosen` returned to production; None if it did not.

    `incarnations` is in the order of their sequence numbers, and `last` is the incarnation that this host archived
    last. If `last` is newer than `chosen`, this host archived another server in between, for example until a user undid
    a restore.
    """
    newer = incarnations[incarnations.index(chosen) + 1 :] if chosen is not None else ()
    other = next((one for one in newer if one.id == last), None)
    if other is None:
        return None
    name = server_name(other.server_uuid, other.server_id)
    return f"the server is in production again; binlogs of {name} were archived in between"


def find_taken_back(
    instance: Instance, incarnations: Sequence[Incarnation], elsewhere: Gtids | None
) -> tuple[str | None, str | None]:
    """Return `restore` and `taken_back` for a new incarnation of the server.

    `elsewhere` contains the GTIDs that are archived from other servers now. A later incarnation after the same restore
    has the value of the first one, because other servers may have taken over in between.
    """
    restore = production_restores.restore_in_place(instance)
    if restore is None:
        return None, None
    first = next((one for one in incarnations if one.restore == restore), None)
    own = str(elsewhere) if isinstance(elsewhere, GtidSet) else None
    return restore, own if first is None else first.taken_back


def contains_last(files: LocalFiles, file: ArchivedFile) -> bool:
    """Return whether the server's file still contains the newest archived bytes of this binlog."""
    if file.is_rotated:
        start, chunk = sum(chunk.plain_size for chunk in file.chunks[:-1]), file.chunks[-1]
    else:
        start, chunk = file.segments[-1].start, file.segments[-1].chunk
    with files.open(file.name) as opened:
        return plain_hash(read_plain(opened, start, start + chunk.plain_size)).hexdigest() == chunk.plain_hash


def last_seen(newest: ArchivedFile, complete: Sequence[CompleteUntil]) -> int | None:
    """Return a time before all commits after the newest archived file, in microseconds UTC; None if unknown."""
    place = (newest.incarnation, newest.name)
    times = [one.until for one in complete if (one.incarnation, one.name) == place and one.end == newest.end]
    return max((time for time in (newest.seen, *times) if time is not None), default=None)


def _goes_on(archived: Sequence[ArchivedFile], files: LocalFiles, local: Sequence[ServerBinlog]) -> bool:
    """Return whether the server's binlogs contain a whole archived history, up to its last byte."""
    try:
        return bool(archived) and has_all_of(archived[-1], local) and contains_last(files, archived[-1])
    except FileNotFoundError:
        # The binlog was purged after it was listed.
        return False

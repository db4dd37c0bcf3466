"""Reads archived binlogs: their structure and spans.

The module also finds files of the server that contain the same bytes as archived binlogs.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from zsnapdb.base.domain_types import BinlogCoordinates, backup_time, parse_gtids, server_name
from zsnapdb.base.errors import DamagedError, PreflightError, ZsnapdbError
from zsnapdb.base.gtid import GtidPosition, Gtids
from zsnapdb.mysql.binlog.binlog_files import open_binlog
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.created_tables import CreatedTables
from zsnapdb.mysql.binlog.events import Event, fingerprint, read_plain
from zsnapdb.mysql.binlog.tail import head_fingerprint, index_entries
from zsnapdb.mysql.binlog.transactions import BinlogTransaction, GtidCollector, TransactionTracker, transactions
from zsnapdb.planning.binlog.archive_times import NO_WITNESS, CommitTimeEvidence, Stretch, with_stretch
from zsnapdb.planning.binlog.created_tables import MOST_MADE, CreatedTable
from zsnapdb.planning.binlog.route import BackupPoint
from zsnapdb.planning.server_copy.copy_options import binlog_paths
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, SpanPart, UndatedPart
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source

_MICROSECONDS = 1_000_000
_LONGEST_WAIT = 86_400 * _MICROSECONDS
"""The maximum time in microseconds between a backup's id and its snapshot.

It equals the largest allowed `lock.budget`.
"""


def points_of(backups: Iterable[Manifest | Summary]) -> list[BackupPoint]:
    """Return the binlog positions of the server backups, oldest first. Backups of machines are left out.

    If the time of a backup is later than that of a newer backup, a clock was wrong. In this case the time of the newer
    backup is used for both.
    """
    points = [point_of(backup) for backup in backups if is_of_server(backup)]
    for at in range(len(points) - 2, -1, -1):
        following = points[at + 1]
        taken = min(points[at].taken, following.taken)
        points[at] = replace(points[at], taken=taken, before=max(taken, min(points[at].before, following.before)))
    return points


def point_of(manifest: Manifest | Summary) -> BackupPoint:
    """Return the position of a server backup in the server's binlog history.

    Raises PreflightError if the backup is not a server backup.
    """
    source = server_source(manifest)
    position = source.position.position(source.server.flavour)
    taken = round(backup_time(manifest.backup_id).timestamp()) * _MICROSECONDS
    created = round(manifest.created.timestamp() * _MICROSECONDS)
    where = position.coordinates
    return BackupPoint(
        backup_id=manifest.backup_id,
        taken=taken,
        before=max(taken, min(created, taken + _LONGEST_WAIT)),
        server=server_name(source.server.server_uuid, source.server.server_id),
        coordinates=BinlogCoordinates(where.file, where.offset) if where else None,
        gtids=position.gtids,
        flavour=source.server.flavour,
        fingerprint=position.fingerprint,
        last_gtid=position.last_gtid,
    )


class SpanBuilder:
    """Builds the description of a span, which consists of consecutive transactions in a binlog.

    The transactions are added in order. `witness` is the evidence that the commit times in the events of some
    transactions are wrong.
    """

    def __init__(self, start: int, end: int, witness: CommitTimeEvidence = NO_WITNESS) -> None:
        self.start = start
        self.end = end
        self._witness = witness
        self._undated: tuple[Stretch, ...] = ()
        self._count = 0
        self._numbers = GtidCollector()
        self._heads: dict[int, tuple[int, int]] = {}
        self._gtids: list[str] = []
        self._times: list[int] = []
        self._is_exact = True
        self._tables = CreatedTables()

    @property
    def tables(self) -> tuple[CreatedTable, ...]:
        return tuple(self._tables.tables)

    def watch(self, event: Event, walk: TransactionTracker, is_end: bool) -> None:
        """Process an event at the start or end of a transaction in the span."""
        self._tables.see(event, walk, 1, is_end=is_end)

    def add(self, transaction: BinlogTransaction) -> None:
        self.end = transaction.end
        self._count += 1
        self._is_exact = self._is_exact and transaction.is_exact
        first, last = self._times_of(transaction)
        self._times = [min(self._times[0], first), max(self._times[1], last)] if self._times else [first, last]
        if transaction.number is None:
            return
        if len(transaction.number) == 2:
            self._numbers.add(*transaction.number)
        else:
            domain, server, sequence = transaction.number
            self._heads[domain] = (server, sequence)
        gtid = transaction.gtid or ""
        self._gtids = [self._gtids[0], gtid] if self._gtids else [gtid, gtid]

    def _times_of(self, transaction: BinlogTransaction) -> tuple[int, int]:
        """Return the earliest and latest possible commit time of a transaction.

        If `is_exact` of the transaction is set, the time in its events is used, because no session can have forged it.
        """
        stamp, start, end = transaction.committed, transaction.start, transaction.end
        seen = None if transaction.is_exact else self._witness.contradiction(start, end, stamp)
        if seen is None:
            return stamp, stamp
        self._undated = with_stretch(self._undated, Stretch(start, end, seen))
        return (min(stamp, seen.latest) if seen.earliest is None else seen.earliest), seen.latest

    def span(self) -> SpanPart:
        gtids: Gtids | None = (
            self._numbers.set()
            if self._numbers
            else GtidPosition(dict(sorted(self._heads.items())))
            if self._heads
            else None
        )
        return SpanPart(
            start=self.start,
            end=self.end,
            transactions=self._count,
            gtids=None if gtids is None else str(gtids),
            first_gtid=self._gtids[0] if self._gtids else None,
            last_gtid=self._gtids[1] if self._gtids else None,
            first_commit=self._times[0] if self._times else None,
            last_commit=self._times[1] if self._times else None,
            is_exact=self._is_exact,
            undated=tuple(UndatedPart.of(stretch) for stretch in self._undated),
            without_engine=tuple(
                table.offset
                for table in self._tables.tables
                if not table.is_dropped
                and (table.lacks_options or (table.is_transactional is False and not table.names_engine))
            )[:MOST_MADE],
        )


def whole_span(file: BinaryIO, name: str, witness: CommitTimeEvidence = NO_WITNESS) -> SpanPart:
    """Return the span of a file up to the end of its last complete transaction."""
    return span_and_tables(file, name, witness)[0]


def span_and_tables(
    file: BinaryIO, name: str, witness: CommitTimeEvidence = NO_WITNESS
) -> tuple[SpanPart, tuple[CreatedTable, ...]]:
    """Return the result of `whole_span`, and the tables that statements without ENGINE created in this span."""
    builder = SpanBuilder(0, 0, witness)
    walk = transactions(file, name, watch=builder.watch)
    while True:
        try:
            builder.add(next(walk))
        except StopIteration as end:
            builder.end = end.value
            return builder.span(), builder.tables


_BUFFER = 1 << 20


def archived_damage(archive: BinlogArchive, file: ArchivedFile) -> tuple[str, ...]:
    """Read an archived binlog, and return the first damage in its bytes or events; () if the binlog is intact.

    The function needs as much memory as two chunks.
    """
    try:
        raw = archive.open(file)
        with io.BufferedReader(raw, _BUFFER) as opened:
            damage = content_damage(cast(BinaryIO, opened), file)
            raw.load_rest()
    except DamagedError as error:
        return (error.message,)
    return damage


def check_content(opened: BinaryIO, file: ArchivedFile) -> None:
    """Raise DamagedError if the events of a binlog contradict the archived description of the binlog."""
    for damage in content_damage(opened, file):
        raise DamagedError(
            f"{damage}: somebody replaced the archived copy",
            hint="restore to a point before this binlog, or to a backup after it; see `zsnapdb verify --deep`",
        )


def content_damage(opened: BinaryIO, file: ArchivedFile) -> tuple[str, ...]:
    """Return the first contradiction between the events of a binlog and its description; () if there is none."""
    name = f"binlog {file.name}"
    try:
        if fingerprint(opened, file.head.end) != file.fingerprint:
            return (f"{name}: its head is not the one in its description",)
        span = whole_span(opened, file.name)
    except (DamagedError, PreflightError) as error:
        return (error.message,)
    said = file.span
    for what, found, described in (
        ("the end of its last transaction", span.end, said.end),
        ("the number of its transactions", span.transactions, said.transactions),
        ("its GTIDs", None if span.gtids is None else parse_gtids(file.flavour, span.gtids), file.gtids),
        ("its first GTID", span.first_gtid, said.first_gtid),
        ("its last GTID", span.last_gtid, said.last_gtid),
    ):
        if found != described:
            return (f"{name}: {what} is {found}, and its description says {described}",)
    return ()


_LONGEST_INDEX = 16 << 20
"""The maximum size in bytes of a binlog index.

The size is limited because a forged manifest could name any file as the index.
"""


@dataclass(frozen=True)
class LocalBinlogs:
    """The binlogs in the index of a server on this host, by name."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    keys: BinlogKeys = NO_KEYS

    @classmethod
    def of(cls, variables: Mapping[str, str], key_files: Sequence[str]) -> LocalBinlogs:
        """Return the binlogs of the server with the given global variables; empty if this host cannot read the index.

        `key_files` are the files of the server's keyring, if the server encrypts its binlogs.
        """
        named = binlog_paths(variables, "log_bin")
        if named is None:
            return cls()
        datadir = Path(variables["datadir"])
        try:
            if os.lstat(named[1]).st_size > _LONGEST_INDEX:
                return cls()
            entries = [datadir / entry for entry in index_entries(Path(named[1]))]
            # The path of the folder may contain symbolic links, like other paths of the server. The file itself must
            # not be a link.
            paths = {path.name: Path(os.path.realpath(path.parent), path.name) for path in entries}
            return cls(paths, BinlogKeys(tuple(Path(file) for file in key_files)))
        except (ZsnapdbError, OSError, ValueError):
            return cls()

    def has(self, file: ArchivedFile) -> bool:
        """Return whether the server has a file with the archived file's name and head that is at least as long."""
        path = self.paths.get(file.name)
        if path is None:
            return False
        try:
            with open_binlog(path, self.keys) as opened:
                return opened.seek(0, 2) >= file.end and fingerprint(opened, file.head.end) == file.fingerprint
        except (ZsnapdbError, OSError):
            return False

    def has_head(self, name: str, head: str) -> bool:
        """Return whether the head of the server's file with the given name has the fingerprint `head`."""
        path = self.paths.get(name)
        if path is None:
            return False
        try:
            with open_binlog(path, self.keys) as opened:
                return head_fingerprint(opened, name) == head
        except (ZsnapdbError, OSError):
            return False

    def copy(self, archive: BinlogArchive, file: ArchivedFile, target: Path) -> bool:
        """Copy the archived part of a binlog from the server's own file to the new file `target`.

        If the server's file is missing or has other bytes, return False and create no file.
        """
        if not self.has(file):
            return False
        try:
            with open_binlog(self.paths[file.name], self.keys) as opened:
                return archive.copy_local(file, partial(read_plain, opened), target)
        except (ZsnapdbError, OSError):
            return False

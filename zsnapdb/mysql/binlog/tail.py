"""The end of a binlog file, and the position to which a server recovers from a set of binlog files.

The end of a file is its last complete transaction with the GTIDs up to it. The end and the position are compared with
real servers in tests/system/test_binlog_tail.py.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.base.gtid import Gtids
from zsnapdb.mysql.binlog.binlog_files import open_binlog
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.events import MAGIC, MALFORMED, decisive_events, fingerprint, malformed, read_plain
from zsnapdb.mysql.binlog.transactions import TransactionTracker, gtid_text, read_head
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock
from zsnapdb.planning.binlog.archive_times import CommitHorizon
from zsnapdb.planning.server_facts import Dialect

_COMPARED = 4096


@dataclass(frozen=True)
class KnownTail:
    """The known offset at which a binlog's last complete transaction ends, and the GTIDs up to this offset.

    `file` is the base name of the binlog. `last_gtid` has the same meaning as in `Tail`. `digest` is the result of
    `digest_of`.
    """

    file: str
    offset: int
    gtids: Gtids
    last_gtid: str | None
    digest: str

    def is_of(self, file: BinaryIO, size: int) -> bool:
        """Return whether the open binlog of `size` bytes contains this tail, even if more data follows."""
        return self.offset <= size and digest_of(file, self.offset) == self.digest


def digest_of(file: BinaryIO, offset: int) -> str:
    """Return one SHA-256 of a binlog's first 4 KiB and the 4 KiB before the offset.

    The first 4 KiB identify the server that started the file, the time, and the preceding GTIDs. The other 4 KiB
    contain the time and the GTID of the last transaction before the offset. Raises ConsistencyError if the file ends
    before the offset.
    """
    first = read_plain(file, 0, min(_COMPARED, offset))
    last = read_plain(file, max(0, offset - _COMPARED), offset)
    return hashlib.sha256(first + last).hexdigest()


@dataclass(frozen=True)
class Tail:
    """End of a binlog file, which is the offset after its last complete transaction, with the GTIDs up to this offset.

    The `unfinished` bytes after this offset belong to no complete transaction. `last_gtid` is the GTID of the last
    complete transaction (None means the transaction has no GTID, or the file contains no transaction).
    """

    offset: int
    gtids: Gtids | None
    unfinished: int
    last_gtid: str | None = None


def tail_of(file: BinaryIO, name: str, known: KnownTail | None = None) -> Tail:
    """Return the tail of an open binlog.

    If `known` is an earlier tail of this binlog, only later data is read and checked.

    Raises DamagedError if an event is damaged, and PreflightError if the binlog is encrypted.
    """
    size = file.seek(0, os.SEEK_END)
    if known is not None and not (known.file == name and known.is_of(file, size)):
        known = None
    walk = TransactionTracker() if known is None else TransactionTracker.after(known.gtids)
    events = decisive_events(file, name, size, None if known is None else known.offset)
    try:
        while True:
            event = next(events)
            walk.see(event)
    except StopIteration as end:
        walk.finish(end.value)
    except MALFORMED as error:
        raise malformed(name, error) from error
    last = None if walk.last is None else gtid_text(walk.last)
    if known is not None and not walk.has_closed:
        last = known.last_gtid
    return Tail(walk.offset, walk.gtids(), size - walk.offset, last)


@dataclass(frozen=True)
class FoundPosition:
    """The position to which a server recovers, and the tail from which it was determined.

    `tail` is None if the binlog has no GTID information (very old servers). Such a file is always read completely.
    """

    position: Position
    tail: KnownTail | None


def head_fingerprint(file: BinaryIO, name: str) -> str | None:
    """Return the fingerprint of an open binlog; None if its head contains no GTIDs (very old servers)."""
    head = read_head(file, name)
    return None if head is None or head.end is None else fingerprint(file, head.end)


LOG_LISTS = (".index", ".index_crash_safe", ".~rec~")
"""Suffixes of files that list binlogs or relay logs by absolute path.

(sql/binlog.cc of MySQL, sql/log.cc of MariaDB.) The file with the first suffix is the index. The second file replaces
the index while the server rewrites it. The third file lists files that are being created or purged. When a server
starts after a crash, it DELETES the files in this list that are not in its index. So a server on a copy that was made
during a rotation would delete the live binlog of the source.
"""


def index_entries(index: Path) -> list[str]:
    """Return the lines of a binlog index, oldest first, as the server wrote them.

    While the server replaces its index, only the crash-safe file of the index exists. The lines are then read from this
    file, as the server itself does. Raises ConsistencyError if the index cannot be read.
    """
    try:
        chosen = index if index.exists() else index.with_suffix(LOG_LISTS[1])
        entries = [line for line in safe_open.read_text(chosen).split("\n") if line]
    except OSError as error:
        raise ConsistencyError(
            f"reading the binlog index {index}: {error.strerror}",
            hint="is the snapshot visible under .zfs, and zsnapdb run as root?",
        ) from error
    if any("\0" in entry or os.path.basename(entry) in ("", ".", "..") for entry in entries):
        raise ConsistencyError(
            f"the binlog index {index} has a line that is not a file name", hint="was it edited by hand?"
        )
    return entries


def _some_entries(index: Path) -> list[str]:
    """Return the lines of the index.

    Raises ConsistencyError in the same cases as `index_entries`, and also if the index has no lines.
    """
    entries = index_entries(index)
    if not entries:
        raise ConsistencyError(
            f"the binlog index {index} is empty",
            hint="the snapshot was taken while the server initialised its binlog; run again",
        )
    return entries


def _known_tail(file: BinaryIO, name: str, tail: Tail) -> KnownTail | None:
    if tail.gtids is None:
        return None
    return KnownTail(name, tail.offset, tail.gtids, tail.last_gtid, digest_of(file, tail.offset))


def find_position(
    index: Path, folder: Path, flavour: Flavour, known: KnownTail | None, *, has_gtids: bool, keys: BinlogKeys = NO_KEYS
) -> FoundPosition:
    """Return the position to which a server recovers from the given index and binlogs, and the newest binlog's tail.

    The position is the end of the last complete transaction in the newest binlog (MySQL sql/binlog/recovery.cc). If the
    newest binlog is still empty after a rotation, the position is the end of the previous binlog. If the newest binlog
    contains the `known` tail, only later data is read.
    """
    for name in reversed([Path(entry).name for entry in _some_entries(index)]):
        file = folder / name
        if not file.exists():
            raise ConsistencyError(
                f"{index} names {name}, which is not in {folder}",
                hint="was a binlog removed by hand? see `SHOW BINARY LOGS`",
            )
        with open_binlog(file, keys) as opened:
            tail = tail_of(opened, name, known)
            if tail.offset <= len(MAGIC) or (has_gtids and tail.gtids is None):
                continue
            position = Position(
                flavour,
                BinlogCoordinates(name, tail.offset),
                tail.gtids if has_gtids else None,
                "binlog tail in the snapshot",
                head_fingerprint(opened, name),
                tail.last_gtid if has_gtids else None,
            )
            return FoundPosition(position, _known_tail(opened, name, tail))
    raise ConsistencyError(f"no binlog in {index} contains a complete event", hint="run the backup again")


_NEAR_BYTES = 256 << 10
"""Maximum number of bytes between a tail and the end of the binlog if the tail counts as near.

Reading this many bytes takes milliseconds.
"""
_MOST_WALKS = 3


def tail_near_end(
    index: Path, folder: Path, known: KnownTail | None, flavour: Flavour, *, has_gtids: bool, keys: BinlogKeys = NO_KEYS
) -> KnownTail | None:
    """Return a tail near the end of a running server's newest binlog.

    If the `known` tail is near enough to the end, return it. Otherwise, read the binlog from the known tail on. Repeat
    this if the server wrote much in the meantime. Raises the errors of `find_position`.
    """
    for _ in range(_MOST_WALKS):
        newest = folder / Path(_some_entries(index)[-1]).name
        start = known.offset if known is not None and known.file == newest.name else 0
        if newest.stat().st_size - start <= _NEAR_BYTES:
            break
        known = find_position(index, folder, flavour, known, has_gtids=has_gtids, keys=keys).tail or known
    return known


_SECOND = 1_000_000


def commit_horizon(session: Session, forms: Dialect) -> CommitHorizon | None:
    """Return the current commit horizon of the server; None if the server has no binlog.

    `forms` is the server's dialect.

    The horizon's time is a whole second, because some binlogs contain no fractions of a second. Raises ServerError if
    the account lacks a privilege or the server does not answer in time.
    """
    asked = int(clock(session))
    rows = session.records(forms.position)
    if not rows:
        return None
    end = BinlogCoordinates(str(rows[0]["File"]), int(rows[0]["Position"]))
    # Every commit whose time is in the previous second or earlier started before this query.
    return CommitHorizon((asked - 1) * _SECOND, end)

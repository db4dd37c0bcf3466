"""Whether an archived binlog is one, and has what its description says. The hashes in a description prove neither."""

from __future__ import annotations

import io
from typing import BinaryIO, cast

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.gtid import Gtids
from zsnapdb.base.model import parse_gtids
from zsnapdb.jobs.host.binlog_spans import whole_span
from zsnapdb.mysql.binlog.bytes import fingerprint
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile

_BUFFER = 1 << 20


def archived_damage(archive: BinlogArchive, file: ArchivedFile) -> tuple[str, ...]:
    """Read an archived binlog. Return the first thing that is wrong with its bytes or its events, () if nothing is.

    Two chunks are in memory.
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
    """Raise DamagedError if the events of a binlog say otherwise than its description."""
    for damage in content_damage(opened, file):
        raise DamagedError(
            f"{damage}: somebody replaced the archived copy",
            hint="restore to a point before this binlog, or to a backup after it; see `zsnapdb verify --deep`",
        )


def _parsed(text: str | None, file: ArchivedFile) -> Gtids | None:
    return None if text is None else parse_gtids(file.flavour, text)


def content_damage(opened: BinaryIO, file: ArchivedFile) -> tuple[str, ...]:
    """Return what the events of a binlog say otherwise than its description, () if nothing."""
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
        ("its GTIDs", _parsed(span.gtids, file), file.gtids),
        ("its first GTID", span.first_gtid, said.first_gtid),
        ("its last GTID", span.last_gtid, said.last_gtid),
    ):
        if found != described:
            return (f"{name}: {what} is {found}, and its description says {described}",)
    return ()

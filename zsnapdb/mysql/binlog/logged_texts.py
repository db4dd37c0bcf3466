"""Reads the text of every statement in a binlog: query events, also compressed ones of MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from zsnapdb.mysql.binlog.event_bytes import EventBytes, inflated
from zsnapdb.mysql.binlog.events import FORMAT, MALFORMED, MARIADB_QUERY_COMPRESSED, QUERY, decisive_events, malformed
from zsnapdb.mysql.binlog.logged_statement import raw_query
from zsnapdb.mysql.binlog.transaction_changes import event_body

_LONGEST = 1 << 20


def logged_texts(file: BinaryIO, name: str, start: int) -> Iterator[tuple[int, str, str]]:
    """Yield offset, default schema and text of each statement in an open binlog, from the offset `start` on.

    Raises:
        DamagedError: an event is wrong; it names the place
        PreflightError: the file is encrypted
    """
    place, has_checksum = None, False
    try:
        for event in decisive_events(file, name, file.seek(0, 2)):
            place = event.start
            if event.kind == FORMAT:
                has_checksum = event.body[-1] == 1
            elif event.kind in (QUERY, MARIADB_QUERY_COMPRESSED) and event.start >= start:
                schema, text = raw_query(event_body(file, event, has_checksum=has_checksum))
                whole = text if event.kind == QUERY else EventBytes(inflated(text))
                words = whole.up_to(_LONGEST).decode("utf-8", "replace")
                yield event.start, schema.decode("utf-8", "replace"), words
    except MALFORMED as error:
        raise malformed(name, error, place) from error

"""Finds tables in a binlog whose engine no event says: CREATE TABLE without ENGINE.

The server made them in its default_storage_engine of that moment, which no event carries (status variables of query
events: libbinlogevents/statement_events.h of MySQL, sql/log_event.h of MariaDB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from zsnapdb.mysql.binlog.event_bytes import EventBytes, inflated
from zsnapdb.mysql.binlog.events import FORMAT, MALFORMED, MARIADB_QUERY_COMPRESSED, QUERY, decisive_events, malformed
from zsnapdb.mysql.binlog.logged_statement import first_word, raw_query
from zsnapdb.mysql.binlog.transaction_changes import event_body

_LONGEST = 1 << 20
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/", re.DOTALL)
_CREATES = re.compile(r"\bCREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b", re.IGNORECASE)
_SAYS_ENGINE = re.compile(r"\bENGINE\b|\bLIKE\b", re.IGNORECASE)


def is_defaulted(statement: str) -> bool:
    """Whether the statement makes a table and names no engine. Names and texts in quotes count as nothing."""
    if first_word(statement) != "CREATE":
        return False
    bare = _QUOTED.sub(" x ", statement)
    return _CREATES.search(bare) is not None and _SAYS_ENGINE.search(bare) is None


def defaulted_tables(file: BinaryIO, name: str, start: int) -> Iterator[int]:
    """Yield the offsets in an open binlog, from `start` on, of statements that make a table and name no engine.

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
                _, text = raw_query(event_body(file, event, has_checksum=has_checksum))
                whole = text if event.kind == QUERY else EventBytes(inflated(text))
                if is_defaulted(whole.up_to(_LONGEST).decode("utf-8", "replace")):
                    yield event.start
    except MALFORMED as error:
        raise malformed(name, error, place) from error

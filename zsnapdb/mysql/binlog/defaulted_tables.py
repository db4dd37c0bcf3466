"""Finds tables in a binlog whose engine no event says: CREATE TABLE without ENGINE.

The server made them in its default_storage_engine of that moment, which no event carries (status variables of query
events: libbinlogevents/statement_events.h of MySQL, sql/log_event.h of MariaDB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from zsnapdb.mysql.binlog.logged_statement import first_word
from zsnapdb.mysql.binlog.logged_texts import logged_texts

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
    return (offset for offset, _, text in logged_texts(file, name, start) if is_defaulted(text))

"""A check for texts in a binlog that a client would interpret differently from the server that wrote them.

For a replay by a client, mysqlbinlog prints the statements that the client sends to the server. It ends each statement
with its own delimiter, and prints names in comments that end at the end of the line. Source: the print functions in
sql/log_event.cc of both families. If a statement contains the delimiter, or a name contains a line end, the client
treats the rest as a separate statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base import safe_open
from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.event_bytes import EventBytes, inflated, inner_events, payload
from zsnapdb.mysql.binlog.events import (
    MALFORMED,
    MARIADB_QUERY_COMPRESSED,
    PAYLOAD,
    QUERY,
    TABLE_MAP,
    decisive_events,
    malformed,
)
from zsnapdb.mysql.binlog.logged_changes import raw_query, table_map
from zsnapdb.mysql.binlog.transaction_changes import event_bodies

_ROTATE, _USER_VARIABLE, _EXECUTE_LOAD = 4, 14, 18
_OTHERS = frozenset({_ROTATE, _USER_VARIABLE, _EXECUTE_LOAD, TABLE_MAP})
_STATEMENTS = frozenset({_EXECUTE_LOAD, _USER_VARIABLE})
_DELIMITER = b"/*!*/"
_LINE_ENDS = (b"\n", b"\r")
_MOST_NAME = 1 << 10


@dataclass(frozen=True)
class AmbiguousText:
    """The offset of an event with a statement or name that a client would interpret differently, and the reason."""

    offset: int
    reason: str


def ambiguous_text(file: BinaryIO, name: str) -> AmbiguousText | None:
    """Return the first event of an open binlog with a text that a client would split; None if there is none.

    Raises DamagedError with the offset if an event is damaged, and PreflightError if the file is encrypted.
    """
    place = None
    try:
        for event, body in event_bodies(file, decisive_events(file, name, file.seek(0, 2), others=_OTHERS)):
            place = event.start
            reason = _reason(event.kind, body)
            if reason is not None:
                return AmbiguousText(event.start, reason)
    except MALFORMED as error:
        raise malformed(name, error, place) from error
    return None


def refuse_ambiguous_text(file: Path, name: str) -> None:
    """Raise PreflightError if a client would treat a part of a statement or name as a separate statement.

    The separate statement would run with all privileges, and any user of the source server can write to its binlog.
    This function also raises the errors of `ambiguous_text`.
    """
    with safe_open.open_to_read(file) as opened:
        ambiguous = ambiguous_text(opened, name)
    if ambiguous is not None:
        raise PreflightError(
            f"binlog {name} cannot be replayed by a client: at offset {ambiguous.offset} {ambiguous.reason}",
            hint='set restore.replay to "applier" if the server can apply binlogs, or restore to an earlier point',
        )


def _reason(kind: int, body: EventBytes, *, is_inner: bool = False) -> str | None:
    if kind in _STATEMENTS:
        return _of_statement(body)
    if kind in (QUERY, MARIADB_QUERY_COMPRESSED):
        schema, text = raw_query(body)
        statement = text if kind == QUERY else EventBytes(inflated(text))
        return _of_name(bytes(schema)) or _of_statement(statement)
    if kind == TABLE_MAP:
        named = table_map(body)
        return _of_name(named.schema) or _of_name(named.table)
    if kind == _ROTATE:
        body.skip(8)
        return _of_name(body.up_to(_MOST_NAME))
    if kind == PAYLOAD and not is_inner:
        reasons = (_reason(inner, part, is_inner=True) for _, inner, part in inner_events(payload(body)))
        return next(filter(None, reasons), None)
    return None


def _of_statement(body: EventBytes) -> str | None:
    tail = b""
    for piece in body.rest():
        joined = tail + bytes(piece)
        if _DELIMITER in joined:
            return f"a statement contains {_DELIMITER.decode()}, with which mysqlbinlog ends statements"
        tail = joined[1 - len(_DELIMITER) :]
    return None


def _of_name(name: bytes) -> str | None:
    if _DELIMITER in name or any(end in name for end in _LINE_ENDS):
        return "a name contains the end of a line, or the delimiter of mysqlbinlog"
    return None

"""Statements in query events, and their kind of change, as far as the text shows it."""

from __future__ import annotations

import re

from zsnapdb.base.patterns import printable
from zsnapdb.mysql.binlog.event_bytes import EventBytes
from zsnapdb.planning.binlog.changes import MOST_TEXT, ChangeKind, LoggedStatement

_KINDS = {
    "INSERT": ChangeKind.INSERT,
    "REPLACE": ChangeKind.INSERT,
    "LOAD": ChangeKind.INSERT,
    "UPDATE": ChangeKind.UPDATE,
    "DELETE": ChangeKind.DELETE,
    **dict.fromkeys(
        (
            "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR",
            "INSTALL", "UNINSTALL", "IMPORT", "FLUSH", "SET",
        ),
        ChangeKind.DDL,
    ),
}  # fmt: skip
_CONTROL = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "START"}
_CONDITIONAL = re.compile(r"/\*(?:M?!)[0-9]*")
_WORD = re.compile(r"[A-Za-z]+")


def query(body: EventBytes, *, extra: int = 0) -> tuple[str, EventBytes]:
    """Return the default schema of a query event, printable, and its body positioned at the text."""
    schema, text = raw_query(body, extra=extra)
    return printable(schema.decode("utf-8", "replace")), text


def raw_query(body: EventBytes, *, extra: int = 0) -> tuple[bytes, EventBytes]:
    """Return the raw default schema of a query event, and its body positioned at the text.

    The format is: thread, duration, length of the schema (u8), error, length of the status variables (u16), `extra`
    bytes, then variables, schema, a zero byte, and the text.
    """
    body.skip(8)
    length = body.integer(1)
    body.skip(2)
    variables = body.integer(2)
    body.skip(extra + variables)
    schema = body.take(length)
    body.skip(1)
    return schema, body


def statement(schema: str, text: EventBytes) -> LoggedStatement | None:
    """Return the statement of a query event; None if it only starts or ends a transaction or savepoint."""
    raw = text.up_to(MOST_TEXT)
    whole = raw.decode("utf-8", "replace")
    word = first_word(whole)
    if word in _CONTROL:
        return None
    return LoggedStatement(_KINDS.get(word, ChangeKind.OTHER), schema, printable(whole), not text.is_at_end())


def first_word(text: str) -> str:
    """Return the first word of a statement in capitals, after comments and parentheses; empty if there is none."""
    at = 0
    while at < len(text):
        conditional = _CONDITIONAL.match(text, at)
        if conditional is not None:
            at = conditional.end()
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
        elif text.startswith(("--", "#"), at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
        elif text[at].isspace() or text[at] in "(;":
            at += 1
        else:
            break
    match = _WORD.match(text, at)
    return match.group().upper() if match is not None else ""

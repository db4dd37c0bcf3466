"""Tables in a binlog with an unrecorded engine or row format, because CREATE had no ENGINE or ROW_FORMAT.

The events after CREATE show whether such a table is transactional. This evidence was tested with MySQL 5.7, 8.0 and
9.7, and MariaDB 10.5 and 11.8. From MySQL 8.0 on, the CREATE statement of a table has an XID only if the engine
supports atomic DDL. On all servers, a transaction with rows of a transactional table ends with an XID event. If a
transaction has only rows of nontransactional tables, it ends with COMMIT. Transactions of a sequence prove nothing,
because the sequence's row is written immediately and survives a ROLLBACK in any engine. Transactions that were rolled
back prove nothing either, because they contain rows of both kinds of tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

from zsnapdb.base.patterns import printable
from zsnapdb.mysql.binlog.event_bytes import EventBytes, inflated
from zsnapdb.mysql.binlog.events import (
    FORMAT,
    MALFORMED,
    MARIADB_QUERY_COMPRESSED,
    QUERY,
    TABLE_MAP,
    XID,
    Event,
    decisive_events,
    malformed,
)
from zsnapdb.mysql.binlog.logged_changes import first_word, table_map
from zsnapdb.mysql.binlog.transactions import TransactionTracker, query_text
from zsnapdb.planning.binlog.created_tables import CreatedTable
from zsnapdb.planning.server_facts import release_of
from zsnapdb.planning.server_family import family, flavour_in

_LONGEST = 15 << 16
"""Maximum number of bytes of a statement that are read.

Even a compressed event body that was cut at the window contains at least this many bytes.
"""
_MOST_TABLES = 1 << 16
_QUOTED = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/|(?:--\s|#)[^\n]*", re.DOTALL
)
_MAKES = re.compile(r"\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:TABLE|SEQUENCE)\b", re.IGNORECASE)
_LIKE = re.compile(r"\s*(?:IF\s+NOT\s+EXISTS\s+)?[\w$]+(?:\s*\.\s*[\w$]+)?\s*\(?\s*LIKE\b", re.IGNORECASE)
_ENGINE = re.compile(r"\bENGINE\b", re.IGNORECASE)
_FORMAT = re.compile(r"\bROW_FORMAT\b", re.IGNORECASE)
_ENGINE_NAME, _FORMAT_NAME = "ENGINE", "ROW_FORMAT"
_QUERY_PART = re.compile(r"\b(?:SELECT|AS|VALUES)\b", re.IGNORECASE)
_NAME = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
_NAMES = re.compile(
    rf"\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:TABLE|SEQUENCE)\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}(?:\s*\.\s*{_NAME})?",
    re.IGNORECASE,
)
_DROPS = re.compile(r"\bDROP\s+(?:TABLE|SEQUENCE)\b", re.IGNORECASE)
_DROPS_SCHEMA = re.compile(r"\bDROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE)
_MAY_EXIST = re.compile(r"\bIF\s+NOT\s+EXISTS\b", re.IGNORECASE)
_ALTERS_ENGINE = frozenset({"engine", "rename", "exchange", "import", "remove"})
"""Words that show that an ALTER TABLE statement may change the engine or name of a table."""
_ALTERS_CHARSET = frozenset({"convert", "charset", "character", "collate"})
_WORDS = re.compile(_NAME)
_COMMENT = re.compile(r"/\*(?!M?!).*?\*/", re.DOTALL)
_OWN_WORDS = re.compile(r"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?(?:[`\"].+?[`\"]\.)?[`\"].+?[`\"] \(\n  \S")
_SQL_MODE, _CATALOG_OLD, _TIME_ZONE, _CATALOG, _INVOKER, _DATABASES, _DDL_XID = 1, 2, 5, 6, 11, 12, 17
_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8}
"""Lengths in bytes of the status variables with a fixed length."""
_WITHOUT_OPTIONS = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 14 | 1 << 18
"""SQL modes in which a server that writes a CREATE TABLE itself omits the options (sql_show.cc of both families).

POSTGRESQL, ORACLE, MSSQL, DB2, MAXDB, NO_TABLE_OPTIONS, ANSI.
"""
_TOUCHES = frozenset({"ALTER", "DROP", "RENAME", "CREATE"})


def _top_level(text: str) -> str:
    """Return a statement without its parts in parentheses."""
    parts, depth = [], 0
    for piece in re.split(r"([()])", text):
        if piece in ("(", ")"):
            depth = max(0, depth + (1 if piece == "(" else -1))
        elif depth == 0:
            parts.append(piece)
    return " ".join(parts)


def _bare(statement: str) -> str:
    """Return the statement without comments, and with `x` instead of each quoted name and text."""
    return _QUOTED.sub(lambda match: " x " if match.group()[0] in "'\"`" else " ", statement)


def unnamed_options(statement: str) -> frozenset[str]:
    """Return which of the options ENGINE and ROW_FORMAT a statement omits when it creates a table or sequence.

    Quoted names and texts are ignored. CREATE TABLE ... LIKE copies both options from the original table.
    """
    if first_word(statement) != "CREATE":
        return frozenset()
    bare = _bare(statement)
    makes = _MAKES.search(bare)
    if makes is None or _LIKE.match(bare, makes.end()) is not None:
        return frozenset()
    options = _QUERY_PART.split(_top_level(bare[makes.end() :]), maxsplit=1)[0]
    is_sequence = makes.group().upper().endswith("SEQUENCE")
    return frozenset(
        name
        for name, pattern in ((_ENGINE_NAME, _ENGINE), (_FORMAT_NAME, _FORMAT))
        if pattern.search(options) is None and not (is_sequence and name == _FORMAT_NAME)
    )


def is_sequence(statement: str) -> bool:
    """Return whether the statement creates a sequence."""
    makes = _MAKES.search(_bare(statement))
    return makes is not None and makes.group().upper().endswith("SEQUENCE")


def name_in(statement: str, schema: str) -> tuple[str, str]:
    """Return the schema and name of the table that a statement creates. An unparsable name is returned as ""."""
    match = _NAMES.search(_COMMENT.sub(" ", statement))
    if match is None:
        return schema, ""
    first, second = (_unquoted(part) for part in match.groups(""))
    return (first, second) if second else (schema, first)


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0]) if name[:1] in ("`", '"') else name


def _status(variables: bytes) -> dict[int, int]:
    """Return the values of status variables in a query event. Only variables with a known fixed length are included."""
    found: dict[int, int] = {}
    at = 0
    while at < len(variables):
        code, at = variables[at], at + 1
        if code in _SIZES:
            size = _SIZES[code]
            found[code] = int.from_bytes(variables[at : at + size], "little")
        elif code in (_TIME_ZONE, _CATALOG):
            size = 1 + variables[at]
        elif code == _CATALOG_OLD:
            size = 2 + variables[at]
        elif code == _INVOKER:
            size = 1 + variables[at]
            size += 1 + variables[at + size]
        elif code == _DATABASES:
            size = 1
            for _ in range(variables[at] if variables[at] != 254 else 0):
                size = variables.index(0, at + size) + 1 - at
        else:
            break
        at += size
    return found


class CreatedTables:
    """Collects tables that were created without ENGINE or ROW_FORMAT, while binlogs are read in order.

    `numbers` contains the number of each table's binlog file; the caller numbers the files. `on_statement` receives the
    default schema and the text of each statement that creates, alters, drops or renames something.
    """

    def __init__(self, on_statement: Callable[[str, str], None] = lambda _schema, _text: None) -> None:
        self._on_statement = on_statement
        self.tables: list[CreatedTable] = []
        self.numbers: list[int] = []
        self._has_xids = False
        self._open: dict[tuple[str, str], int] = {}
        """Tables for which evidence is still collected, by name."""
        self._named: dict[tuple[str, str], int] = {}
        """Tables that still have their original name."""
        self._group: list[int] = []
        """Tables created by the open transaction."""
        self._sequences: set[int] = set()
        """Indexes in `tables` of the sequences."""
        self._changed: set[tuple[str, str]] = set()

    def see(self, event: Event, walk: TransactionTracker, number: int, *, is_end: bool) -> None:
        """Process the next event, after `walk` has processed it. `is_end` is set if the event ended a transaction."""
        if event.kind == FORMAT:
            version = bytes(event.body[2:52]).rstrip(b"\0").decode(errors="replace")
            since = family(flavour_in(version)).ddl_xids_from
            self._has_xids = since is not None and release_of(version) >= since
        elif event.kind == TABLE_MAP:
            mapped = table_map(EventBytes([event.body])) if self._open else None
            self._changed |= set() if mapped is None else {_key(_text(mapped.schema), _text(mapped.table))}
        elif event.kind in (QUERY, MARIADB_QUERY_COMPRESSED):
            self._statement(event, walk, number)
        if is_end:
            self._close(event)

    def _statement(self, event: Event, walk: TransactionTracker, number: int) -> None:
        if query_text(event.body) in (b"BEGIN", b"COMMIT"):
            return
        body = EventBytes([event.body])
        body.skip(8)
        length = body.integer(1)
        body.skip(2)
        variables = body.take(body.integer(2))
        schema = body.take(length).decode("utf-8", "replace")
        body.skip(1)
        raw = (body if event.kind == QUERY else EventBytes(inflated(body))).up_to(_LONGEST)
        text = raw.decode("utf-8", "replace")
        if first_word(text) not in _TOUCHES:
            return
        self._on_statement(schema, text)
        may_exist = first_word(text) == "CREATE" and _MAY_EXIST.search(_bare(text)) is not None
        if may_exist and _key(*name_in(text, printable(schema))) in self._named:
            # The table existed already and is not changed.
            return
        self._touch(text, printable(schema))
        missing = unnamed_options(text)
        if not missing or len(self.tables) >= _MOST_TABLES:
            return
        status = _status(variables)
        owner, name = name_in(text, printable(schema))
        is_whole, has_xid = not walk.is_inside, _DDL_XID in status
        table = CreatedTable(
            owner,
            name,
            walk.opened.start if walk.opened is not None else event.start,
            event.start,
            event.end,
            # If the table already existed, the statement created nothing and has no XID in any engine.
            has_xid if self._has_xids and is_whole and (has_xid or not may_exist) else None,
            lacks_options=bool(status.get(_SQL_MODE, 0) & _WITHOUT_OPTIONS) and _OWN_WORDS.match(text) is not None,
            names_engine=_ENGINE_NAME not in missing,
            names_format=_FORMAT_NAME not in missing,
        )
        self._open[_key(owner, name)] = self._named[_key(owner, name)] = len(self.tables)
        self._group.append(len(self.tables))
        if is_sequence(text):
            self._sequences.add(len(self.tables))
        self.tables.append(table)
        self.numbers.append(number)

    def _touch(self, statement: str, schema: str) -> None:
        """Mark each table that the statement may change, because its words include the table's name.

        No more evidence is collected for a marked table, except after an ALTER without ENGINE. Such an ALTER keeps the
        table's engine, but may change the row format to the current default.
        """
        kind, bare = first_word(statement), _bare(statement)
        if not self._named or (kind == "CREATE" and _MAKES.search(bare) is None):
            return
        words = {_unquoted(word).casefold() for word in _WORDS.findall(statement)}
        drops_schema = _DROPS_SCHEMA.search(bare) is not None
        is_dropped = drops_schema or _DROPS.search(bare) is not None
        if kind == "DROP" and not is_dropped:
            return
        keeps_name = kind == "ALTER" and "rename" not in words
        named = set(re.findall(r"\w+", bare.casefold()))
        keeps_engine = kind == "ALTER" and not _ALTERS_ENGINE & named
        made = _key(*name_in(statement, schema)) if kind == "CREATE" else ("", "")
        about = [name for name in self._named if name[0 if drops_schema else 1] in words]
        for name in [name for name in about if not made[1] or name == made]:
            place = self._named[name] if keeps_name else self._named.pop(name)
            if keeps_engine:
                is_converted = self.tables[place].is_converted or bool(_ALTERS_CHARSET & named)
                self.tables[place] = replace(self.tables[place], is_altered=True, is_converted=is_converted)
                continue
            self._open.pop(name, None)
            self.tables[place] = replace(self.tables[place], is_touched=True, is_dropped=is_dropped)

    def _close(self, event: Event) -> None:
        """Process the end of a transaction, which shows whether its tables are transactional.

        If the transaction ends with an XID and changed exactly one table, that table is transactional. An XID after
        changes of several tables shows nothing. If the transaction ends with COMMIT, none of its changed tables is
        transactional.
        """
        changed, self._changed = self._changed, set()
        for place in self._group:
            self.tables[place] = replace(self.tables[place], end=event.end)
        is_xid = event.kind == XID
        is_commit = event.kind == QUERY and query_text(event.body) == b"COMMIT"
        if self._group and is_xid and self._has_xids:
            # Servers write CREATE TABLE ... START TRANSACTION only for tables with atomic DDL.
            changed |= {_key(self.tables[place].schema, self.tables[place].table) for place in self._group}
        self._group = []
        if not (is_xid and len(changed) == 1) and not is_commit:
            return
        for name in changed & self._open.keys():
            table = self.tables[self._open[name]]
            if table.is_transactional is None and self._open[name] not in self._sequences:
                self.tables[self._open[name]] = replace(table, is_transactional=is_xid)

    def read(self, file: BinaryIO, name: str, start: int, number: int = 1) -> None:
        """Read an open binlog from the offset `start`, where the file's head or a transaction must end.

        Raises DamagedError with the offset if an event is damaged, and PreflightError if the file is encrypted.
        """
        walk, place = TransactionTracker(), None
        try:
            for event in decisive_events(file, name, file.seek(0, 2), start, (TABLE_MAP,)):
                place = event.start
                is_end = event.kind != TABLE_MAP and walk.see(event)
                self.see(event, walk, number, is_end=is_end)
        except MALFORMED as error:
            raise malformed(name, error, place) from error

    def numbered(self) -> Iterator[tuple[int, CreatedTable]]:
        return zip(self.numbers, self.tables, strict=True)


def _key(schema: str, table: str) -> tuple[str, str]:
    return schema.casefold(), table.casefold()


def _text(raw: bytes) -> str:
    return printable(raw.decode("utf-8", "replace"))

"""Everything that a user can see of a server in the campaign `field`, and the differences between two servers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pymysql

from tests.campaigns.support import field_variables
from zsnapdb.base.domain_types import Flavour

Cursor = pymysql.cursors.Cursor
_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys", "ledger")
_ANY_SIZE = ("SET SESSION max_join_size = 18446744073709551615", "SET SESSION sql_big_selects = 1")
"""The second statement follows the first, which may turn it off."""
_APPLICATION = ("SET SESSION autocommit = 1", "SET SESSION transaction_read_only = 0", *_ANY_SIZE)
_OWN_SESSION = (
    "SET SESSION sql_mode = ''",
    "SET SESSION sql_select_limit = 18446744073709551615",
    *_ANY_SIZE,
    "SET SESSION autocommit = 1",
    "SET SESSION completion_type = 0",
    "SET SESSION group_concat_max_len = 1000000",
    "SET SESSION sql_quote_show_create = 1",
    "SET SESSION sql_safe_updates = 0",
    "SET SESSION sql_auto_is_null = 0",
    "SET SESSION transaction_read_only = 0",
    "SET SESSION max_statement_time = 0",
    "SET SESSION max_execution_time = 0",
    "SET SESSION wait_timeout = 3600",
    "SET SESSION min_examined_row_limit = 0",
    "SET SESSION max_sort_length = 1024",
    "SET SESSION div_precision_increment = 4",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION system_versioning_asof = DEFAULT",
    "SET SESSION show_gipk_in_create_table_and_information_schema = 1",
    "SET SESSION show_create_table_verbosity = 0",
    "SET SESSION print_identified_with_as_hex = 1",
    "SET SESSION information_schema_stats_expiry = 0",
    "SET SESSION optimizer_switch = DEFAULT",
)
"""Statements that make the campaign's own queries independent of global settings. A server supports some of them."""
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+|(?<=CHARACTER SET utf8mb3) COLLATE utf8mb3_general_ci\b")
"""The next number of a column, and a collation that servers show inconsistently.

For a column of CREATE TABLE ... SELECT the source does not show the collation, but every replica does.
"""
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Truth:
    """The visible contents of a server: objects and rows, accounts, variables, plugins, each by name."""

    objects: Mapping[str, str]
    accounts: Mapping[str, str]
    variables: Mapping[str, str]
    plugins: Mapping[str, str]


def connect(
    socket: str | None = None, *, user: str = "root", password: str = "", port: int = 0, is_own: bool = True
) -> pymysql.Connection:
    """Open a session: one of the campaign's own, or one under global settings, like an application's."""
    where: dict[str, Any] = {"unix_socket": socket} if socket else {"host": "127.0.0.1", "port": port}
    connection: pymysql.Connection = pymysql.connect(
        user=user,
        password=password,
        charset="utf8mb4",
        autocommit=None if not is_own else True,
        read_timeout=120,
        **where,
    )
    with connection.cursor() as cursor:
        for statement in _OWN_SESSION if is_own else _APPLICATION:
            with suppress(pymysql.MySQLError):
                cursor.execute(statement)
    return connection


def read(connection: pymysql.Connection, flavour: Flavour) -> Truth:
    """Read everything that a user can see."""
    with connection.cursor() as cursor:
        return Truth(
            objects=dict(_objects(cursor)),
            accounts=dict(_accounts(cursor, flavour)),
            variables=field_variables.shown(cursor),
            plugins=dict(_plugins(cursor)),
        )


def without_counter(text: str) -> str:
    """Return a table definition without the next number of its column."""
    return _COUNTER.sub("", text)


def rows_of(connection: pymysql.Connection, table: str) -> str:
    """Return the rows of a table as text, or the server's refusal."""
    with connection.cursor() as cursor:
        return _rows(cursor, table)


def differences(
    expected: Mapping[str, str], found: Mapping[str, str], ignored: Collection[str] = (), limit: int = 130
) -> list[str]:
    """Return the differences between two servers, a line for each name."""
    names = sorted((set(expected) | set(found)) - set(ignored))
    lines = []
    for name in names:
        before, after = expected.get(name), found.get(name)
        if before != after:
            lines.append(f"{name}: {_short(before, after, limit)} became {_short(after, before, limit)}")
    return lines


def _short(text: str | None, other: str | None, limit: int) -> str:
    """Return the part of a text in which it differs from the other."""
    if text is None:
        return "(absent)"
    same = next(
        (n for n, (a, b) in enumerate(zip(text, other or "", strict=False)) if a != b), min(len(text), len(other or ""))
    )
    start = max(0, same - 20) if len(text) > limit else 0
    return repr(text[start : start + limit])


def _query(cursor: Cursor, statement: str, arguments: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
    cursor.execute(statement, arguments)
    return list(cursor.fetchall())


def _quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def _objects(cursor: Cursor) -> Iterator[tuple[str, str]]:
    for (schema,) in _query(cursor, "SHOW DATABASES"):
        # A folder that is not a schema, such as .zfs if snapdir is visible.
        if schema in _SYSTEM or schema.startswith("#mysql50#"):
            continue
        yield f"schema {schema}", _show(cursor, f"SHOW CREATE DATABASE {_quoted(schema)}")
        for name, kind in _query(cursor, f"SHOW FULL TABLES FROM {_quoted(schema)}"):
            full = _quoted(schema, name)
            what = "VIEW" if kind == "VIEW" else "TABLE"
            yield f"{what.lower()} {full}", _show(cursor, f"SHOW CREATE {what} {full}")
            yield f"rows {full}", _rows(cursor, full)
        for kind, question in _PROGRAMS.items():
            for (name,) in _query(cursor, question, (schema,)):
                yield (
                    f"{kind.lower()} {_quoted(schema, name)}",
                    _show(cursor, f"SHOW CREATE {kind} {_quoted(schema, name)}"),
                )


_PROGRAMS = {
    "TRIGGER": "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = %s",
    "PROCEDURE": "SELECT routine_name FROM information_schema.routines WHERE routine_schema = %s"
    " AND routine_type = 'PROCEDURE'",
    "FUNCTION": "SELECT routine_name FROM information_schema.routines WHERE routine_schema = %s"
    " AND routine_type = 'FUNCTION'",
    "EVENT": "SELECT event_name FROM information_schema.events WHERE event_schema = %s",
}


def _show(cursor: Cursor, statement: str) -> str:
    """Return the result of a SHOW statement, without counters and creation times of the object."""
    try:
        rows = _query(cursor, statement)
    except pymysql.MySQLError as error:
        return f"error {error.args[0]}"
    words = [_COUNTER.sub("", str(word)) for row in rows for word in row if _STAMP.match(str(word)) is None]
    return " | ".join(words)


def _rows(cursor: Cursor, table: str) -> str:
    try:
        rows = _query(cursor, f"SELECT * FROM {table}")
    except pymysql.MySQLError as error:
        return f"error {error.args[0]}"
    return "\n".join(sorted(repr(row) for row in rows))


def _accounts(cursor: Cursor, flavour: Flavour) -> Iterator[tuple[str, str]]:
    roles = "is_role = 'Y'" if flavour is Flavour.MARIADB else "FALSE"
    with suppress(pymysql.MySQLError):
        for user, host, is_role in _query(cursor, f"SELECT user, host, {roles} FROM mysql.user"):
            name = f"'{user}'" if is_role else f"'{user}'@'{host}'"
            if not is_role:
                yield f"account {name}", _salted(_show(cursor, f"SHOW CREATE USER {name}"))
            granted = _salted(_show(cursor, f"SHOW GRANTS FOR {name}")).split(" | ")
            yield f"grants {name}", "\n".join(sorted(granted))
        yield "functions", "\n".join(sorted(map(repr, _query(cursor, "SELECT name, ret, dl, type FROM mysql.func"))))
    if flavour is Flavour.MYSQL:
        with suppress(pymysql.MySQLError):
            urns = _query(cursor, "SELECT component_urn FROM mysql.component")
            yield "components", "\n".join(sorted(str(urn) for (urn,) in urns))


def _salted(text: str) -> str:
    """Return the text without parsec's password hash: a replica, too, draws another salt for a statement."""
    return re.sub(r"'P0:[^']*'", "'P0:'", text)


def _plugins(cursor: Cursor) -> Iterator[tuple[str, str]]:
    for row in _query(cursor, "SHOW PLUGINS"):
        if row[1] == "ACTIVE":
            yield str(row[0]), f"{row[2]} {row[3] or 'built in'}"

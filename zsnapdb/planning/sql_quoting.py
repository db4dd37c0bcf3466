"""Quotes SQL text, checks that statements only read, and builds client options that refuse wrong servers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError, UsageError


def quoted(*names: str) -> str:
    """Return the names in backticks, joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def option_value(text: str) -> str:
    """Return the value for an option file, in quotes and with backslash escapes (refman 8.4, "Using Option Files").

    Raises PreflightError if an option file cannot contain the value.
    """
    if "\n" in text or "\r" in text or "\0" in text:
        raise PreflightError(
            "a value for an option file contains a line break",
            hint="option files cannot hold line breaks; check the password file",
        )
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_QUOTED = re.compile(r"(?:`((?:[^`]|``)+)`|([^.`]+))\.(?:`((?:[^`]|``)+)`|([^`]+))")


@dataclass(frozen=True)
class TableName:
    """A table, or an entire schema if `table` is None."""

    schema: str
    table: str | None

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.table is not None else self.schema


def parse_table(text: str) -> TableName:
    """Return the table that a text `schema.table` names. A name with a dot or a backtick must be in backticks.

    Raises UsageError if the text is not a table name.
    """
    match = _QUOTED.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not the name of a table", hint="write schema.table; put a name with a dot into backticks"
        )
    quoted_schema, schema, quoted_table, table = match.groups()
    return TableName(schema or quoted_schema.replace("``", "`"), table or quoted_table.replace("``", "`"))


READERS = ("SELECT", "WITH", "SHOW", "EXPLAIN", "DESCRIBE", "DESC", "TABLE", "VALUES")
LONGEST = 64 * 1024
_FIRST = re.compile(r"\s*\(*\s*([A-Za-z]+)(?![\w$])")


def refusal_of(statement: str) -> str:
    """Return why a read-only user may not run the statement; "" if the user may.

    A comment before the first word is refused, because the server may execute it (`/*! … */`).
    """
    if len(statement) > LONGEST:
        return f"the statement is longer than {LONGEST} characters"
    first = _FIRST.match(statement)
    if first is None or first.group(1).upper() not in READERS:
        return f"only statements that begin with {', '.join(READERS)} are run, without a comment before"
    return ""


IDENTITY = ("server_uuid", "server_id", "datadir", "port", "socket", "pid_file", "hostname")
"""Global variables whose combination identifies a server. MariaDB has no server_uuid."""
_REFUSAL = "another_server_answered"


def only_on_server(variables: Mapping[str, str], *settings: str) -> str:
    """Return the option that makes a client refuse all servers except one.

    The argument `variables` contains the global variables of the accepted server. The variables in `IDENTITY` identify
    this server. The arguments `settings` are assignments for the session of the client, such as `sql_log_bin = 0`.
    """
    known = [_equals(f"@@GLOBAL.{name}", variables[name]) for name in IDENTITY if name in variables]
    return _sections(" AND ".join(known), settings)


def only_below(folder: str) -> str:
    """Return the option that makes a client refuse a server unless its data directory is below the folder."""
    inside = f"{folder.rstrip('/')}/"
    return _sections(_equals(f"LEFT(@@GLOBAL.datadir, {len(inside)})", inside))


def _equals(expression: str, value: str) -> str:
    # Hexadecimal needs no escaping in the option file, independent of SQL mode and character set.
    return f"HEX(CONVERT({expression} USING utf8mb4)) = '{value.encode().hex().upper()}'"


def _sections(condition: str, settings: Sequence[str] = ()) -> str:
    """Return option file sections that only the client reads. The dump program and others do not have the option."""
    check = f"sql_mode = IF({condition}, @@SESSION.sql_mode, '{_REFUSAL}')"
    statement = "SET " + ", ".join(f"SESSION {setting}" for setting in (check, *settings))
    return "".join(f"[{program}]\ninit-command={option_value(statement)}\n" for program in ("mysql", "mariadb"))

"""A check that the right server answers a client, made before any other statement. Pure.

A client runs the init-command of its option file directly after the login and exits if it fails (refman 8.4, "mysql
Client Options"; MariaDB, "mariadb Command-Line Client").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.planning.sql_quoting import option_value

IDENTITY = ("server_uuid", "server_id", "datadir", "port", "socket", "pid_file", "hostname")
"""Global variables whose combination is unique to a server. MariaDB has no server_uuid."""
_REFUSAL = "another_server_answered"


def only_on_server(variables: Mapping[str, str], *settings: str) -> str:
    """Return the option that refuses every server except the one with these values of `IDENTITY`.

    `settings` are assignments for the session of the client, such as `sql_log_bin = 0`.
    """
    known = [_equals(f"@@GLOBAL.{name}", variables[name]) for name in IDENTITY if name in variables]
    return _sections(" AND ".join(known), settings)


def only_below(folder: str) -> str:
    """Return the option that refuses every server whose data directory is not below the folder."""
    inside = f"{folder.rstrip('/')}/"
    return _sections(_equals(f"LEFT(@@GLOBAL.datadir, {len(inside)})", inside))


def _equals(expression: str, value: str) -> str:
    # Hexadecimal needs no escaping in the option file, whatever SQL mode and character set are in use.
    return f"HEX(CONVERT({expression} USING utf8mb4)) = '{value.encode().hex().upper()}'"


def _sections(condition: str, settings: Sequence[str] = ()) -> str:
    """Return sections that only the client reads; the dump program and others do not have this option."""
    check = f"sql_mode = IF({condition}, @@SESSION.sql_mode, '{_REFUSAL}')"
    statement = "SET " + ", ".join(f"SESSION {setting}" for setting in (check, *settings))
    return "".join(f"[{program}]\ninit-command={option_value(statement)}\n" for program in ("mysql", "mariadb"))

"""The settings of each session of zsnapdb, whatever the global variables of the server say.

A session takes over every global variable that has a session value too, and `init_connect` can change any. A limit such
as `sql_select_limit` cuts each list that is read, and says nothing.

One statement sets everything: text in a version comment is read only by releases that know it (refman 8.4 and MariaDB
manual, "Comments"; MariaDB reads no comment with a version from 5.7 to 9.9). One query proves it afterwards,
since a proxy may answer a SET itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNLIMITED = 18446744073709551615
_IDLE_SECONDS = 2 * 86400
"""Uploads, hooks and waits between two statements may take longer than the idle limit of a site."""
_NET_SECONDS = 3600
"""A reader of rows may be slow: it writes them to a disk or another server meanwhile."""


@dataclass(frozen=True)
class SessionSetting:
    """A variable and its value. `mysql` and `mariadb` are the first releases that know it, None: not in that family.

    `answers`: it changes what an answer or a statement means, so statements of users keep that of the server.
    """

    name: str
    value: str | int
    mysql: int | None = 50700
    mariadb: int | None = 100500
    answers: bool = False


SETTINGS = (
    SessionSetting("sql_select_limit", UNLIMITED),
    # Setting it turns sql_big_selects off, which therefore follows.
    SessionSetting("max_join_size", UNLIMITED),
    SessionSetting("sql_big_selects", 1),
    SessionSetting("sql_safe_updates", 0),
    # More is not possible with MariaDB 10.11 and later (observed).
    SessionSetting("group_concat_max_len", 1073741824),
    SessionSetting("autocommit", 1),
    SessionSetting("wait_timeout", _IDLE_SECONDS),
    SessionSetting("net_read_timeout", _NET_SECONDS),
    SessionSetting("net_write_timeout", _NET_SECONDS),
    SessionSetting("max_execution_time", 0, mysql=50708, mariadb=None),
    SessionSetting("max_statement_time", 0, mysql=None),
    SessionSetting("idle_transaction_timeout", 0, mysql=None),
    SessionSetting("idle_readonly_transaction_timeout", 0, mysql=None),
    SessionSetting("idle_write_transaction_timeout", 0, mysql=None),
    SessionSetting("transaction_isolation", "REPEATABLE-READ", mysql=50720, mariadb=None),
    SessionSetting("transaction_read_only", 0, mysql=50720, mariadb=None),
    SessionSetting("tx_isolation", "REPEATABLE-READ", mysql=None),
    SessionSetting("tx_read_only", 0, mysql=None),
    SessionSetting("completion_type", "NO_CHAIN"),
    SessionSetting("sql_quote_show_create", 1),
    SessionSetting("show_create_table_verbosity", 0, mysql=50722, mariadb=None),
    SessionSetting("show_gipk_in_create_table_and_information_schema", 1, mysql=80030, mariadb=None),
    SessionSetting("lc_messages", "en_US"),
    SessionSetting("sql_mode", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION", answers=True),
    SessionSetting("old_mode", "UTF8_IS_UTF8MB3", mysql=None, mariadb=100601, answers=True),
    # Tables would be read as of a time. DEFAULT, a word here, is now, whatever the global variable says.
    SessionSetting("system_versioning_asof", "DEFAULT", mysql=None, answers=True),
    SessionSetting("sql_if_exists", 0, mysql=None, mariadb=100600, answers=True),
    SessionSetting("time_zone", "+00:00", answers=True),
    SessionSetting("lc_time_names", "en_US", answers=True),
    SessionSetting("sql_auto_is_null", 0, answers=True),
    SessionSetting("foreign_key_checks", 1, answers=True),
    SessionSetting("unique_checks", 1, answers=True),
)
CHARACTERS = (
    SessionSetting("character_set_client", "utf8mb4"),
    SessionSetting("character_set_connection", "utf8mb4"),
    SessionSetting("character_set_results", "utf8mb4"),
    SessionSetting("collation_connection", "utf8mb4_general_ci", answers=True),
)
"""Set by SET NAMES: a server may ignore what a client wants at its login (character_set_client_handshake)."""


def _chosen(settings: Sequence[SessionSetting], *, of_users: bool) -> list[SessionSetting]:
    return [setting for setting in settings if not (of_users and setting.answers)]


def set_statement(*, of_users: bool) -> str:
    """Return the statement that sets everything. `of_users`: what statements of users mean stays as the server says."""
    names = "utf8mb4" if of_users else "utf8mb4 COLLATE utf8mb4_general_ci"
    parts = [
        _for_releases(f", SESSION {setting.name} = {_quoted(setting.value)}", setting)
        for setting in _chosen(SETTINGS, of_users=of_users)
    ]
    return f"SET NAMES {names}{''.join(parts)}"


def global_statement() -> str:
    """Return the statement for a server of our own whose dump program opens a session without our settings."""
    # A dump sets its own modes and time zone; it would read the tables as of another time.
    as_of = [setting for setting in SETTINGS if setting.name == "system_versioning_asof"]
    first, *others = _chosen(SETTINGS, of_users=True) + as_of
    parts = [_for_releases(f", GLOBAL {each.name} = {_quoted(each.value)}", each) for each in others]
    return f"SET GLOBAL {first.name} = {_quoted(first.value)}{''.join(parts)}"


def proof_query(*, of_users: bool) -> str:
    """Return the query whose row has the name of each setting before its value."""
    parts = [
        _for_releases(f", '{setting.name}', @@SESSION.{setting.name}", setting)
        for setting in _chosen((*CHARACTERS, *SETTINGS), of_users=of_users)
    ]
    return f"SELECT CONNECTION_ID(){''.join(parts)}"


def differing(row: Sequence[object]) -> tuple[str, ...]:
    """Return the settings of the row of the proof that the server did not take, each with its value there."""
    wanted = {setting.name: str(setting.value) for setting in (*CHARACTERS, *SETTINGS)}
    found = {_text(name): _text(value) for name, value in zip(row[1::2], row[2::2], strict=True)}
    missing = [name for name in ("sql_select_limit", "character_set_results") if name not in found]
    wrong = [f"{name}={value}" for name, value in found.items() if _other(wanted.get(name, ""), value)]
    return (*wrong, *missing)


def _other(wanted: str, value: str) -> bool:
    if "," in wanted:
        return not set(wanted.split(",")) <= set(value.split(","))
    try:
        # A time limit of MariaDB has digits behind its point.
        return float(wanted) != float(value) if wanted[:1].isdigit() else wanted != value
    except ValueError:
        return True


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _quoted(value: str | int) -> str:
    return str(value) if isinstance(value, int) or value == "DEFAULT" else f"'{value}'"


def _for_releases(text: str, setting: SessionSetting) -> str:
    """Return the text so that only releases that know the variable read it."""
    if setting.mysql == 50700 and setting.mariadb == 100500:
        return text
    of_mysql = "" if setting.mysql is None else f"/*!{max(setting.mysql, 50701):05d} {text}*/"
    return of_mysql + ("" if setting.mariadb is None else f"/*M!{setting.mariadb} {text}*/")
